"""Datasets of plain files and the epochs that tests read of them."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import larder
import pytest
from conftest import Daemon


def write_files(directory: pathlib.Path, count: int, size: int = 1 << 16, generation: int = 0) -> pathlib.Path:
    """Writes `count` files of `size` bytes, 0000.bin and on. Files of different numbers or generations differ."""
    directory.mkdir(exist_ok=True)
    for i in range(count):
        (directory / f"{i:04}.bin").write_bytes((generation << 16 | i).to_bytes(4, "little") * (size // 4))
    return directory


@dataclasses.dataclass(frozen=True)
class Epoch:
    samples: int
    bytes: int
    statistics: larder.Statistics


def read_epoch(socket: str, name: str, job: str = "job") -> Epoch:
    with larder.Loader(name, job=job, socket=socket, batch_size=8) as loader:
        sizes = [len(sample.bytes) for batch in loader for sample in batch]
        return Epoch(len(sizes), sum(sizes), loader.statistics())


def key_of(sample: Any) -> str:
    key: str = sample["__key__"] if isinstance(sample, dict) else sample.key
    return key


def keys_of(batches: Iterable[Any]) -> list[str]:
    """Returns the keys of all samples in the batches, of larder or of PyTorch."""
    return [key_of(sample) for batch in batches for sample in batch]


def take(batches: Iterator[Any], count: int) -> list[str]:
    """Returns the keys of the next `count` batches' samples."""
    return [key_of(sample) for _ in range(count) for sample in next(batches)]


def wait_until(condition: Callable[[], bool]) -> None:
    """Waits without an end: a test that hangs is stopped from outside."""
    while not condition():
        time.sleep(0.05)


@contextlib.contextmanager
def datasets_of_sizes(
    daemon: Daemon, tmp_path_factory: pytest.TempPathFactory, prefix: str, sizes: Mapping[str, int]
) -> Iterator[dict[str, str]]:
    """Adds a dataset of so many files for each kind. Yields the names at the daemon, by kind."""
    named = {}
    for generation, (kind, count) in enumerate(sizes.items()):
        directory = write_files(tmp_path_factory.mktemp(kind) / "files", count, size=64, generation=generation)
        named[kind] = prefix + kind
        daemon.command("dataset", "add", named[kind], directory, "--quota-memory", "1MiB")
    yield named
    for name in named.values():
        daemon.command("dataset", "rm", name)
