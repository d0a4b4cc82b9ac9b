"""f* as the allocator measures it when a DataLoader's workers wait too: only the training loop's waits count."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import training_loop  # noqa: E402


@pytest.mark.parametrize("remote", [None, 15e6], ids=["enough", "bottleneck"])
def test_measured_f_star_ignores_waits_of_workers(
    start_daemon: Callable[..., Any], larder_bin: pathlib.Path, tmp_path: pathlib.Path, remote: float | None
) -> None:
    training_loop.expect_the_loops_own_rate(start_daemon, larder_bin, tmp_path, num_workers=4, remote=remote)
