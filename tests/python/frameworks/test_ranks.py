"""Examples with several ranks, killed in mid-epoch: they go on exactly, also on another number of ranks."""

from __future__ import annotations

import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import larder
import pytest
from framework_steps import Step, steps_in


def order(data: Any, epoch: int) -> list[int]:
    """The indices of an epoch in the order that one rank alone reads."""
    with larder.Loader(**data.options(batch_size=8, seed=1, first_epoch=epoch)) as loader:
        return [sample.index for batch in loader for sample in batch]


def by_step(steps: list[Step]) -> list[tuple[int, int, int, tuple[int, ...]]]:
    """(epoch, step, rank, samples) in this order, each once: Ray logs some lines twice."""
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
    files = make_raw(daemon, per_class=51)  # neither 4 nor 3 ranks with batches of 2 divide 153, or what is left of it
    example = ("train_accelerate.py", files.name, tmp_path / "checkpoint")
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
    begun = by_step(steps_in(run_framework(files.daemon, *launch, 4, *example, kill_after=17)))
    saved = [step for step in begun if step[1] < 15]  # a checkpoint is made after each fifth step
    assert len(saved) == 15 * 4
    rest = by_step(steps_in(run_framework(files.daemon, *launch, 3, *example)))
    assert {rank for _, _, rank, _ in rest} == {0, 1, 2}
    assert samples_of(saved, 0) + samples_of(rest, 0) == order(files, 0)[:150]
    assert samples_of(rest, 1) == order(files, 1)[:150]


@pytest.fixture
def ray_directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    """Short, as sockets are in it."""
    directory = pathlib.Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))
    monkeypatch.setenv("RAY_TMPDIR", str(directory))
    # Ray's processes take a minute to start on a busy machine.
    monkeypatch.setenv("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "400")
    monkeypatch.setenv("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.5")
    # Lines that workers print go to their files at once, not to a logger, which loses the last ones of a killed process.
    monkeypatch.setenv("RAY_TRAIN_ENABLE_PRINT_PATCH", "0")
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


def test_ray_goes_on_from_its_last_checkpoint(
    run_framework: Callable[..., str],
    daemon: Any,
    make_raw: Callable[..., Any],
    tmp_path: pathlib.Path,
    ray_directory: pathlib.Path,
) -> None:
    files = make_raw(daemon, per_class=41)  # 2 ranks with batches of 4 do not divide 123
    outputs: set[pathlib.Path] = set()

    def run(**options: int) -> list[tuple[int, int, int, tuple[int, ...]]]:
        run_framework(files.daemon, "train_ray.py", files.name, tmp_path, **options)
        # Ray's own output lacks the last lines of workers that were killed.
        added = set(ray_directory.glob("ray/session_2*/logs/worker-*.out")) - outputs
        outputs.update(added)
        return by_step(steps_in("\n".join(path.read_text() for path in added)))

    orders = [order(files, epoch)[:120] for epoch in range(2)]
    epochs = orders[0] + orders[1]
    begun = run(kill_after=22)
    rest = run()
    # From the last checkpoint, made after each fifth step, or the one before: Ray stores them in the background.
    taken = len(epochs) - sum(len(samples) for *_, samples in rest)
    assert 0 < taken <= 22 * 8 and taken % (5 * 8) == 0
    assert [index for *_, samples in rest for index in samples] == epochs[taken:]
    # The files of workers that were killed may lack their last lines. What they have is what was due.
    assert len(begun) > 0
    for epoch, step, rank, samples in begun:
        at = step * 8 + rank * 4
        assert list(samples) == orders[epoch][at : at + 4]
