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
PICKLED = """
import io, numpy
from larder.dlio import load_npz
class Runs:
    def __reduce__(self):
        return print, ("runs code of the file",)
for values in ([Runs()], [2.0]):
    numpy.savez(file := io.BytesIO(), x=numpy.array(values))
    try:
        print("read", load_npz(memoryview(file.getvalue())).tolist())
    except ValueError as error:
        print("refused", error)
"""
SHUFFLED = """
import os, sys, numpy
from dlio_benchmark.common.enumerations import DatasetType, FormatType, Shuffle
from dlio_benchmark.utils.config import ConfigArguments
from dlio_benchmark.utils.utility import DLIOMPI
import larder.dlio
DLIOMPI.get_instance().initialize()
os.environ["LARDER_DLIO_DATASET"] = sys.argv[1]
options = ConfigArguments.get_instance()
options.read_threads, options.resized_image = 0, numpy.zeros((2, 2), numpy.uint8)
# DLIO takes that of files as the YAML file has it, where off without quotes is False.
for of_files in ("off", False, "seed", "random", Shuffle.OFF, Shuffle.SEED):
    for of_samples in (Shuffle.OFF, Shuffle.SEED):
        options.file_shuffle, options.sample_shuffle = of_files, of_samples
        loader = larder.dlio.DataLoader(FormatType.NPY, DatasetType.TRAIN, 0)
        loader.read()
        is_wanted = of_files not in ("off", False, Shuffle.OFF) or of_samples is Shuffle.SEED
        assert loader._loader.dataset._sampling["shuffle"] is is_wanted, (of_files, of_samples)
print("as configured")
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


def test_archive_with_python_objects_is_refused(
    run_framework: Callable[..., str], start_daemon: Callable[..., Any], tmp_path: pathlib.Path
) -> None:
    (tmp_path / "program.py").write_text(PICKLED)
    printed = run_framework(start_daemon(), tmp_path / "program.py", directory=tmp_path)
    assert "runs code" not in printed and "refused Object arrays" in printed and "read [2.0]" in printed


def test_order_is_shuffled_if_dlio_shuffles_files_or_samples(
    run_framework: Callable[..., str], daemon: Any, raw: Any, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "program.py").write_text(SHUFFLED)
    assert "as configured" in run_framework(daemon, tmp_path / "program.py", raw.name, directory=tmp_path)


def test_arrays_are_those_of_numpy(
    run_framework: Callable[..., str], start_daemon: Callable[..., Any], tmp_path: pathlib.Path
) -> None:
    (tmp_path / "program.py").write_text(ARRAYS)
    assert "4 equal" in run_framework(start_daemon(), tmp_path / "program.py", directory=tmp_path)
