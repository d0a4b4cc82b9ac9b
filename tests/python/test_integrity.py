"""Checksums taken at indexing find data that is damaged at the remote later: no job gets such data, and operators see
the damage."""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Callable
from typing import Any

import larder
import pytest
from http_api import UnixConnection


@pytest.fixture
def tree(tmp_path: pathlib.Path) -> pathlib.Path:
    directory = tmp_path / "tree"
    directory.mkdir()
    for i in range(40):
        (directory / f"{i:02}.txt").write_bytes(f"sample {i}".encode() * (i + 1))
    return directory


def spoil(path: pathlib.Path) -> None:
    """Writes other bytes, but keeps the file's size and modification time."""
    before = path.stat()
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_bytes_damaged_at_the_remote_are_never_delivered(
    daemon: Any, add: Callable[..., str], tree: pathlib.Path
) -> None:
    name = add(tree, "--checksum")
    assert re.search(r"checksums +of each block", daemon.command("dataset", "info", name))
    spoil(tree / "07.txt")
    with larder.Loader(name, socket=daemon.socket, batch_size=8) as loader:
        with pytest.raises(larder.Corrupt, match=r'"07.txt".*is damaged at the remote.*checksum'):
            list(loader)
    with larder.Loader(name, socket=daemon.socket, batch_size=8, skip_failed=True) as loader:
        seen = {bytes(sample["txt"]) for batch in loader for sample in batch}
        assert loader.statistics().skipped_samples == 1
    assert seen == {f"sample {i}".encode() * (i + 1) for i in range(40) if i != 7}
    info = daemon.command("dataset", "info", name)
    assert re.search(r"quarantined +1 block, 2 wrong reads of the remote\n +07.txt, 64 B from offset 0", info)
    connection = UnixConnection(daemon.state / "admin.sock")
    connection.request("GET", "/metrics")
    metrics = connection.getresponse().read().decode()
    connection.close()
    assert f'larder_dataset_quarantined_blocks{{dataset="{name}"}} 1' in metrics


def test_verify_finds_damaged_and_repaired_blocks(
    daemon: Any, add: Callable[..., str], tree: pathlib.Path
) -> None:
    name = add(tree, "--checksum")
    good = (tree / "09.txt").read_bytes()
    before = (tree / "09.txt").stat()
    spoil(tree / "09.txt")
    found = daemon.try_command("dataset", "verify", name, "--remote")
    assert found.returncode == 1 and "blocks corrupt 1" in found.stdout
    assert "note: 09.txt, 80 B from offset 0: corrupt at the remote" in found.stdout
    assert re.search(r"quarantined +1 block", daemon.command("dataset", "info", name))
    (tree / "09.txt").write_bytes(good)
    os.utime(tree / "09.txt", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert "blocks corrupt 0" in daemon.command("dataset", "verify", name, "--remote")
    assert re.search(r"quarantined +0 blocks", daemon.command("dataset", "info", name))
