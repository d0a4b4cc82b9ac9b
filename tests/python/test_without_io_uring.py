"""A daemon that is refused io_uring still serves, and logs why and what to do."""

from __future__ import annotations

import pathlib
import random
import signal
import sys
from collections.abc import Iterator

import larder
import pytest
from conftest import Daemon


@pytest.fixture
def degraded(larder_bin: pathlib.Path, repository: pathlib.Path, tmp_path: pathlib.Path) -> Iterator[Daemon]:
    """A daemon that is refused io_uring."""
    prefix = [sys.executable, str(repository / "tests" / "servers" / "without_io_uring.py")]
    daemon = Daemon(larder_bin, tmp_path / "larderd", prefix=prefix)
    daemon.start()
    yield daemon
    daemon.end(signal.SIGTERM)


def test_threads_replace_io_uring(degraded: Daemon, tmp_path: pathlib.Path) -> None:
    line = next(line for line in degraded.log.read_text().splitlines() if "io_uring is not used" in line)
    assert "seccomp" in line and "io_uring_enter" in line
    assert "io=threads" in degraded.log.read_text()
    draw = random.Random(1)
    files = tmp_path / "files"
    files.mkdir()
    contents = {f"{i:02}.bin": draw.randbytes(draw.randrange(1, 100_000)) for i in range(50)}
    for name, data in contents.items():
        (files / name).write_bytes(data)
    degraded.command("dataset", "add", "files", files, "--quota-disk", "16 MiB")
    with larder.Loader("files", socket=degraded.socket, batch_size=8) as loader:
        for _ in range(2):
            assert {sample.key: bytes(sample.bytes) for batch in loader for sample in batch} == contents
        assert loader.statistics().disk_blocks > 0
