#!/usr/bin/python3
"""mount.py [--quick] [--json]: what a mount of `larder mount` costs beside the least that FUSE allows.

Reads the same files through the mount (all blocks cached in memory), through larder-minimal-fuse, which serves them
from a memfd, and from the local file system with all files in its page cache, one after the other, several times; the
medians are printed. Large files are read whole, with reads of 1 MiB. Every fourth image is decoded by PyTorch's
DataLoader with two workers. Then lists a dataset of a million files. Needs root, openclipart-png and PyTorch."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator

ROOT = pathlib.Path(__file__).resolve().parents[1]
IMAGES = pathlib.Path("/usr/share/openclipart/png")
READ_BYTES = 1 << 20
MIB = 1 << 20


class Site:
    """A daemon of its own, and the mounts of its datasets."""

    def __init__(self, programs: pathlib.Path, directory: pathlib.Path, stack: contextlib.ExitStack) -> None:
        self.programs = programs
        self.directory = directory
        self.stack = stack
        self.state = directory / "state"
        self.larder("up", "--detach", "--state", self.state, "--memory", "4GB", "--disk", "0")
        stack.callback(self.larder, "down", "--state", self.state)

    def larder(self, *words: object) -> str:
        command = [self.programs / "larder", words[0], *map(str, words[1:])]
        environment = os.environ | {
            "LARDER_ADMIN_SOCKET": str(self.state / "admin.sock"), "LARDER_SOCKET": str(self.state / "larderd.sock")
        }  # fmt: skip
        ran = subprocess.run(command, env=environment, capture_output=True, text=True)
        if ran.returncode != 0:
            raise RuntimeError(f"larder {' '.join(map(str, words))}: {ran.stderr}")
        return ran.stdout

    def mount(self, name: str, files: pathlib.Path, cached: bool) -> tuple[pathlib.Path, int]:
        """Adds the files as a dataset and mounts it. Returns the directory and the process that serves it."""
        self.larder("dataset", "add", name, files)
        if cached:
            self.larder("quota", "set", name, "--memory", "1200MB", "--disk", "0")
            self.larder("dataset", "warm", name)
        directory = self.directory / f"{name}-larder"
        directory.mkdir()
        log = self.directory / f"{name}.log"
        started = json.loads(self.larder("mount", name, directory, "--detach", "--json", "--log", log))
        self.stack.callback(self.larder, "unmount", directory)
        return directory, int(started["pid"])

    def mount_minimal(self, name: str, files: pathlib.Path) -> pathlib.Path:
        directory = self.directory / f"{name}-minimal"
        directory.mkdir()
        process = subprocess.Popen([self.programs / "larder-minimal-fuse", files, directory], stdout=subprocess.PIPE)
        assert process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError("larder-minimal-fuse ended")
        self.stack.callback(process.wait)
        self.stack.callback(subprocess.run, ["umount", directory], check=True)
        return directory


def write_files(directory: pathlib.Path, count: int, size: int) -> None:
    directory.mkdir()
    draw = random.Random(1)
    for i in range(count):
        (directory / f"{i:05}.bin").write_bytes(draw.randbytes(size))


def read_whole(directory: pathlib.Path) -> float:
    """Reads all files in random order. Returns bytes a second."""
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    random.Random(2).shuffle(paths)
    into = [memoryview(bytearray(READ_BYTES))]
    began = time.perf_counter()
    total = 0
    for path in paths:
        file = os.open(path, os.O_RDONLY)
        while got := os.readv(file, into):
            total += got
        os.close(file)
    return total / (time.perf_counter() - began)


def decode_images(directory: pathlib.Path, step: int) -> float:
    """Decodes every STEPth image once, with two workers. Returns images a second."""
    import PIL.Image
    import torch.utils.data

    PIL.Image.MAX_IMAGE_PIXELS = None
    warnings.simplefilter("ignore")
    paths = sorted(directory.rglob("*.png"))[::step]

    class Images(torch.utils.data.Dataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return len(paths)

        def __getitem__(self, index: int) -> int:
            with open(paths[index], "rb") as file, PIL.Image.open(file) as image:
                return len(image.convert("RGB").resize((64, 64)).tobytes())

    loader = torch.utils.data.DataLoader(Images(), batch_size=64, shuffle=True, num_workers=2)
    began = time.perf_counter()
    count = sum(len(batch) for batch in loader)
    return count / (time.perf_counter() - began)


def alternate(measure: Callable[[pathlib.Path], float], readers: dict[str, pathlib.Path], rounds: int) -> dict[str, float]:
    """Measures each reader in each round. Returns the medians, and that of the rounds' ratios to the minimal program."""
    figures: dict[str, list[float]] = {name: [] for name in readers}
    for _ in range(rounds):
        for name, directory in readers.items():
            figures[name].append(measure(directory))
    medians = {name: statistics.median(values) for name, values in figures.items()}
    ratios = [ours / peer for ours, peer in zip(figures["larder"], figures["minimal"])]
    return medians | {"ratio": statistics.median(ratios)}


def memory_of(process: int) -> dict[str, int]:
    """Returns the process's own memory, and the daemon's memory that it maps, in bytes."""
    lines = pathlib.Path(f"/proc/{process}/status").read_text().splitlines()
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith("Rss")}
    return {"own": (kib["RssAnon"] + kib["RssFile"]) * 1024, "mapped": kib["RssShmem"] * 1024}


Measure = Callable[[pathlib.Path], float]


def compare(site: Site, name: str, files: pathlib.Path, rounds: int, *measures: Measure) -> list[dict[str, object]]:
    """Returns the figures of each measure."""
    mounted, process = site.mount(name, files, cached=True)
    readers = {"larder": mounted, "minimal": site.mount_minimal(name, files), "local": files}
    return [alternate(measure, readers, rounds) | {"memory_bytes": memory_of(process)} for measure in measures]


def list_many(site: Site, count: int) -> dict[str, object]:
    files = site.directory / "many"
    for i in range(count):
        if i % 1000 == 0:
            (files / f"{i // 1000:04}").mkdir(parents=True)
        (files / f"{i // 1000:04}" / f"{i:07}").write_bytes(b"x")
    mounted, process = site.mount("many", files, cached=False)
    began = time.perf_counter()
    lines = subprocess.run(["ls", "-R", mounted], stdout=subprocess.PIPE, check=True).stdout.count(b"\n")
    seconds = time.perf_counter() - began
    assert lines > count, lines
    return {"files": count, "seconds": seconds, "memory_bytes": memory_of(process)}


@contextlib.contextmanager
def on_a_site(programs: pathlib.Path) -> Iterator[Site]:
    with contextlib.ExitStack() as stack:
        directory = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="larder-bench-")))
        yield Site(programs, directory, stack)


def show(result: dict[str, dict[str, object]]) -> None:
    gb = ("GB/s", 1e9)
    rows = {"1 MiB files": gb, "16 MiB files": gb, "images, read": gb, "images, decoded": ("images/s", 1.0)}
    for name, (unit, scale) in rows.items():
        figures = {key: float(result[name][key]) / scale for key in ("larder", "minimal", "local")}  # type: ignore[arg-type]
        print(
            f"{name}: {figures['larder']:.2f} {unit}; {result[name]['ratio']:.2f} times the minimal program's "
            f"{figures['minimal']:.2f}; local files {figures['local']:.2f}"
        )
    many = result["listing"]
    print(f"ls -R of {many['files']:,} files: {many['seconds']:.1f} s")
    for name, figures in result.items():
        memory = figures["memory_bytes"]
        print(f"memory of the mount, {name}: {memory['own'] / MIB:.0f} MiB, maps {memory['mapped'] / MIB:.0f} MiB of the daemon's")  # type: ignore[index]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=pathlib.Path, default=ROOT / "build" / "dev" / "bin")
    parser.add_argument("--images", type=pathlib.Path, default=IMAGES, help=f"default: {IMAGES}")
    parser.add_argument("--quick", action="store_true", help="little data, two rounds")
    parser.add_argument("--json", action="store_true", help="print one object")
    arguments = parser.parse_args()
    rounds = 2 if arguments.quick else 7
    with on_a_site(arguments.programs.resolve()) as site:
        write_files(site.directory / "large", 64 if arguments.quick else 512, MIB)
        write_files(site.directory / "huge", 4 if arguments.quick else 32, 16 * MIB)
        step = 40 if arguments.quick else 4
        (large,) = compare(site, "large", site.directory / "large", rounds, read_whole)
        (huge,) = compare(site, "huge", site.directory / "huge", rounds, read_whole)
        read, decoded = compare(
            site, "images", arguments.images, min(rounds, 3), read_whole, lambda images: decode_images(images, step)
        )  # fmt: skip
        result = {
            "1 MiB files": large,
            "16 MiB files": huge,
            "images, read": read,
            "images, decoded": decoded,
            "listing": list_many(site, 10_000 if arguments.quick else 1_000_000),
        }
    if arguments.json:
        print(json.dumps(result))
    else:
        show(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
