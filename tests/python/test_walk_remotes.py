"""docs/remotes.md as an operator follows it: runs its commands against servers of this test and checks its table of
options."""

from __future__ import annotations

import io
import pathlib
import re
import subprocess
import tarfile
from collections.abc import Callable
from typing import Any

import page
import pytest
from remote_sources import environment
from servers import S3, Azure, Gcs, Nginx


@pytest.fixture
def nginx(serve_directory: Callable[..., Nginx], tmp_path: pathlib.Path) -> Nginx:
    (tmp_path / "clips").mkdir()
    (tmp_path / "pages").mkdir()
    for shard in range(147):
        with tarfile.open(tmp_path / "clips" / f"{shard:03}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            member = tarfile.TarInfo(f"{shard:03}.txt")
            member.size = 1000
            tar.addfile(member, io.BytesIO(bytes([shard]) * 1000))
    (tmp_path / "pages" / "1.html").write_text("one")
    (tmp_path / "pages" / "all.txt").write_text("1.html\n")
    return serve_directory(tmp_path)


def test_every_command_of_the_page_works(
    repository: pathlib.Path, start_daemon: Callable[..., Any], nginx: Nginx, own_s3: S3, gcs: Gcs, azure: Azure,
    tmp_path: pathlib.Path,
) -> None:  # fmt: skip
    stores: list[tuple[S3 | Gcs | Azure, str]] = [(own_s3, "birds/v2"), (gcs, "fish"), (azure, "trees")]
    settings: dict[str, str] = {}
    for store, prefix in stores:
        store.client.create_bucket("training")
        for i in range(3):
            store.client.put("training", f"{prefix}/{i}.png", b"%d" % i)
        settings |= store.settings()
    daemon = start_daemon("--remote.ca", str(nginx.authority), environment=environment(tmp_path, **settings))
    lines, section = [lines for _, lines in page.blocks(repository / "docs" / "remotes.md")]
    assert len(lines) == 5
    (tmp_path / ".azure").mkdir()
    of_page = re.compile("DefaultEndpointsProtocol=.*")
    of_azure = settings["AZURE_STORAGE_CONNECTION_STRING"]
    (tmp_path / ".azure" / "config").write_text(of_page.sub(of_azure, "\n".join(section) + "\n"))
    for line in [*lines, "larder dataset add oaks az://training/trees --profile training"]:
        command = line.replace("https://data.example.org", nginx.https).removeprefix("larder")
        larder = f"{daemon.programs}/larder --admin-socket {daemon.state}/admin.sock"
        ran = subprocess.run(["bash", "-c", larder + command], capture_output=True, text=True)
        assert ran.returncode == 0, f"{line}\n{ran.stdout}{ran.stderr}"
    listed = daemon.command("dataset", "ls")
    assert all(re.search(rf"{name} +raw +sample +3 ", listed) for name in ("birds", "fish", "trees", "oaks"))
    assert re.search(r"clips +webdataset +sample +147 ", listed)
    assert re.search(r"pages +raw +sample +1 ", listed)


def test_options_of_the_page_match_the_programs(repository: pathlib.Path, larder_bin: pathlib.Path) -> None:
    rows = re.findall(r"^\| `(--\S+)[^|]*` \| `(\w+)` \|", (repository / "docs" / "remotes.md").read_text().replace("\\|", "/"), re.MULTILINE)
    assert len(rows) == 12
    example = (repository / "tools" / "larderd.example.toml").read_text()
    for command in ("add", "pack"):
        text = subprocess.run([larder_bin / "larder", "dataset", command, "--help"], capture_output=True, text=True).stdout
        assert all(re.search(rf"{option}\b", text) for option, _ in rows), text
    assert all(re.search(rf"^#{key} = ", example, re.MULTILINE) for _, key in rows)
