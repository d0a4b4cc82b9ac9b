"""f* as the allocator measures it from a real DataLoader's bytes and the training loop's own waits."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import training_loop  # noqa: E402


@pytest.mark.parametrize("remote", [None, 15e6], ids=["enough", "bottleneck"])
def test_measured_f_star_is_that_of_the_training_loop(
    start_daemon: Callable[..., Any], larder_bin: pathlib.Path, tmp_path: pathlib.Path, remote: float | None
) -> None:
    training_loop.expect_the_loops_own_rate(start_daemon, larder_bin, tmp_path, num_workers=0, remote=remote)
