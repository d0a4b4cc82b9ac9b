"""A bench that is interrupted leaves nothing behind."""

from __future__ import annotations

import pathlib
import signal
import subprocess
import time

import pytest


def children_of(process: int) -> list[int]:
    children = []
    for status in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(")")[2].split()[1])
        except OSError:  # the process has just ended
            continue
        if parent == process:
            children.append(int(status.parent.name))
    return children


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_bench_leaves_nothing_behind(larder_bin: pathlib.Path, tmp_path: pathlib.Path, number: signal.Signals) -> None:
    links = subprocess.run(["ip", "-brief", "link"], capture_output=True, text=True).stdout
    bench = subprocess.Popen(
        [larder_bin / "larder", "bench", "joint", "--events", "--quick", "--directory", tmp_path],
        stderr=subprocess.PIPE,
        text=True,
    )
    while len(children := children_of(bench.pid)) < 5:  # an allocator and four nodes
        assert bench.poll() is None
        time.sleep(0.02)
    bench.send_signal(number)
    assert bench.wait(60) == 1
    assert bench.stderr is not None and "was interrupted" in bench.stderr.read()
    assert list(tmp_path.glob("larder-bench-*")) == []
    assert [child for child in children if pathlib.Path(f"/proc/{child}").exists()] == []
    assert subprocess.run(["ip", "-brief", "link"], capture_output=True, text=True).stdout == links
