"""docs/operators.md as an operator follows it: runs each command unchanged, with directories of this test."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator

import larder
import page
import pytest
from PIL import Image

# Commands that are not run here, with their reasons.
ELSEWHERE = {
    "tools/install-packages build": "installs packages; tools/test begins with it",
    "cmake --preset release && cmake --build --preset release": "takes minutes; tools/quickstart does it",
    "adduser --system --group larder": "changes the machine",
    "systemctl enable --now larderd": "changes the machine; test_systemd.py tests the unit",
}
EXAMPLE_SECTIONS = ("[job.resnet50]", "[dataset.imagenet]")


@dataclasses.dataclass
class Machine:
    """Directories that stand for those of the page, and the shell's environment there."""

    root: pathlib.Path
    programs: pathlib.Path
    environment: dict[str, str]

    def with_local_paths(self, text: str) -> str:
        places = {
            "build/release": str(self.programs.parent),
            "--prefix /usr": f"--prefix {self.root}/usr",
            "/usr/share/larder": f"{self.root}/usr/share/larder",
            "/etc/larder": f"{self.root}/etc/larder",
            "/run/larder": f"{self.root}/run",
            "/var/lib/larder": f"{self.root}/state",
            "/data/": f"{self.root}/data/",
            "/mnt/nfs/": f"{self.root}/nfs/",
            "127.0.0.1:9464": "127.0.0.1:0",
        }
        for page_path, local_path in places.items():
            text = text.replace(page_path, local_path)
        return text

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", self.with_local_paths(command)],
            cwd=self.root, env=self.environment, capture_output=True, text=True,
        )  # fmt: skip

    def start(self, command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", "-c", f"exec {self.with_local_paths(command)}"],
            cwd=self.root, env=self.environment, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def wait_until_serving(self, process: subprocess.Popen[str], exports: str = "true") -> None:
        """Waits until a daemon answers. The test fails if the daemon ends instead."""
        while self.run(f"{exports}; larder status").returncode != 0:
            assert process.poll() is None, "it ended"
            time.sleep(0.05)


@pytest.fixture
def machine(larder_bin: pathlib.Path, tmp_path: pathlib.Path) -> Iterator[Machine]:
    for i in range(20):
        place = tmp_path / "data" / "pets" / ("cat" if i % 2 else "dog")
        place.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8 + i, 30), (i, 2 * i, 3 * i)).save(place / f"{i:02}.png")
    (tmp_path / "data" / "photos").symlink_to("pets")
    (tmp_path / "data" / "texts").mkdir()
    for i in range(20):
        (tmp_path / "data" / "texts" / f"{i}.txt").write_text(f"the same words {i} " * 2000)
    (tmp_path / "nfs" / "shards").mkdir(parents=True)
    for place in ("etc/larder", "run"):
        (tmp_path / place).mkdir(parents=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LARDER_", "XDG_"))}
    path = f"{larder_bin}:{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    machine = Machine(tmp_path, larder_bin, kept | {"HOME": str(tmp_path), "PATH": path})
    packed = machine.run("larder dataset pack data/pets packed && cp packed/*.tar nfs/shards")
    assert packed.returncode == 0, packed.stderr
    yield machine
    machine.run("larder down")


def commands(lines: list[str]) -> list[str]:
    """The lines without their trailing comments."""
    return [command for line in lines if (command := re.sub(r"\s+# .*$", "", line).strip())]


def catches(process: subprocess.Popen[str], number: signal.Signals) -> bool:
    caught = re.search(r"^SigCgt:\s+(\w+)$", pathlib.Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)


def end(process: subprocess.Popen[str], number: signal.Signals) -> None:
    while not catches(process, number):  # a daemon answers a moment before it handles signals
        time.sleep(0.01)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 0, process.args


def edit_example(config: pathlib.Path, machine: Machine) -> None:
    """Edits the config as the page says: without the example's dataset and job, and with sizes for this machine."""
    sections = re.split(r"^(?=\[)", machine.with_local_paths(config.read_text()), flags=re.MULTILINE)
    kept = [section for section in sections if not section.startswith(EXAMPLE_SECTIONS)]
    assert len(kept) == len(sections) - len(EXAMPLE_SECTIONS)
    config.write_text("".join(kept).replace('"1 GiB"', '"64 MiB"').replace('"16 GiB"', '"64 MiB"'))


def test_every_command_of_the_page_works(machine: Machine, repository: pathlib.Path) -> None:
    config = machine.root / "etc" / "larder" / "larderd.toml"
    socket = machine.root / ".local" / "share" / "larder" / "larderd.sock"
    service: subprocess.Popen[str] | None = None
    loader: larder.Loader | None = None
    unseen = set(ELSEWHERE)
    for _, lines in page.blocks(repository / "docs" / "operators.md"):
        if lines[0].startswith(("find_package", "[peers]")):
            continue  # tested below
        if lines[0].startswith("larder dataset"):
            assert machine.run("larder status || larder up -d").returncode == 0  # the page shows `larder down` before
        if lines[0] == "larder jobs":
            loader = larder.Loader("shards", job="resnet50", socket=str(socket), batch_size=4)
            next(iter(loader))
        if lines[0].startswith("export"):
            assert service is not None
            exports = "; ".join(commands(lines))
            machine.wait_until_serving(service, exports)
            assert "no datasets yet" in machine.run(f"{exports}; larder dataset ls").stdout
            end(service, signal.SIGTERM)
            continue
        for command in commands(lines):
            if command in ELSEWHERE:
                unseen.remove(command)
            elif command == "larder up":
                up = machine.start(command)
                machine.wait_until_serving(up)
                end(up, signal.SIGINT)
            elif command.startswith("larderd --config"):
                service = machine.start(command)
            elif command == "larder top":
                top = machine.start(command)
                assert top.stdout is not None and "DATASET" in top.stdout.readline()
                end(top, signal.SIGINT)
            else:
                ran = machine.run(command)
                assert ran.returncode == 0, f"{command}\n{ran.stdout}{ran.stderr}"
                if command.startswith("install -D"):
                    edit_example(config, machine)
    assert unseen == set(), "these are not on the page any more"
    assert loader is not None
    loader.close()


def test_program_links_the_loader_as_the_page_says(repository: pathlib.Path) -> None:
    """The page's lines must match the example, which test_installation.py builds."""
    (lines,) = [lines for _, lines in page.blocks(repository / "docs" / "operators.md") if "find_package" in lines[0]]
    example = repository / "loader" / "examples"
    for command in commands(lines):
        assert command.replace("train ", "read-epochs ") in (example / "CMakeLists.txt").read_text()
    assert '#include "loader/larder.h"' in (example / "read_epochs.cc").read_text()


def test_peers_are_set_up_as_the_page_says(machine: Machine, repository: pathlib.Path) -> None:
    text = (repository / "docs" / "operators.md").read_text()
    (lines,) = [lines for _, lines in page.blocks(repository / "docs" / "operators.md") if lines[0] == "[peers]"]
    assert machine.run("openssl rand -hex 32 > /etc/larder/peers.token; chmod 600 /etc/larder/peers.token").returncode == 0
    others = re.search(r'`(others = "[^"]*")`', text)
    assert others is not None
    config = machine.root / "peers.toml"
    config.write_text(machine.with_local_paths("\n".join([*lines, others[1]])).replace(":7474\"\ntoken", ":0\"\ntoken"))
    assert tomllib.loads(config.read_text())["peers"].keys() == {"listen", "token_file", "others"}
    up = machine.start(f"larderd --config {config} --memory 8MiB --disk 0 --peers.endpoint http://node-1:7474")
    machine.wait_until_serving(up)
    # The daemon turns to its peers after it serves; the test's time limit ends a wait in vain.
    while not all(f"http://node-{i}:7474" in machine.run("larder status").stdout for i in (2, 3)):
        time.sleep(0.05)
    end(up, signal.SIGTERM)
