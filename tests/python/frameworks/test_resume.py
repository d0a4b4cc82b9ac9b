"""The examples of training frameworks, killed in mid-epoch and at an epoch's end, go on exactly from the framework's
own checkpoint."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import pytest
from framework_steps import Step, steps_in

STEPS = 15  # of an epoch, with batches of 8
SAVED_EVERY = 5


@pytest.fixture(scope="module")
def files(daemon: Any, make_raw: Callable[..., Any]) -> Any:
    """120 samples."""
    return make_raw(daemon, per_class=40)


def expect_whole_epochs(steps: list[Step], count: int) -> None:
    assert len(steps) % count == 0
    per_epoch = len(steps) // count
    for epoch in range(count):
        seen = [index for step in steps[epoch * per_epoch : (epoch + 1) * per_epoch] for index in step.samples]
        assert sorted(seen) == list(range(120))


@pytest.fixture(scope="module", params=["train_lightning.py", "train_trainer.py", "train_jax.py"])
def example(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def uninterrupted() -> dict[str, list[Step]]:
    """By example: one run serves all tests."""
    return {}


@pytest.mark.parametrize("kill_after", [STEPS + 9, STEPS + 1], ids=["mid-epoch", "epoch's end"])
def test_killed_example_goes_on_exactly(
    run_framework: Callable[..., str],
    files: Any,
    example: str,
    uninterrupted: dict[str, list[Step]],
    tmp_path: pathlib.Path,
    kill_after: int,
) -> None:
    if example not in uninterrupted:
        uninterrupted[example] = steps_in(run_framework(files.daemon, example, files.name, tmp_path / "whole"))
        expect_whole_epochs(uninterrupted[example], 3)
    whole = uninterrupted[example]
    assert len(whole) == 3 * STEPS
    begun = steps_in(run_framework(files.daemon, example, files.name, tmp_path / "run", kill_after=kill_after))
    assert begun == whole[:kill_after]
    rest = steps_in(run_framework(files.daemon, example, files.name, tmp_path / "run"))
    saved = len(whole) - len(rest)
    # A checkpoint that is written in the background may be lost with the process.
    assert saved in (kill_after // SAVED_EVERY * SAVED_EVERY, (kill_after // SAVED_EVERY - 1) * SAVED_EVERY)
    assert rest == whole[saved:]
    expect_whole_epochs(begun[:saved] + rest, 3)
