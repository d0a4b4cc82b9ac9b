"""larder.dlio in DLIO itself, and `larder bench dlio`."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

ARRAYS = """
import io, numpy
from larder.dlio import load_npy
arrays = [
    numpy.arange(12, dtype=numpy.uint8).reshape(3, 4, 1), numpy.arange(6.0).reshape(2, 3).T, numpy.array(3),
    numpy.zeros((0, 2)),
]
for array in arrays:
    numpy.save(file := io.BytesIO(), array)
    read = load_npy(memoryview(file.getvalue()))
    assert read.dtype == array.dtype and read.shape == array.shape and (read == array).all() and read.flags.owndata
print(len(arrays), "equal")
"""
PAGE = pathlib.Path(__file__).resolve().parents[3] / "docs" / "dlio.md"


def test_commands_of_the_page_run(
    start_daemon: Callable[..., Any],
    repository: pathlib.Path,
    framework_python: pathlib.Path,
    framework_path: pathlib.Path,
    tmp_path: pathlib.Path,
) -> None:
    """With fewer files, which DLIO makes."""
    few = "++workload.dataset.num_files_train=96 ++workload.train.epochs=2 ++workload.output.folder=output"
    daemon = start_daemon()
    larder_commands = daemon.programs / "larder"
    (block,) = re.findall(r"(?:^    .*\n)+", PAGE.read_text(), re.MULTILINE)
    add, run = (line.strip() for line in block.split("\n", 1))
    generate = (
        "dlio_benchmark --config-dir bench/dlio workload=retinanet_b200 ++workload.dataset.data_folder=data/retinanet"
    )
    script = "\n".join(
        [
            "set -e",
            f"larder() {{ {larder_commands} --admin-socket {daemon.state}/admin.sock \"$@\"; }}",
            f"{generate} {few} ++workload.workflow.generate_data=True ++workload.workflow.train=False",
            add.replace("1GiB", "128MiB"),  # what this daemon has
            f"{run} {few}",
        ]
    )
    (tmp_path / "bench").symlink_to(repository / "bench")
    environment = os.environ | {
        "PATH": f"{framework_python.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(framework_path),
        "LARDER_SOCKET": daemon.socket,
        "CUDA_VISIBLE_DEVICES": "",
    }
    ran = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500
    )
    assert ran.returncode == 0, f"{ran.stdout[-3000:]}\n{ran.stderr[-3000:]}"
    summary = json.loads((tmp_path / "output" / "summary.json").read_text())
    assert summary["num_accelerators"] == 2 and summary["epochs"] == 2
    job = next(job for job in json.loads(daemon.command("jobs", "--json"))["jobs"] if job["job"] == "dlio")
    assert job["samples"] >= 2 * 96


@pytest.mark.skipif(os.geteuid() != 0, reason="a mount needs root")
def test_bench_feeds_an_accelerator(larder_bin: pathlib.Path) -> None:
    ran = subprocess.run(
        [larder_bin / "larder", "bench", "dlio", "--quick", "--json"], capture_output=True, text=True, timeout=500
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    result = json.loads(ran.stdout)
    assert list(result) == ["larder", "mount", "files"]
    for figures in result.values():
        assert len(figures["au"]) == 1 and 0 < figures["au"][0] <= 1 and figures["accelerators"] in (0, 1)


def test_arrays_are_those_of_numpy(
    run_framework: Callable[..., str], start_daemon: Callable[..., Any], tmp_path: pathlib.Path
) -> None:
    (tmp_path / "program.py").write_text(ARRAYS)
    assert "4 equal" in run_framework(start_daemon(), tmp_path / "program.py", directory=tmp_path)
