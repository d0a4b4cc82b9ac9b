"""Shards written by webdataset's own TarWriter in this test's environment and read back in every shuffle mode."""

from __future__ import annotations

import io
import json
import pathlib
import random
from collections.abc import Callable
from typing import Any

import larder
import numpy
import pytest
import webdataset
from format_cases import BLOCKS, MODES

SAMPLES = 90
SHARDS = 3


def sample_of(i: int) -> dict[str, Any]:
    draw = random.Random(i)
    return {
        "__key__": f"train/{i:05}",
        "jpg": draw.randbytes(draw.choice([1, 511, 512, 513, 7_000])),
        "cls": i % 10,
        "txt": f"Beispiel Nr. {i}, ü",
        "json": {"i": i, "tags": ["a", i / 4]},
        "depth.npy": numpy.arange(i, dtype="float32").reshape(1, i),
        "empty.bin": b"",
    }


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    directory = tmp_path_factory.mktemp("written")
    for shard in range(SHARDS):
        with webdataset.TarWriter(str(directory / f"train-{shard:03}.tar"), encoder=True) as writer:
            for i in range(shard, SAMPLES, SHARDS):
                writer.write(sample_of(i))
    return directory


def check(sample: larder.Sample) -> int:
    number = int(sample.key.rpartition("/")[2])
    written = sample_of(number)
    assert sample.key == written["__key__"]
    assert set(sample.fields) == set(written) - {"__key__"}
    assert bytes(sample["jpg"]) == written["jpg"] and bytes(sample["empty.bin"]) == b""
    assert int(bytes(sample["cls"])) == written["cls"] and bytes(sample["txt"]).decode() == written["txt"]
    assert json.loads(bytes(sample["json"])) == written["json"]
    array = numpy.load(io.BytesIO(bytes(sample["depth.npy"])))
    depth = written["depth.npy"]
    assert array.dtype == "float32" and array.shape == depth.shape and (array == depth).all()
    return number


@pytest.mark.parametrize("block", BLOCKS)
def test_samples_are_read_back_as_written(
    daemon: Any, add: Callable[..., str], shards: pathlib.Path, block: str
) -> None:
    name = add(shards, "--block", block)
    assert ["format", "webdataset"] in [line.split() for line in daemon.command("dataset", "info", name).splitlines()]
    orders = []
    for mode in MODES:
        with larder.Loader(name, socket=daemon.socket, batch_size=7, **mode) as loader:
            for _ in range(2):  # from the remote, then from the cache
                orders.append([check(sample) for batch in loader for sample in batch])
                assert sorted(orders[-1]) == list(range(SAMPLES))
    with larder.Dataset(name, socket=daemon.socket) as dataset:
        assert sorted(map(check, dataset.fetch(range(len(dataset))))) == list(range(SAMPLES))
    assert orders[0] == orders[1] and len({tuple(order) for order in orders[1:]}) == len(orders) - 1
