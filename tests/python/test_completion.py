"""Completion in real shells, and the man pages."""

from __future__ import annotations

import os
import pathlib
import pty
import re
import select
import subprocess
import time
from collections.abc import Callable, Sequence

import pytest
from conftest import Daemon, Data

SHELLS = ("bash", "zsh", "fish")
# A shell that has not answered by then never will.
PATIENCE_S = 60

# With them the shell prints a completed line's words, one in each line, instead of running the line.
SET_UP = {
    "bash": "PS1='$ '; . /usr/share/bash-completion/bash_completion; . {script}",
    "zsh": "PS1='$ '; autoload -Uz compinit; compinit -D -u; . {script}",
}


class Terminal:
    """An interactive shell. Keys are typed, and files say what came of them."""

    def __init__(self, shell: str, place: pathlib.Path, environment: dict[str, str]) -> None:
        self._place = place
        words = {"bash": ["bash", "--norc", "--noprofile", "-i"], "zsh": ["zsh", "-f", "-i"]}[shell]
        pid, self._fd = pty.fork()
        if pid == 0:
            os.chdir(place)
            os.execvpe(words[0], words, environment)
        self._pid = pid

    def _drain(self, wait_s: float = 0.05) -> bytes:
        got = b""
        while select.select([self._fd], [], [], wait_s)[0]:
            got += os.read(self._fd, 65536)
        return got

    def type(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def run(self, line: str) -> None:
        """Types a line, and waits until the shell has run it."""
        done = self._place / f"done{time.monotonic_ns()}"
        self.type(f"{line}; : > {done}\n")
        self._wait_for(done)

    def _wait_for(self, path: pathlib.Path) -> None:
        shown = b""
        deadline = time.monotonic() + PATIENCE_S
        while not path.exists():
            shown += self._drain()
            assert time.monotonic() < deadline, shown.decode(errors="replace")

    def complete(self, line: str) -> list[str]:
        """Types the beginning of a line and Tab. Returns the words of the line that came of it."""
        words, done = self._place / "words", self._place / f"done{time.monotonic_ns()}"
        self.type(f"{line}\t")
        self.type(f"\x01keep {words} \x05; : > {done}\n")  # Ctrl-A, Ctrl-E
        self._wait_for(done)
        return words.read_text().splitlines()

    def close(self) -> None:
        self.type("\x03\x04")
        os.close(self._fd)
        os.waitpid(self._pid, 0)


def complete_in_fish(line: str, script: pathlib.Path, place: pathlib.Path, environment: dict[str, str]) -> list[str]:
    """The words of the line, with its last word completed by the only candidate."""
    code = f"source {script}; complete -C '{line}'"
    ran = subprocess.run(
        ["fish", "--no-config", "-c", code], cwd=place, env=environment, capture_output=True, text=True, timeout=PATIENCE_S
    )
    found = [candidate.partition("\t")[0] for candidate in ran.stdout.splitlines()]
    assert len(found) == 1, (line, found, ran.stderr)
    return [*line.split()[: -1 if not line.endswith(" ") else None], *found]


@pytest.fixture(scope="module")
def scripts(larder_bin: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, pathlib.Path]:
    place = tmp_path_factory.mktemp("scripts")
    made = {}
    for shell in SHELLS:
        made[shell] = place / shell
        made[shell].write_text(subprocess.check_output([larder_bin / "larder", "completion", shell], text=True))
    return made


@pytest.fixture
def in_shell(
    larder_bin: pathlib.Path, scripts: dict[str, pathlib.Path], daemon: Daemon, tmp_path: pathlib.Path
) -> Callable[[str, Sequence[str]], list[list[str]]]:
    """Completes lines in a shell."""
    environment = {
        "PATH": f"{larder_bin}:{os.environ['PATH']}", "HOME": str(tmp_path), "TERM": "dumb", "LC_ALL": "C.UTF-8",
        "LARDER_ADMIN_SOCKET": str(daemon.state / "admin.sock"),
    }  # fmt: skip

    def complete(shell: str, lines: Sequence[str]) -> list[list[str]]:
        if shell == "fish":
            return [complete_in_fish(line, scripts[shell], tmp_path, environment) for line in lines]
        terminal = Terminal(shell, tmp_path, environment)
        try:
            terminal.run(SET_UP[shell].format(script=scripts[shell]))
            terminal.run("keep() { local file=$1; shift; printf '%s\\n' \"$@\" > $file; }")
            return [terminal.complete(line) for line in lines]
        finally:
            terminal.close()

    return complete


@pytest.mark.parametrize("shell", SHELLS)
def test_shell_completes_commands_options_and_values(
    in_shell: Callable[[str, Sequence[str]], list[list[str]]], shell: str
) -> None:
    lines = {
        "larder data": ["larder", "dataset"],
        "larder dataset inf": ["larder", "dataset", "info"],
        "larder --json dataset inf": ["larder", "--json", "dataset", "info"],
        "larder dataset add --addres": ["larder", "dataset", "add", "--addressing"],
        "larder dataset add --addressing pa": ["larder", "dataset", "add", "--addressing", "path"],
        "larder dataset add --addressing=pa": ["larder", "dataset", "add", "--addressing=path"],
        "larder simulate --throughput-t": ["larder", "simulate", "--throughput-table"],
        "larder bench comp": ["larder", "bench", "compression"],
        "larderd --admin-socket-m": ["larderd", "--admin-socket-mode"],
        "larder-allocator --move-s": ["larder-allocator", "--move-state-to-etcd"],
    }
    assert in_shell(shell, list(lines)) == list(lines.values())


@pytest.mark.parametrize("shell", SHELLS)
def test_shell_completes_names_of_datasets_and_files(
    in_shell: Callable[[str, Sequence[str]], list[list[str]]], shell: str, raw: Data, tmp_path: pathlib.Path
) -> None:
    raw.daemon.command("dataset", "add", "onlyone", raw.directory)
    (tmp_path / "table.csv").touch()
    try:
        lines = {
            "larder dataset info onlyo": ["larder", "dataset", "info", "onlyone"],
            "larder quota set onlyo": ["larder", "quota", "set", "onlyone"],
            "larder dataset add new tab": ["larder", "dataset", "add", "new", "table.csv"],
            "larder dataset pack --ca-file=tab": ["larder", "dataset", "pack", "--ca-file=table.csv"],
        }
        assert in_shell(shell, list(lines)) == list(lines.values())
    finally:
        raw.daemon.command("dataset", "rm", "onlyone")


def test_program_offers_nothing_where_nothing_fits(larder_bin: pathlib.Path, tmp_path: pathlib.Path) -> None:
    def offered(*words: str) -> list[str]:
        ran = subprocess.run(
            [larder_bin / "larder", "__complete", *words], env={"HOME": str(tmp_path)}, capture_output=True, text=True
        )  # fmt: skip
        assert (ran.returncode, ran.stderr) == (0, "")
        return [line.partition("\t")[0] for line in ran.stdout.splitlines()]

    assert offered() == offered("nonsense", "") == offered("dataset", "info", "") == []
    assert offered("dataset", "add", "--quota-memory", "") == [], "a size is no file"
    assert "--json" not in offered("--json", "status", "--")
    assert "--endpoint" in offered("dataset", "add", "name", "/a/path", "--")
    assert offered("dataset", "add", "--", "name", "--") == [":files"]
    assert offered("dataset", "remove", "") == offered("dataset", "rm", "")


def test_unknown_shell_and_page_say_what_there_is(larder_bin: pathlib.Path) -> None:
    for words, says in ((["completion", "tcsh"], "bash"), (["man", "dataset", "nonsense"], "larder dataset --help")):
        ran = subprocess.run([larder_bin / "larder", *words], capture_output=True, text=True)
        assert (ran.returncode, says in ran.stderr) == (2, True), ran.stderr


@pytest.fixture(scope="module")
def manual(larder_bin: pathlib.Path) -> pathlib.Path:
    """The pages that the build has made, for installation."""
    return larder_bin.parent / "manual"


def test_every_command_has_a_page_that_groff_and_man_accept(manual: pathlib.Path) -> None:
    pages = sorted([*manual.glob("man1/*"), *manual.glob("man8/*")])
    names = {page.name for page in pages}
    assert {"larder.1", "larder-dataset-add.1", "larder-simulate-capacity.1", "larderd.8", "larder-slurm-place.8"} <= names
    for page in pages:
        checked = subprocess.run(["groff", "-ww", "-man", "-Tutf8", "-z", page], capture_output=True, text=True)
        assert (checked.returncode, checked.stderr) == (0, ""), page
        referred = set(re.findall(r"\\fB(larder[a-z\\-]*)\\fR\((\d)\)", page.read_text()))
        assert {f"{name}.{section}".replace("\\", "") for name, section in referred} <= names, page
    shown = subprocess.run(
        ["man", "--warnings", "-l", *pages], env={**os.environ, "MANWIDTH": "100", "LC_ALL": "C.UTF-8"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert shown.stderr == ""
    whatis = subprocess.run(["lexgrog", *pages], capture_output=True, text=True)
    assert whatis.returncode == 0, "man -k finds each: " + whatis.stdout


def test_page_says_what_help_says(larder_bin: pathlib.Path, manual: pathlib.Path) -> None:
    for words in (["dataset", "add"], ["job", "submit"], ["simulate"], ["bench", "joint"]):
        page = subprocess.run([larder_bin / "larder", "man", *words], capture_output=True, text=True, check=True).stdout
        assert page == (manual / "man1" / f"larder-{'-'.join(words)}.1").read_text()
        help_text = subprocess.run([larder_bin / "larder", *words, "--help"], capture_output=True, text=True).stdout
        options = set(re.findall(r"^\s+(?:-\w,)?(--[a-z-]+)", help_text, re.MULTILINE))
        assert options and options <= set(re.findall(r"--[a-z-]+", page.replace("\\-", "-"))), words
