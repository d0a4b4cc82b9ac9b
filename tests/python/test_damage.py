"""Damage that only the data itself reveals, found by the job that reads it: the block is refetched once."""

from __future__ import annotations

import collections
import ctypes
import json
import os
import pathlib
import re
import shutil
import struct
from collections.abc import Callable
from typing import Any

import larder
import pytest
from format_cases import DATA, check, generate
from servers import FaultProxy, Nginx

RECORDS = "train-{00000..00002}-of-00003.tfrecord"


def read(daemon: Any, name: str, case: str, **options: Any) -> collections.Counter[int]:
    """Counts the samples read in an epoch."""
    with larder.Loader(name, socket=daemon.socket, batch_size=7, decode=larder.decode, **options) as loader:
        return collections.Counter(check(value, case) for batch in loader for value in batch)


def rewrite(path: pathlib.Path, data: bytes) -> None:
    """Writes other bytes, but keeps the file's size and modification time."""
    before = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_block_damaged_in_transit_to_the_cache_is_refetched(
    start_daemon: Callable[..., Any], serve_directory: Callable[..., Nginx], fault_proxy: Callable[..., FaultProxy]
) -> None:
    nginx = serve_directory(DATA / "tfrecord")
    daemon = start_daemon()
    proxy = fault_proxy(nginx.port)
    daemon.command(
        "dataset", "add", "records", f"{proxy.endpoint}/{RECORDS}", "--block", "2KiB", "--quota-memory", "8MiB"
    )  # fmt: skip
    proxy.set(flip=0.5)
    daemon.command("dataset", "warm", "records")
    assert proxy.injected()["flip"] > 3
    proxy.set()
    requests_before = proxy.counts()["requests"]
    everything = dict.fromkeys(range(generate.SAMPLES), 1)
    assert read(daemon, "records", "tfrecord", seed=1) == everything
    requests_after = proxy.counts()["requests"]
    refetched = requests_after - requests_before
    assert 0 < refetched <= proxy.injected()["flip"], "each damaged block is refetched once, and no other block"
    assert read(daemon, "records", "tfrecord", seed=2) == everything
    with larder.Dataset("records", socket=daemon.socket, decode=larder.decode) as dataset:
        assert sorted(check(value, "tfrecord") for value in dataset.fetch(range(len(dataset)))) == list(everything)
    assert proxy.counts()["requests"] == requests_after, "refetched blocks are cached"
    assert re.search(r"quarantined +0 blocks", daemon.command("dataset", "info", "records"))


@pytest.mark.parametrize(
    ("case", "file", "offset", "skipped"),
    [
        ("tfrecord", "train-00001-of-00003.tfrecord", 40, 1),
        ("mds_zstd", "shard.00001.mds.zstd", 7, None),
        ("litdata_zstd", None, 7, None),
    ],
)
def test_damage_at_the_remote_is_reported_and_cleared_by_verify(
    daemon: Any, add: Callable[..., str], tmp_path: pathlib.Path, case: str, file: str | None, offset: int, skipped: int | None
) -> None:  # fmt: skip
    root = pathlib.Path(shutil.copytree(DATA / case, tmp_path / case))
    victim = root / file if file else sorted(path for path in root.iterdir() if path.name != "index.json")[1]
    good = victim.read_bytes()
    name = add(root)
    rewrite(victim, good[:offset] + bytes(byte ^ 0xFF for byte in good[offset : offset + 3]) + good[offset + 3 :])
    for _ in range(2):
        with pytest.raises(larder.Corrupt, match="(?s)" + re.escape(victim.name) + ".*damaged at the remote.*read twice"):
            read(daemon, name, case)
    with larder.Loader(name, socket=daemon.socket, batch_size=7, skip_failed=True) as loader:
        for _ in range(2):
            count = sum(len(batch) for batch in loader)
            assert (count == generate.SAMPLES - skipped) if skipped else (0 < count < generate.SAMPLES)
    info = daemon.command("dataset", "info", name)
    assert re.search(rf"quarantined +1 block, 1 wrong .*\n +{re.escape(victim.name)}, .*, found by a reader", info)
    with larder.Dataset(name, socket=daemon.socket) as dataset, pytest.raises(larder.Corrupt, match="read twice"):
        dataset.fetch(range(len(dataset)))

    rewrite(victim, good)
    assert "blocks bad 1" in daemon.try_command("dataset", "verify", name, "--remote").stdout
    assert re.search(r"quarantined +0 blocks", daemon.command("dataset", "info", name))
    assert read(daemon, name, case) == dict.fromkeys(range(generate.SAMPLES), 1)


def test_block_of_damaged_samples_is_refetched_once(
    daemon: Any, add: Callable[..., str], tmp_path: pathlib.Path
) -> None:
    root = pathlib.Path(shutil.copytree(DATA / "tfrecord", tmp_path / "tfrecord"))
    victim = root / "train-00001-of-00003.tfrecord"
    name = add(root, "--block", "object")
    data = bytearray(victim.read_bytes())
    at = damaged = 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        data[at + 12] ^= 0xFF  # the first byte of the record: its checksum no longer matches
        at += 12 + length + 4
        damaged += 1
    rewrite(victim, bytes(data))
    assert damaged > 3
    with larder.Loader(
        name, socket=daemon.socket, job="damaged", batch_size=generate.SAMPLES, shuffle=False, skip_failed=True
    ) as loader:
        assert sum(len(batch) for batch in loader) == generate.SAMPLES - damaged
    jobs = json.loads(daemon.command("--json", "jobs"))["jobs"]
    (job,) = [job for job in jobs if job["job"] == "damaged"]
    files = [path.stat().st_size for path in root.iterdir()]
    assert job["counters"]["bytes_remote_read"] == sum(files) + len(data)


class Zstd:
    """Calls the zstd library: Python 3.11 has no module for it."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libzstd.so.1")
        for name in ("ZSTD_compress", "ZSTD_decompress", "ZSTD_compressBound"):
            getattr(self.library, name).restype = ctypes.c_size_t

    def decompress(self, data: bytes, size: int) -> bytearray:
        out = ctypes.create_string_buffer(size)
        assert self.library.ZSTD_decompress(out, ctypes.c_size_t(size), data, ctypes.c_size_t(len(data))) == size
        return bytearray(out.raw)

    def compress(self, data: bytes) -> bytes:
        bound = self.library.ZSTD_compressBound(ctypes.c_size_t(len(data)))
        out = ctypes.create_string_buffer(bound)
        size = self.library.ZSTD_compress(out, ctypes.c_size_t(bound), data, ctypes.c_size_t(len(data)), 3)
        return out.raw[:size]


def test_damaged_samples_of_a_compressed_block_are_listed(
    daemon: Any, add: Callable[..., str], tmp_path: pathlib.Path
) -> None:
    """The frame is valid and its content is not, so only the refetched block shows which bytes were damaged."""
    root = pathlib.Path(shutil.copytree(DATA / "mds_zstd", tmp_path / "mds_zstd"))
    index = json.loads((root / "index.json").read_text())
    shard = index["shards"][1]
    victim = root / shard["zip_data"]["basename"]
    zstd = Zstd()
    raw = zstd.decompress(victim.read_bytes(), shard["raw_data"]["bytes"])
    (first_sample,) = struct.unpack_from("<I", raw, 4)
    struct.pack_into("<I", raw, first_sample, 0xFFFF_FFF0)  # the size of its first column
    victim.write_bytes(zstd.compress(bytes(raw)))
    shard["zip_data"]["bytes"] = victim.stat().st_size
    (root / "index.json").write_text(json.dumps(index))

    name = add(root)
    for _ in range(2):
        with pytest.raises(larder.Corrupt, match="(?s)" + re.escape(victim.name) + ".*damaged at the remote.*read twice"):
            read(daemon, name, "mds_zstd")
    with larder.Loader(name, socket=daemon.socket, batch_size=7, skip_failed=True) as loader:
        assert sum(len(batch) for batch in loader) == generate.SAMPLES - 1
    info = daemon.command("dataset", "info", name)
    assert re.search(rf"quarantined +1 block, 1 wrong .*\n +{re.escape(victim.name)}, .*, found by a reader", info)
