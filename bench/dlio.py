#!/usr/bin/python3
"""dlio.py [--quick]: how many emulated accelerators this machine feeds, by DLIO with an MLPerf-derived
configuration. Unofficial: no result of MLPerf Storage.

Runs DLIO 2.0.0 with bench/dlio/workload/retinanet_b200.yaml: a process for each accelerator, whose steps are sleeps.
Reads the same files through larder.dlio (all blocks cached in memory), through DLIO's own PyTorch loader from a mount
of `larder mount`, and by that loader from the local file system with all files in its page cache. Adds accelerators as
long as the AU (accelerator utilisation) is at least 0.85. The AU is the mean over the epochs without the first, in
which workers start. Prints one JSON object. Needs root, and the environment of tests/python/framework_env.py."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import mount

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests" / "python"))
try:
    import framework_env
except ModuleNotFoundError:
    sys.exit("dlio.py: this bench needs Larder's source tree, where tests/python/framework_env.py --install makes its environment")

READERS = ("larder", "mount", "files")
AU_MIN = 0.85
BATCH = 24


class Benchmark:
    """DLIO in its environment."""

    def __init__(self, python: pathlib.Path, directory: pathlib.Path, files: int, epochs: int) -> None:
        self._programs = python.parent
        self._directory = directory
        self._packages = framework_env.python_path(directory / "packages")
        self._overrides = {"dataset.num_files_train": files, "train.epochs": epochs}
        self._runs = 0

    def run(
        self, accelerators: int, data: pathlib.Path, environment: dict[str, str], **overrides: object
    ) -> dict[str, object]:
        """Runs DLIO with as many processes. Returns its summary."""
        self._runs += 1
        output = self._directory / f"output{self._runs}"
        wanted = self._overrides | {"dataset.data_folder": data, "output.folder": output} | overrides
        command = [
            self._programs / "mpiexec", "-n", accelerators, self._programs / "dlio_benchmark",
            "--config-dir", ROOT / "bench" / "dlio", "workload=retinanet_b200", f"hydra.run.dir={output}",
            *(f"++workload.{name}={value}" for name, value in wanted.items()),
        ]  # fmt: skip
        quiet = {
            "PYTHONPATH": str(self._packages), "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3",
            "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        ran = subprocess.run(
            [str(word) for word in command],
            env=os.environ | quiet | environment,
            cwd=self._directory, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        if ran.returncode != 0:
            raise RuntimeError(f"DLIO failed:\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}")
        summary = output / "summary.json"
        return json.loads(summary.read_text()) if summary.exists() else {}


def feed(
    benchmark: Benchmark, reader: str, data: pathlib.Path, environment: dict[str, str], most: int
) -> dict[str, object]:
    """Adds accelerators until their AU is too low. Returns the AU of each number, and how many were fed."""
    overrides: dict[str, object] = {}
    if reader == "larder":
        overrides = {"reader.data_loader_classname": "larder.dlio.DataLoader", "reader.data_loader_sampler": "index"}
    utilisations: list[float] = []
    while len(utilisations) < most and (not utilisations or utilisations[-1] >= AU_MIN):
        summary = benchmark.run(len(utilisations) + 1, data, environment, **overrides)
        epochs = summary["metric"]["train_au_percentage"]  # type: ignore[index]
        utilisations.append(statistics.mean(epochs[1:]) / 100)
    return {"accelerators": sum(au >= AU_MIN for au in utilisations), "au": utilisations}


def measure(
    programs: pathlib.Path, python: pathlib.Path, files: int, epochs: int, most: int
) -> dict[str, dict[str, object]]:
    with mount.on_a_site(programs) as site:
        benchmark = Benchmark(python, site.directory, files, epochs)
        data = site.directory / "data"
        benchmark.run(1, data, {}, **{"workflow.generate_data": True, "workflow.train": False})
        mounted = site.directory / "mounted"
        (mounted / "valid").mkdir(parents=True)  # DLIO lists this folder, too
        (mounted / "train").symlink_to(site.mount("retinanet", data / "train", cached=True)[0])
        places = {"larder": data, "mount": mounted, "files": data}
        for path in data.rglob("*.npy"):
            path.read_bytes()  # into the page cache
        environment = {"LARDER_DLIO_DATASET": "retinanet", "LARDER_SOCKET": str(site.state / "larderd.sock")}
        return {reader: feed(benchmark, reader, places[reader], environment, most) for reader in READERS}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=pathlib.Path, default=ROOT / "build" / "dev" / "bin")
    parser.add_argument("--quick", action="store_true", help="little data, one accelerator")
    parser.add_argument("--directory", help="working directory, on the file system to measure")
    arguments = parser.parse_args()
    tempfile.tempdir = arguments.directory
    python = framework_env.interpreter()
    if python is None:
        print("dlio.py: DLIO is not there; tests/python/framework_env.py --install fetches it", file=sys.stderr)
        return 1
    files, epochs, most = (10 * BATCH, 2, 1) if arguments.quick else (100 * BATCH, 3, 32)
    print(json.dumps(measure(arguments.programs.resolve(), python, files, epochs, most)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
