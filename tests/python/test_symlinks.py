"""Symbolic links in a dataset's directory do not lead the daemon to other files."""

from __future__ import annotations

import os
import pathlib

import larder
import pytest
from conftest import Daemon
from http_api import AS_NOBODY

TOKEN = b"the secret of all peers\n"


@pytest.fixture
def token(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "peers.token"
    path.write_bytes(TOKEN)
    path.chmod(0o600)
    return path


@pytest.fixture
def files(tmp_path: pathlib.Path) -> pathlib.Path:
    root = tmp_path / "files"
    root.mkdir()
    (root / "a.bin").write_bytes(b"a" * 100)
    (root / "x.bin").write_bytes(b"x" * len(TOKEN))
    return root


def read(daemon: Daemon, name: str) -> list[bytes]:
    with larder.Dataset(name, socket=daemon.socket) as dataset:
        return [bytes(dataset[i]["bin"]) for i in range(len(dataset))]


def test_link_to_a_secret_is_refused_when_the_dataset_is_added(
    own_daemon: Daemon, files: pathlib.Path, token: pathlib.Path
) -> None:
    (files / "x.bin").unlink()
    (files / "x.bin").symlink_to(token)
    for more in ([], ["--dry-run"]):
        refused = own_daemon.try_command("dataset", "add", "pets", files, *more)
        assert refused.returncode != 0
        assert f"{files}/x.bin" in refused.stderr and "--follow-symlinks" in refused.stderr, refused.stderr
    (files / "x.bin").unlink()
    (files / "x.bin").symlink_to("a.bin")
    own_daemon.command("dataset", "add", "pets", files)
    assert read(own_daemon, "pets") == [b"a" * 100] * 2


def test_link_to_a_secret_that_comes_after_indexing_is_not_read(
    own_daemon: Daemon, files: pathlib.Path, token: pathlib.Path
) -> None:
    own_daemon.command("dataset", "add", "pets", files)
    written = (files / "x.bin").stat()
    os.utime(token, ns=(written.st_atime_ns, written.st_mtime_ns))
    (files / "x.bin").unlink()
    (files / "x.bin").symlink_to(token)
    with pytest.raises(larder.Error, match=r"x\.bin.*--follow-symlinks"):
        read(own_daemon, "pets")
    refused = own_daemon.try_command("dataset", "index", "pets")
    assert refused.returncode != 0 and f"{files}/x.bin" in refused.stderr


def test_following_links_is_for_root_and_the_user_of_the_daemon_and_is_kept(
    own_daemon: Daemon, files: pathlib.Path, token: pathlib.Path, larder_bin: pathlib.Path
) -> None:
    (files / "x.bin").unlink()
    (files / "x.bin").symlink_to(token)
    add = ["dataset", "add", "pets", files, "--follow-symlinks"]
    if os.geteuid() == 0:
        by_root = own_daemon._command
        own_daemon._command = lambda *arguments: [*AS_NOBODY, *by_root(*arguments)]  # type: ignore[method-assign]
        refused = own_daemon.try_command(*add)
        own_daemon._command = by_root  # type: ignore[method-assign]
        assert refused.returncode != 0 and "only for root and the daemon's user" in refused.stderr, refused.stderr
    own_daemon.command(*add)
    assert "follows symbolic links" in own_daemon.command("dataset", "info", "pets")
    assert read(own_daemon, "pets") == [b"a" * 100, TOKEN]
    (files / "y.bin").symlink_to(token)
    own_daemon.command("dataset", "index", "pets")
    own_daemon.end()
    own_daemon.start()
    assert read(own_daemon, "pets") == [b"a" * 100, TOKEN, TOKEN]


def test_link_of_another_user_does_not_lead_to_another_directory(
    own_daemon: Daemon, files: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    way = tmp_path / "way"
    way.symlink_to(files)
    own_daemon.command("dataset", "add", "pets", f"file://{way}")  # the command resolves the links of a plain path
    assert len(read(own_daemon, "pets")) == 2
    if os.geteuid() != 0:
        pytest.skip("only root can give the link to another user")
    os.chown(way, 65534, 65534, follow_symlinks=False)
    refused = own_daemon.try_command("dataset", "index", "pets")
    assert refused.returncode != 0 and f"the symbolic link {way} to {files}" in refused.stderr, refused.stderr
    own_daemon.command("dataset", "add", "named", way)
    assert own_daemon.try_command("dataset", "add", "again", f"file://{way}").returncode != 0
