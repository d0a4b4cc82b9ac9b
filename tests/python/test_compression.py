"""A compressing cache: jobs get the remote's bytes, and the cache holds more of them than its quota, also after a
restart."""

from __future__ import annotations

import pathlib
import re
import signal
from collections.abc import Callable
from typing import Any

import larder
import pytest

SAMPLES = 64


def content(i: int) -> bytes:
    return b" ".join(f"word{(i * 7919 + j * j) % 1000}".encode() for j in range(4000))


@pytest.fixture
def texts(tmp_path: pathlib.Path) -> pathlib.Path:
    directory = tmp_path / "texts"
    directory.mkdir()
    for i in range(SAMPLES):
        (directory / f"{i:02}.txt").write_bytes(content(i))
    return directory


def read(name: str, socket: str) -> dict[str, int]:
    with larder.Loader(name, socket=socket, batch_size=8) as loader:
        for _ in range(2):
            seen = {sample.key: bytes(sample["txt"]) for batch in loader for sample in batch}
            assert seen == {f"{i:02}.txt": content(i) for i in range(SAMPLES)}
        counted = loader.statistics()
        return {"memory": counted.memory_blocks, "disk": counted.disk_blocks, "remote": counted.remote_blocks}


def test_warm_promises_at_least_what_fits_uncompressed(start_daemon: Callable[..., Any], texts: pathlib.Path) -> None:
    daemon = start_daemon()
    size = sum(len(content(i)) for i in range(SAMPLES))
    quota = ("--quota-memory", f"{size * 3 // 4} B")
    for name, options in {"plain": (), "small": ("--compression", "zstd")}.items():
        daemon.command("dataset", "add", name, texts, *quota, *options)
    assert "unless blocks shrink" not in daemon.command("dataset", "warm", "plain")
    warmed = daemon.command("dataset", "warm", "small")
    promised = re.search(r"; to fetch: at least (\d+) blocks, .* unless blocks shrink \(compression zstd", warmed)
    cached = re.search(rf"(\d+) of {SAMPLES} blocks are cached", warmed)
    assert promised and cached and int(promised[1]) <= int(cached[1]) == SAMPLES, warmed


@pytest.mark.parametrize("tier", ["--quota-memory", "--quota-disk"])
@pytest.mark.parametrize("compression", ["zstd:3", "auto"])
def test_compressed_cache_holds_more_than_its_quota(
    start_daemon: Callable[..., Any], texts: pathlib.Path, compression: str, tier: str
) -> None:
    daemon = start_daemon()
    size = sum(len(content(i)) for i in range(SAMPLES))
    daemon.command("dataset", "add", "texts", texts, tier, f"{size * 3 // 4} B", "--compression", compression)
    for _ in range(20):  # the last blocks are compressed and written after the job has read them
        read("texts", daemon.socket)
        info = daemon.command("dataset", "info", "texts")
        if re.search(rf"cached +100.0 %, {SAMPLES} blocks", info):
            break
    else:
        pytest.fail(info)
    assert re.search(rf"compression +{compression}, blocks shrink to [0-9.]+ %", info)
    assert "blocks bad 0" in daemon.command("dataset", "verify", "texts", "--remote")
    if tier == "--quota-disk":
        daemon.end(signal.SIGTERM)
        daemon.start()
        assert read("texts", daemon.socket)["remote"] == 0


def test_unknown_compression_is_named(daemon: Any, texts: pathlib.Path) -> None:
    refused = daemon.try_command("dataset", "add", "texts", texts, "--compression", "lz4")
    assert refused.returncode != 0
    assert 'compression "lz4" is not none, auto, zstd or zstd:LEVEL' in refused.stderr
