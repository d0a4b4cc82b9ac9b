"""docs/slurm.md as an administrator follows it: runs each command on a real Slurm, with directories of this test."""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Iterator

import page
import pytest
from servers import ServerProgram

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a Slurm for several users")
USER = 65534
RESTART = "systemctl restart munge slurmctld slurmd"
RESTART_CONTROLLER = "systemctl restart slurmctld"
# Blocks that are not run here, by their first words, with their reasons.
ELSEWHERE = {
    "apt-get install": "tools/install-packages test does it",
    "mknod": "the tests' Slurm has files of its own that stand for GPUs",
    "#BB_LUA larder": "see test_first_line_is_read",
}


class Machine:
    """Directories that stand for those of the page, and the processes that the page starts."""

    def __init__(self, root: pathlib.Path, programs: pathlib.Path, repository: pathlib.Path) -> None:
        self.root = root
        self.home = root / "home"
        self.home.mkdir()
        os.chown(self.home, USER, USER)
        self._places = {
            "/usr/share/larder/slurm/prolog": f"{root}/prolog",
            "/usr/share/larder/slurm/epilog": f"{root}/epilog",
            "/usr/share/larder/slurm/task_prolog": f"{root}/task_prolog",
            "/usr/share/larder/slurm": f"{repository}/scheduler/engines/slurm",
            "/etc/larder": f"{root}/etc-larder",
            "/etc/slurm": f"{root}/etc-slurm",
            # A busy machine takes longer to start a program than slurmctld should wait for one.
            'socket = "/srv/demo': f'limit = "10 s"\nsocket = "{root}/demo',
            "/srv/demo": f"{root}/demo",
            # A new allocator gives nodes no plan for as long as a lease lasts.
            "larder-allocator --state": "larder-allocator --lease '4 s' --state",
        }
        path = f"{programs}:{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("LARDER_", "SLURM_"))}
        self.environment = kept | {
            "PATH": path, "HOME": str(self.home), "LARDER_SLURM_CONFIG": f"{root}/etc-larder/slurm.toml",
            "SLURM_CONF": f"{root}/slurm/etc/slurm.conf",
        }  # fmt: skip
        for name in ("prolog", "epilog", "task_prolog"):  # slurmd gives them an environment of its own
            (root / name).write_text(
                f"#!/bin/sh\nexport PATH={path} LARDER_SLURM_CONFIG={root}/etc-larder/slurm.toml\n"
                f"exec {repository}/scheduler/engines/slurm/{name}\n"
            )
            (root / name).chmod(0o755)
        self._stack = contextlib.ExitStack()

    def local(self, text: str) -> str:
        for shown, place in self._places.items():
            text = text.replace(shown, place)
        return text

    def run(self, command: str, user: int = 0) -> page.Ran:
        environment = dict(self.environment)
        if user:
            del environment["LARDER_SLURM_CONFIG"]
        ran = subprocess.run(
            ["bash", "-c", self.local(command)], cwd=self.home if user else self.root, env=environment, user=user, group=user,
            extra_groups=[], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300,
        )  # fmt: skip
        output = ran.stdout
        for shown, place in self._places.items():
            output = output.replace(place, shown)
        return page.Ran(ran.returncode, output)

    def start(self, command: str) -> None:
        """Starts a server of the page. It ends with this machine."""
        command = self.local(command.removesuffix("&"))
        with open(self.root / "servers.log", "ab") as log:
            server = subprocess.Popen(["bash", "-c", f"exec {command}"], env=self.environment, stdout=log, stderr=log)
        self._stack.callback(server.wait, 60)
        self._stack.callback(server.terminate)

    def start_slurm(self) -> None:
        (self.root / "slurm").mkdir()
        self.slurm = ServerProgram("slurm.py", self.root / "slurm", "--etc", self.root / "etc-slurm", environment=self.environment)
        self._stack.callback(self.slurm.stop)
        self._conf = (self.root / "etc-slurm" / "slurm.conf").read_text()

    def restart_controller(self) -> None:
        """Takes up what the page has added to /etc/slurm."""
        (self.root / "slurm" / "etc" / "job_submit.lua").write_bytes((self.root / "etc-slurm" / "job_submit.lua").read_bytes())
        added = (self.root / "etc-slurm" / "slurm.conf").read_text().removeprefix(self._conf)
        self._conf += added
        with open(self.root / "slurm" / "etc" / "slurm.conf", "a") as conf:
            conf.write(added)
        self.slurm.ask({"do": "restart"})

    def until(self, command: str) -> None:
        end = time.monotonic() + 300
        while self.run(command).status != 0:
            assert time.monotonic() < end, f"{command}\n{(self.root / 'servers.log').read_text()[-4000:]}"
            time.sleep(0.05)

    def stop(self) -> None:
        self._stack.close()


@pytest.fixture(scope="module")
def machine(open_directory: pathlib.Path, larder_bin: pathlib.Path, repository: pathlib.Path) -> Iterator[Machine]:
    started = Machine(open_directory, larder_bin, repository)
    yield started
    started.stop()


@pytest.fixture(scope="module")
def walk(machine: Machine, repository: pathlib.Path) -> dict[page.Command, page.Ran]:
    ran: dict[page.Command, page.Ran] = {}
    user = 0
    for step in page.commands(repository / "docs" / "slurm.md"):
        if step.text.startswith("cat >job.sh"):
            machine.until("larder-slurm status | grep -q ^imagenet")  # the daemon reports once a second
            user = USER
        if "job_submit.lua" in step.text or step.text.startswith("cat >>/etc"):
            user = 0
        if step.text.startswith("cat >train.sh"):
            user = USER
        if step.text.endswith("job show slurm-4"):
            machine.until(f"{step.text} | grep -q '^state *succeeded'")  # Larder looks at Slurm's jobs now and then
        if step.text.endswith("&"):
            machine.start(step.text)
            machine.until(f"test -S {'/srv/demo/n1/admin.sock' if 'larderd' in step.text else '/srv/demo/allocator/allocator.sock'}")
        elif step.text == RESTART:
            machine.start_slurm()
        elif step.text == RESTART_CONTROLLER:
            machine.restart_controller()
        else:
            # The allocator's socket is the administrator's.
            ran[step] = machine.run(step.text, 0 if step.text.startswith("larder ") else user)
    return ran


def test_every_block_is_run(repository: pathlib.Path) -> None:
    known = {step.line for step in page.commands(repository / "docs" / "slurm.md")}
    left_out = [lines[0] for first, lines in page.blocks(repository / "docs" / "slurm.md") if first not in known]
    assert [line for line in left_out if not line.startswith(tuple(ELSEWHERE))] == []
    assert len(left_out) == len(ELSEWHERE)


def test_every_command_does_what_the_page_says(walk: dict[page.Command, page.Ran]) -> None:
    assert len(walk) > 15
    for step, ran in walk.items():
        assert ran.status == 0, f"line {step.line}: {step.text}\n{ran.output}"
        if step.shown:
            assert page.shapes("\n".join(step.shown)) == page.shapes(ran.output), f"line {step.line}: {step.text}\n{ran.output}"


def test_first_line_is_read(walk: dict[page.Command, page.Ran], machine: Machine, repository: pathlib.Path) -> None:
    first = next(lines for _, lines in page.blocks(repository / "docs" / "slurm.md") if lines[0].startswith("#BB_LUA"))
    (machine.root / "first.sh").write_text("\n".join(["#!/bin/bash", *first, "train", ""]))
    answer = machine.run(f"larder-slurm check {machine.root}/first.sh").output
    assert answer.startswith('error\ncache=200.00 GiB is more than the nodes with dataset "imagenet" have: 256.00 MiB')


def test_example_config_is_good_and_shows_every_key(
    walk: dict[page.Command, page.Ran], machine: Machine, repository: pathlib.Path
) -> None:
    example = (repository / "tools" / "larder-slurm.example.toml").read_text()
    every = "\n".join(line.removeprefix("# ") if " = " in line else line for line in example.splitlines())
    for name, text in (("example", example), ("every", every)):
        (machine.root / name).write_text(text)
        checked = machine.run(f"larder-slurm --config {machine.root}/{name} environment 7 {machine.home}/job.sh")
        assert checked.status == 0, checked.output
        assert "LARDER_SOCKET=/run/larder/larderd.sock\n" in checked.output
