"""`larder up -d` and `larder down`: which processes they start and end."""

from __future__ import annotations

import fcntl
import json
import os
import pathlib
import subprocess

import pytest
from program import hold_port

MIB = 1 << 20


class Background:
    def __init__(self, programs: pathlib.Path, state: pathlib.Path) -> None:
        self.programs = programs
        self.state = state

    def run(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        words = [self.programs / "larder", *map(str, arguments), "--state", self.state]
        return subprocess.run(words, capture_output=True, text=True, timeout=120)

    def up(self, *options: str) -> subprocess.CompletedProcess[str]:
        return self.run("up", *options, "--memory", "8 MiB", "--disk", "16 MiB")


@pytest.mark.parametrize("detach", ["-d", "--detach", "--detach=true", "--detach=1"])
def test_one_process_is_started_and_ended(larder_bin: pathlib.Path, tmp_path: pathlib.Path, detach: str) -> None:
    background = Background(larder_bin, tmp_path / "state")
    started = background.up(detach, "--json")
    ended = background.run("down")
    says = json.loads(started.stdout)
    assert (says["memory_bytes"], says["disk_bytes"]) == (8 * MIB, 16 * MIB)
    assert says["log"] == f"{background.state}/up.log"
    assert ended.stdout == f"larder daemon is down (it was pid {says['pid']})\n"


def test_up_shows_sizes_and_how_to_stop_it(larder_bin: pathlib.Path, tmp_path: pathlib.Path) -> None:
    background = Background(larder_bin, tmp_path / "state")
    shown = background.up("-d").stdout
    assert background.run("down").returncode == 0
    assert "8.00 MiB" in shown and "16.00 MiB" in shown
    assert f"; larder down --state {background.state} stops it\n" in shown and "Ctrl-C" not in shown


def test_up_names_its_page_and_who_may_see_it(larder_bin: pathlib.Path, tmp_path: pathlib.Path) -> None:
    background = Background(larder_bin, tmp_path / "state")

    def shown(*options: str) -> str:
        started = background.up("-d", *options)
        assert background.run("down").returncode == 0, started.stderr
        return started.stdout

    with hold_port() as held:
        address = f"127.0.0.1:{held.getsockname()[1]}"
        listen = ("--metrics-listen", address)
        assert f"  page                 http://{address}/, for nobody: give --page.anyone-reads true" in shown(*listen)
        assert f"  page                 http://{address}/\n" in shown(*listen, "--page.anyone-reads", "true")
        assert json.loads(shown(*listen, "--json"))["page"] == f"http://{address}/"
    assert "  page" not in shown()


def test_down_ends_the_daemon_that_other_commands_ask(larder_bin: pathlib.Path, tmp_path: pathlib.Path) -> None:
    other, asked = Background(larder_bin, tmp_path / "other"), Background(larder_bin, tmp_path / "asked")
    pids = [json.loads(background.up("-d", "--json").stdout)["pid"] for background in (other, asked)]
    environment = {**os.environ, "HOME": str(tmp_path), "LARDER_ADMIN_SOCKET": f"{asked.state}/admin.sock"}

    def down(*options: object) -> str:
        words = [larder_bin / "larder", "down", *map(str, options)]
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=True, timeout=120).stdout

    try:
        assert down() == f"larder daemon is down (it was pid {pids[1]})\n"
        assert down() == f"no larder up runs on {asked.state}; --state names another state directory\n"
        assert down("--state-directory", other.state) == f"larder daemon is down (it was pid {pids[0]})\n"
    finally:
        for background in (other, asked):
            background.run("down")


def test_down_sends_no_signal_to_a_process_that_does_not_hold_the_lock(
    larder_bin: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    background = Background(larder_bin, tmp_path)
    # As with a `larder up` in a container that shares the directory: the number is another process's here.
    with open(tmp_path / "up.lock", "w") as lock, subprocess.Popen(["sleep", "60"]) as other:
        try:
            print(other.pid, file=lock, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
            refused = background.run("down", "--timeout", "1")
            assert other.poll() is None, "it was ended"
            assert refused.returncode == 1
            assert f"does not belong to process {other.pid} of this machine" in refused.stderr
            assert "run larder down there" in refused.stderr
        finally:
            other.kill()


def test_refused_state_directory_says_what_to_give(larder_bin: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").touch()
    refused = Background(larder_bin, tmp_path / "file" / "state").up("-d")
    assert refused.returncode == 4
    assert f"create {tmp_path}/file/state: Not a directory; --state names another directory" in refused.stderr
