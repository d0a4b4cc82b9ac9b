"""`larder top` on a terminal: its width, and that q quits it."""

from __future__ import annotations

import fcntl
import json
import os
import pathlib
import pty
import re
import select
import struct
import subprocess
import termios
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from allocator_process import Allocator, node_report

LONG = "a-dataset-with-a-name-that-is-far-too-long-for-a-narrow-terminal"


class Terminal:
    """`larder top` in its own terminal. Tests can wait for its screen."""

    def __init__(self, command: list[str], columns: int, rows: int = 24) -> None:
        self.controller, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        # Starts a new session with this terminal, so that top runs in its foreground.
        self.process = subprocess.Popen(
            [*command, "top", "--interval", "0.1"], stdin=inside, stdout=inside, stderr=inside,
            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        self.inside = inside
        self.shown = ""

    def wait_for(self, pattern: str) -> str:
        """Waits for a complete screen that contains `pattern` and returns the latest one."""
        while True:
            screens = self.shown.split("\033[H")
            for screen in reversed(screens[1:-1]):
                text = re.sub(r"\033\[[0-9]*[JK]", "", screen).replace("\r\n", "\n")
                if re.search(pattern, text):
                    return text
            ready, _, _ = select.select([self.controller], [], [], 60)
            assert ready and len(self.shown) < 500_000, f"no {pattern!r} in {self.shown[-2000:]!r}"
            self.shown += os.read(self.controller, 65536).decode()

    def type(self, keys: bytes) -> None:
        os.write(self.controller, keys)

    def echoes(self) -> bool:
        return bool(termios.tcgetattr(self.inside)[3] & termios.ECHO)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.controller)
        os.close(self.inside)


@pytest.fixture(scope="module")
def crowded(start_daemon: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A daemon with a dataset that has a long name."""
    directory = tmp_path_factory.mktemp("images")
    (directory / "a.png").write_bytes(b"x" * 5000)
    daemon = start_daemon()
    daemon.command("dataset", "add", LONG, directory)
    return daemon


@pytest.fixture
def top(crowded: Any) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def start(columns: int, rows: int = 24) -> Terminal:
        opened.append(Terminal(crowded._command(), columns, rows))
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.close()


@pytest.mark.parametrize("columns", [40, 80])
def test_no_line_is_wider_than_the_terminal(top: Callable[..., Terminal], columns: int) -> None:
    screen = top(columns).wait_for("a-dataset")
    assert max(map(len, screen.splitlines())) <= columns, screen
    assert "…" in screen and "HITS" in screen and "REMOTE" in screen


def test_wide_terminal_shows_whole_names_and_all_columns(top: Callable[..., Terminal]) -> None:
    screen = top(200).wait_for(LONG)
    assert "TOTAL" in screen and "…" not in screen


def test_terminal_with_few_rows_does_not_scroll(top: Callable[..., Terminal]) -> None:
    assert len(top(80, rows=3).wait_for("DATASET").splitlines()) < 3


def test_q_ends_top_and_restores_the_terminal(top: Callable[..., Terminal]) -> None:
    terminal = top(80)
    terminal.wait_for("press q to quit")
    assert not terminal.echoes()
    terminal.type(b"xy")
    terminal.wait_for("DATASET")
    assert terminal.process.poll() is None
    terminal.type(b"q")
    assert terminal.process.wait(60) == 0
    assert terminal.echoes()


@pytest.fixture
def several(start_daemon: Callable[..., Any], tmp_path: pathlib.Path) -> Any:
    """A daemon with three datasets, of 1, 30 and 5 kB."""
    daemon = start_daemon()
    for name, size in (("ant", 1000), ("bee", 30_000), ("cat", 5000)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.png").write_bytes(b"x" * size)
        daemon.command("dataset", "add", name, tmp_path / name)
    return daemon


def test_keys_sort_and_filter(several: Any) -> None:
    terminal = Terminal(several._command(), 100)
    try:
        terminal.wait_for(r"ant (?s:.*)\nbee (?s:.*)\ncat ")
        terminal.type(b">>")
        terminal.wait_for(r"\nbee (?s:.*)\ncat (?s:.*)\nant (?s:.*)sort \(SIZE\)")
        terminal.type(b"r")
        terminal.wait_for(r"\nant (?s:.*)\ncat (?s:.*)\nbee (?s:.*)sort \(SIZE reversed\)")
        terminal.type(b"/q")
        assert "ant" not in terminal.wait_for(r"filter: q_")
        terminal.type(b"\x7fee\r")
        screen = terminal.wait_for(r"filter \(ee\)")
        assert "bee" in screen and "ant" not in screen and "cat" not in screen
        assert terminal.process.poll() is None, "the q was part of the filter"
        terminal.type(b"q")
        assert terminal.process.wait(60) == 0
    finally:
        terminal.close()


def test_options_sort_and_filter(several: Any) -> None:
    def names(*options: str) -> list[str]:
        shown = several.command("top", "--count", "1", "--interval", "0.1", *options)
        return [line.split()[0] for line in shown.splitlines() if line.startswith(("ant", "bee", "cat"))]

    assert names("--sort", "size") == ["bee", "cat", "ant"]
    assert names("--sort", "DATASET", "--reverse") == ["cat", "bee", "ant"]
    assert names("--sort", "SIZE", "--filter", "T") == ["cat", "ant"]
    for options, says in (
        (["--sort", "colour"], "--sort COLOUR is no column here: DATASET, SIZE,"),
        (["--sort", "f*"], "--sort f* is no column here"),
        (["--json", "--filter", "x"], "not for --json"),
    ):
        ran = several.try_command("top", "--count", "1", *options)
        assert (ran.returncode, says in ran.stderr) == (2, True), ran.stderr


def test_ctrl_c_ends_top_and_restores_the_terminal(top: Callable[..., Terminal]) -> None:
    terminal = top(80)
    terminal.wait_for("DATASET")
    terminal.type(b"\x03")
    assert terminal.process.wait(60) == 0
    assert terminal.echoes()


def test_lines_of_the_cluster_fit_the_terminal(larder_bin: pathlib.Path, tmp_path: pathlib.Path) -> None:
    allocator = Allocator(larder_bin, tmp_path, "--state", str(tmp_path / "state"), "--lease", "1 s")
    text = json.dumps(node_report(node="node-" + LONG)).replace('"images"', f'"{LONG}"')
    report = json.loads(text.replace('"vision"', f'"job-{LONG}"'))
    shown = threading.Event()

    def keep_reporting() -> None:
        while not shown.wait(0.2):
            allocator.ask("POST", "/v1/reports", report)

    node = threading.Thread(target=keep_reporting)
    node.start()
    terminal = Terminal([str(larder_bin / "larder"), "--allocator", str(allocator.socket)], 80)
    try:
        screen = terminal.wait_for("job-a")
    finally:
        shown.set()
        node.join()
        terminal.close()
        allocator.end()
    assert max(map(len, screen.splitlines())) <= 80, screen
    for heading in ("NODE", "CACHE", "HEARD", "DATASET", "QUOTA", "JOB", "PREDICTED", "MEASURED", "STALL"):
        assert heading in screen, screen


def test_output_to_a_pipe_is_not_truncated(crowded: Any) -> None:
    assert LONG in crowded.command("top", "--count", "1", "--interval", "0.1")
