#!/usr/bin/env python3
"""Compares Larder with other readers of sharded datasets, in one Python process on this machine.

Prints two tables. The first is about speed: samples a second, and CPU time a sample, from local files in the page
cache, by each library from its own format and by Larder from the same files, which Larder has in its memory tier. CPU
time counts Larder's daemon too, and depends less than rates on what else the machine does. A ratio is the library's CPU
time over Larder's. The second table is about a cache of half the dataset: how much of the dataset each library fetches
in an epoch. Libraries that are not installed are left out, with a note. Needs the package larder, and the programs
larder and larderd in PATH.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import mmap
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

SHARD_BYTES = 4 << 20
BATCH = 256
SHARDS_SHUFFLED = 4  # Streaming and WebDataset shuffle samples over about as many shards; LitData within one

Epoch = Callable[[], Iterator[memoryview | bytes]]


def samples(count: int, size: int) -> Iterator[bytes]:
    draw = random.Random(1)
    return (draw.randbytes(size) for _ in range(count))


# Each library writes the same samples in its own format.


def write_plain(directory: pathlib.Path, count: int, size: int) -> None:
    directory.mkdir()
    with open(directory / "samples", "wb") as file:
        for sample in samples(count, size):
            file.write(sample)


def write_tars(directory: pathlib.Path, count: int, size: int) -> None:
    import webdataset

    directory.mkdir()
    with webdataset.ShardWriter(str(directory / "%06d.tar"), maxsize=SHARD_BYTES, verbose=0) as writer:
        for number, sample in enumerate(samples(count, size)):
            writer.write({"__key__": f"{number:08}", "data": sample})


def write_mds(directory: pathlib.Path, count: int, size: int) -> None:
    import streaming

    with streaming.MDSWriter(out=str(directory), columns={"data": "bytes"}, size_limit=SHARD_BYTES) as writer:
        for sample in samples(count, size):
            writer.write({"data": sample})


def write_litdata(directory: pathlib.Path, count: int, size: int) -> None:
    from litdata.streaming.writer import BinaryWriter

    directory.mkdir()
    writer = BinaryWriter(str(directory), chunk_bytes=SHARD_BYTES)
    for number, sample in enumerate(samples(count, size)):
        writer[number] = {"data": sample}
    writer.done()
    writer.merge()


# Each library reads epochs in a random order of its own kind.


def read_plain(directory: pathlib.Path, count: int, size: int) -> Epoch:
    file = open(directory / "samples", "rb")
    memory = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    order = list(range(count))

    def epoch() -> Iterator[memoryview]:
        random.shuffle(order)
        for number in order:
            yield memory[number * size : (number + 1) * size]

    return epoch


def read_tars(directory: pathlib.Path, count: int, size: int) -> Epoch:
    import webdataset

    shards = sorted(map(str, directory.glob("*.tar")))

    def epoch() -> Iterator[bytes]:
        dataset = webdataset.WebDataset(shards, shardshuffle=len(shards))
        return (sample["data"] for sample in dataset.shuffle(count // len(shards) * SHARDS_SHUFFLED))

    return epoch


def read_mds(directory: pathlib.Path, count: int, size: int, **cache: Any) -> Epoch:
    import streaming
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    shards = len(list(directory.glob("*.mds")))
    block = max(1, count // shards) * SHARDS_SHUFFLED
    options = cache or {"local": str(directory)}
    dataset = streaming.StreamingDataset(batch_size=BATCH, shuffle=True, shuffle_block_size=block, **options)
    return lambda: (sample["data"] for sample in dataset)


def read_litdata(directory: pathlib.Path, count: int, size: int, **cache: Any) -> Epoch:
    import litdata

    dataset = litdata.StreamingDataset(**({"input_dir": str(directory)} | cache), shuffle=True)
    return lambda: (sample["data"] for sample in dataset)


class Daemon:
    """A larderd on a directory of its own. It ends with the `with` block."""

    def __init__(self, directory: pathlib.Path, memory: int) -> None:
        self.state = directory / "state"
        self.process = subprocess.Popen(
            ["larderd", "--state-directory", self.state, "--memory", f"{memory >> 10}KiB", "--disk", "0"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def __enter__(self) -> Daemon:
        while self.larder("dataset", "ls").returncode != 0:
            if self.process.poll() is not None:
                raise SystemExit("larderd ended")
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()

    def cpu_seconds(self) -> float:
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime, stime

    def larder(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        command = ["larder", "--admin-socket", self.state / "admin.sock", *arguments]
        return subprocess.run(list(map(str, command)), capture_output=True, text=True)

    def add(self, name: str, directory: pathlib.Path, quota: int) -> None:
        ran = self.larder("dataset", "add", name, f"file://{directory}", "--quota-memory", f"{quota >> 10}KiB")
        if ran.returncode != 0:
            raise SystemExit(ran.stderr)

    def loader(self, name: str) -> Any:
        import larder

        return larder.Loader(name, job=name, batch_size=BATCH, seed=1, socket=str(self.state / "larderd.sock"))


def views(loader: Any) -> Iterator[memoryview]:
    for batch in loader:
        for sample in batch:
            yield sample["data"]


def read(epoch: Epoch, count: int, size: int) -> None:
    """Reads an epoch. Reaches the length, the first and the last byte of each sample."""
    number = total = 0
    for sample in epoch():
        total += len(sample) + sample[0] * 0 + sample[-1] * 0
        number += 1
    if (number, total) != (count, count * size):
        raise SystemExit(f"not the same samples: {number}, {total} bytes")


@dataclasses.dataclass
class Cost:
    """The cost of reading for this process and, if one serves it, its daemon."""

    samples_per_second: float
    cpu_us: float  # per sample


def measure(epoch: Epoch, count: int, size: int, daemon: Daemon | None = None) -> Cost:
    """Reads as many epochs as take half a second, at least one."""
    cpu = time.process_time() + (daemon.cpu_seconds() if daemon else 0)
    epochs, began = 0, time.perf_counter()
    while epochs == 0 or time.perf_counter() - began < 0.5:
        read(epoch, count, size)
        epochs += 1
    seconds = time.perf_counter() - began
    cpu = time.process_time() + (daemon.cpu_seconds() if daemon else 0) - cpu
    return Cost(epochs * count / seconds, 1e6 * cpu / (epochs * count))


class OpenedFiles:
    """Counts the bytes of the files below a directory that this process opens for reading."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.directory, self.bytes = str(directory) + "/", 0
        sys.addaudithook(self.hook)

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and str(arguments[0]).startswith(self.directory) and not str(arguments[0]).endswith(".json"):
            self.bytes += os.path.getsize(arguments[0])


READERS = {
    # name: package, directory, writer, reader
    "mmap": (None, "plain", write_plain, read_plain),
    "WebDataset": ("webdataset", "tars", write_tars, read_tars),
    "MosaicML Streaming": ("streaming", "mds", write_mds, read_mds),
    "LitData": ("litdata", "litdata", write_litdata, read_litdata),
}


def print_speed(names: list[str], work: pathlib.Path, count: int, size: int, rounds: int, copy: bool) -> None:
    """Each round reads epochs with every library and with Larder. Prints medians of the rounds, and of their ratios."""

    def converted(samples: Iterator[memoryview | bytes]) -> Iterator[memoryview | bytes]:
        return map(bytes, samples) if copy else samples  # bytes() of bytes copies nothing

    formats = [READERS[name][1] for name in names if name != "mmap"]
    quota = 2 * count * (size + 4096) + (64 << 20)
    costs: dict[str, list[tuple[Cost, Cost]]] = {name: [] for name in names}
    with Daemon(work / "whole", quota * len(formats) + (64 << 20)) as daemon:
        for form in formats:
            daemon.add(form, work / form, quota)
        loaders = {form: daemon.loader(form) for form in formats}
        epochs = {name: READERS[name][3](work / READERS[name][1], count, size) for name in names}
        for number in range(rounds + 1):
            for name in names:
                loader = loaders[READERS[name][1] if name != "mmap" else formats[0]]
                theirs = measure(lambda name=name: converted(epochs[name]()), count, size)
                ours = measure(lambda loader=loader: converted(views(loader)), count, size, daemon)
                if number > 0:  # the first round fills the caches
                    costs[name].append((theirs, ours))
        for loader in loaders.values():
            loader.close()
    print(f"{'reader':20} {'samples/s':>10} {'Larder':>10}   {'CPU us a sample':>15} {'Larder':>10} {'ratio':>10}")
    for name, pairs in costs.items():
        rates = [statistics.median(side.samples_per_second for side in sides) for sides in zip(*pairs)]
        cpu = [statistics.median(side.cpu_us for side in sides) for sides in zip(*pairs)]
        ratio = statistics.median(theirs.cpu_us / ours.cpu_us for theirs, ours in pairs)
        print(f"{name:20} {rates[0]:10.0f} {rates[1]:10.0f}   {cpu[0]:15.2f} {cpu[1]:10.2f} {ratio:10.2f}")


def print_fetched(names: list[str], work: pathlib.Path, count: int, size: int, epochs: int) -> None:
    """Prints how much of the dataset each epoch after the first fetches with a cache of half the dataset."""
    half = count * size // 2
    print(f"{'cache of half':20} {'fetched':>10}")
    for name in names:
        _, form, _, reader = READERS[name]
        cache: dict[str, Any]
        if name == "MosaicML Streaming":
            cache = {"remote": str(work / form), "local": str(work / "cache-mds"), "cache_limit": half}
            cache["predownload"] = BATCH  # the default of eight batches is more than this cache holds
        elif name == "LitData":
            cache = {"input_dir": f"local:{work / form}", "cache_dir": str(work / "cache-litdata")}
            cache["max_cache_size"] = half
        else:
            continue  # mmap has the kernel's cache; WebDataset cleans its cache every 30 s at most
        opened = OpenedFiles(work / form)
        epoch = reader(work / form, count, size, **cache)
        parts = []
        for _ in range(epochs + 1):
            before = opened.bytes
            read(epoch, count, size)
            parts.append((opened.bytes - before) / (count * size))
        print(f"{name:20} {statistics.mean(parts[1:]):10.2f}")
    form = READERS[names[1]][1]
    with Daemon(work / "half", half + (64 << 20)) as daemon:
        daemon.add(form, work / form, half)
        with daemon.loader(form) as loader:
            parts = []
            for _ in range(epochs + 1):
                before = loader.statistics().remote_bytes
                read(lambda: views(loader), count, size)
                parts.append((loader.statistics().remote_bytes - before) / (count * size))
    print(f"{'Larder':20} {statistics.mean(parts[1:]):10.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--samples", type=int, default=2048)
    parser.add_argument("--sample-bytes", type=int, default=128 << 10)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--copy", action="store_true", help="copy each sample into bytes, also of Larder and the mmap")
    parser.add_argument("--directory", help="where temporary files are written; by default that of tempfile")
    options = parser.parse_args()
    count, size = options.samples, options.sample_bytes
    names = []
    for name, (package, *_) in READERS.items():
        if package is None or importlib.util.find_spec(package):
            names.append(name)
        else:
            print(f"{name} is not installed")
    if len(names) < 2:
        raise SystemExit("none of the libraries is installed")
    with tempfile.TemporaryDirectory(prefix="larder-readers-", dir=options.directory) as directory:
        work = pathlib.Path(directory)
        for name in names:
            READERS[name][2](work / READERS[name][1], count, size)
        print_speed(names, work, count, size, options.rounds, options.copy)
        print_fetched(names, work, count, size, options.rounds)


if __name__ == "__main__":
    main()
