"""Examples with several ranks, killed in mid-epoch: they go on exactly, also on another number of ranks."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import larder
from framework_steps import Step, steps_in


def order(data: Any, epoch: int) -> list[int]:
    """The indices of an epoch in the order that one rank alone reads."""
    with larder.Loader(**data.options(batch_size=8, seed=1, first_epoch=epoch)) as loader:
        return [sample.index for batch in loader for sample in batch]


def by_step(steps: list[Step]) -> list[tuple[int, int, int, tuple[int, ...]]]:
    """(epoch, step, rank, samples) in this order."""
    found = set()
    for step in steps:
        _, epoch, _, number, _, rank = step.name.split()
        found.add((int(epoch), int(number), int(rank), step.samples))
    return sorted(found)


def samples_of(steps: list[tuple[int, int, int, tuple[int, ...]]], epoch: int) -> list[int]:
    return [index for at, _, _, samples in steps if at == epoch for index in samples]


def test_four_ranks_become_three_in_mid_epoch(
    run_framework: Callable[..., str], daemon: Any, make_raw: Callable[..., Any], tmp_path: pathlib.Path
) -> None:
    files = make_raw(daemon, per_class=50)
    example = ("train_accelerate.py", files.name, tmp_path / "checkpoint")
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
    begun = by_step(steps_in(run_framework(files.daemon, *launch, 4, *example, kill_after=17)))
    saved = [step for step in begun if step[1] < 15]  # a checkpoint is made after each fifth step
    assert len(saved) == 15 * 4
    rest = by_step(steps_in(run_framework(files.daemon, *launch, 3, *example)))
    assert {rank for _, _, rank, _ in rest} == {0, 1, 2}
    assert samples_of(saved, 0) + samples_of(rest, 0) == order(files, 0)
    assert samples_of(rest, 1) == order(files, 1)
