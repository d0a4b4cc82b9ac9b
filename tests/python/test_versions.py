"""A dataset's versions: their blocks, sessions and manifests."""

from __future__ import annotations

import json
import pathlib
import re
import signal
import time
from collections.abc import Callable
from typing import Any

import larder
from epochs import read_epoch, wait_until, write_files

FILES = 40
SIZE = 65_536


def info(daemon: Any, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(daemon.command("--json", "dataset", "info", name))
    return found


def test_new_version_gets_the_room_of_the_old_one(start_daemon: Callable[..., Any], tmp_path: pathlib.Path) -> None:
    daemon = start_daemon("--version-grace", "0 s")
    files = tmp_path / "files"
    write_files(files, FILES, SIZE, generation=1)
    daemon.command("dataset", "add", "files", files, "--quota-memory", "3 MiB")
    assert read_epoch(daemon.socket, "files").samples == FILES
    assert read_epoch(daemon.socket, "files").statistics.hit_ratio == 1
    write_files(files, FILES, SIZE, generation=2)
    daemon.command("dataset", "index", "files")
    wait_until(lambda: info(daemon, "files")["used"]["payload_bytes"] == 0)
    assert read_epoch(daemon.socket, "files").samples == FILES
    assert read_epoch(daemon.socket, "files").statistics.hit_ratio == 1
    assert info(daemon, "files")["cached_ratio"] == 1


def test_job_keeps_its_version_across_daemon_restart(
    start_daemon: Callable[..., Any], tmp_path: pathlib.Path
) -> None:
    daemon = start_daemon()
    files = tmp_path / "files"
    write_files(files, FILES, SIZE, generation=1)
    daemon.command("dataset", "add", "files", files, "--quota-disk", "16 MiB")
    assert read_epoch(daemon.socket, "files").samples == FILES
    with larder.Loader("files", job="job", socket=daemon.socket, batch_size=8, shuffle=False) as loader:
        walk = iter(loader)
        first = next(walk)
        for name in ("a", "b"):
            (files / f"{name}.bin").write_bytes(name.encode() * SIZE)
            daemon.command("dataset", "index", "files")
        assert info(daemon, "files")["versions"] == [1, 2, 3]
        daemon.end(signal.SIGKILL)
        daemon.start()
        time.sleep(2.5)  # the job computes; the daemon runs its maintenance without a session
        assert len(first) + sum(len(batch) for batch in walk) == FILES
    assert info(daemon, "files")["versions"] == [1, 2, 3]


def test_restarted_job_starts_over(start_daemon: Callable[..., Any], tmp_path: pathlib.Path) -> None:
    daemon = start_daemon()
    files = tmp_path / "files"
    write_files(files, FILES, SIZE, generation=1)
    daemon.command("dataset", "add", "files", files)
    with larder.Loader("files", job="job", socket=daemon.socket, batch_size=8) as loader:
        for _ in range(3):
            assert sum(len(batch) for batch in loader) == FILES
    daemon.command("job", "limit", "job", "--rate", "100 KB/s", "--burst", "64 KiB")
    with larder.Loader("files", job="job", socket=daemon.socket, batch_size=8) as loader:
        next(iter(loader))
        job = next(job for job in json.loads(daemon.command("--json", "jobs"))["jobs"] if job["job"] == "job")
        assert job["epoch"] == 0
        assert 0 < job["unread_bytes"] < FILES * SIZE


def test_damaged_manifest_harms_no_other_dataset(start_daemon: Callable[..., Any], tmp_path: pathlib.Path) -> None:
    daemon = start_daemon()
    files = tmp_path / "files"
    write_files(files, FILES, SIZE, generation=1)
    for name in ("good", "bad"):
        daemon.command("dataset", "add", name, files, "--quota-disk", "8 MiB")
        assert read_epoch(daemon.socket, name).samples == FILES
    segments = daemon.state / "segments" / info(daemon, "bad")["dataset_id"]
    assert segments.exists()
    daemon.end()
    [manifest] = (daemon.state / "datasets" / "bad").glob("*manifest*")
    content = bytearray(manifest.read_bytes())
    content[4096 + 20] ^= 1  # after the header
    manifest.write_bytes(content)
    daemon.start()
    assert read_epoch(daemon.socket, "good").samples == FILES
    refused = daemon.try_command("dataset", "info", "bad")
    assert refused.returncode != 0
    assert re.search(r'dataset "bad" is damaged: .*checksum does not match.*larder dataset rm', refused.stderr)
    assert "damaged: bad: " in daemon.try_command("dataset", "ls").stderr
    assert daemon.try_command("dataset", "add", "bad", files).returncode == 5
    daemon.command("dataset", "rm", "bad")
    assert not segments.exists(), "the cached blocks are removed with their dataset"
    daemon.command("dataset", "add", "bad", files, "--quota-memory", "8 MiB")
    assert read_epoch(daemon.socket, "bad").samples == FILES


def test_quotas_are_lowered_to_fit_a_smaller_node(start_daemon: Callable[..., Any], tmp_path: pathlib.Path) -> None:
    daemon = start_daemon()
    files = tmp_path / "files"
    write_files(files, FILES, SIZE, generation=1)
    daemon.command("dataset", "add", "files", files)
    daemon.command("quota", "set", "files", "--memory", "200 MiB")
    daemon.end()
    # The record of a daemon that had 512 MiB of memory, twice as much as now.
    path = daemon.state / "datasets" / "files" / "dataset.json"
    record = json.loads(path.read_text())
    assert record["quota"]["memory_bytes"] == 200 << 20
    record["quota"]["memory_bytes"] = 512 << 20
    path.write_text(json.dumps(record))
    daemon.start()
    assert info(daemon, "files")["quota"]["memory_bytes"] == 256 << 20
    assert "lowered" in daemon.log.read_text()
    assert read_epoch(daemon.socket, "files").samples == FILES


def test_warm_says_that_older_versions_take_the_room(start_daemon: Callable[..., Any], tmp_path: pathlib.Path) -> None:
    daemon = start_daemon("--version-grace", "1 h")
    files = tmp_path / "files"
    write_files(files, FILES, SIZE, generation=1)
    daemon.command("dataset", "add", "files", files, "--quota-memory", "3 MiB")
    assert "40 of 40 blocks are cached" in daemon.command("dataset", "warm", "files")
    write_files(files, FILES, SIZE, generation=2)
    daemon.command("dataset", "index", "files")
    says = daemon.command("dataset", "warm", "files")
    assert "has no room for them while it also holds 40 blocks of older versions: warm again when" in says
    assert "quota set" not in says
    assert daemon.command("quota", "ls").splitlines()[1].split() == ["files", "3.00", "MiB", "0", "B", "by", "hand"]
