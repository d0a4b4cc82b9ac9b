"""A page of docs/ as its reader uses it: the commands in its code blocks, and the output that it shows for them."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import signal
import subprocess
import sys
from collections.abc import Callable

# A block that begins with one of these programs contains commands only. A block with prompts ("$ ") has output between
# its commands.
PROGRAMS = re.compile(r"(larder|kill|cat|larderd|larder-allocator|mkdir|export|[A-Z_]+=\S+ larder|tests/servers/s3\.py) ")
# A number with its unit, if any. Numbers differ from run to run.
NUMBER = re.compile(r"(?<![\w.-])[-+]?\d+(\.\d+)?(e[-+]?\d+)?( ([kKMGT]i?B(/s)?|B(/s)?|%|ns|us|ms|s|min|m|h|d)(?![\w/]))?")
TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")


@dataclasses.dataclass(frozen=True)
class Command:
    """One command, with the output lines that the page shows below it."""

    line: int
    text: str
    shown: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Ran:
    status: int
    output: str


def blocks(page: pathlib.Path) -> list[tuple[int, list[str]]]:
    """The indented code blocks, each with the number of its first line."""
    found: list[tuple[int, list[str]]] = []
    before = ""
    for number, line in enumerate(page.read_text().splitlines(), 1):
        inside = bool(found) and found[-1][0] + len(found[-1][1]) == number
        if line.startswith("    ") and (inside or not before):
            if not inside:
                found.append((number, []))
            found[-1][1].append(line[4:])
        elif not line and inside:
            found[-1][1].append("")
        before = line
    for _, lines in found:
        while not lines[-1]:
            lines.pop()
    return found


def commands(page: pathlib.Path) -> list[Command]:
    """Every command of the page's blocks, from top to bottom."""
    found: list[Command] = []
    for first, lines in blocks(page):
        prompts = any(line.startswith("$ ") for line in lines)
        if not prompts and not PROGRAMS.match(lines[0]):
            continue
        at = 0
        while at < len(lines):
            number, text = first + at, lines[at].removeprefix("$ ")
            at += 1
            if heredoc := re.search(r"<<'?(\w+)'?$", text):
                end = lines.index(heredoc[1], at)
                text, at = "\n".join([text, *lines[at : end + 1]]), end + 1
            while text.endswith("\\"):
                text, at = f"{text}\n{lines[at]}", at + 1
            shown: list[str] = []
            while prompts and at < len(lines) and not lines[at].startswith("$ "):
                shown.append(lines[at])
                at += 1
            if text:
                found.append(Command(number, text, tuple(shown)))
    return found


def shape(line: str) -> str:
    """The line without the parts that differ from run to run: numbers, times and column widths."""
    return " ".join(NUMBER.sub("N", TIME.sub("T", line)).split())


def shapes(text: str) -> list[str]:
    return [shape(line) for line in text.splitlines() if line.strip()]


def run(
    steps: list[Command],
    directory: pathlib.Path,
    programs: pathlib.Path,
    before: Callable[[Command], str] = lambda step: ":",
    **variables: str,
) -> dict[Command, Ran]:
    """Runs the commands one after the other in one shell in `directory`, as a reader would.

    `before` returns what the shell does before a command, such as waiting where a reader would wait. Background
    processes of the commands end with the shell.
    """
    notes = directory / ".notes"
    notes.mkdir()
    script = ["set +m", "trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT"]
    for number, step in enumerate(steps):
        script.append(f"{{ {before(step)}\n}} >{notes}/{number}.before 2>&1")
        script.append(f"{{ {step.text}\n}} >{notes}/{number}.output 2>&1; echo $? >{notes}/{number}.status")
    path = f"{programs}:{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    shell = subprocess.Popen(
        ["bash", "-c", "\n".join(script)],
        cwd=directory,
        env={name: value for name, value in os.environ.items() if not name.startswith(("LARDER_", "AWS_"))}
        | {"PATH": path, "HOME": str(directory), "LARDER_BUILD": str(programs.parent)}
        | variables,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        shell.wait()
    finally:
        try:
            os.killpg(shell.pid, signal.SIGKILL)  # an interrupted walk leaves no process
        except ProcessLookupError:
            pass
        shell.wait()
    return {
        step: Ran(int((notes / f"{number}.status").read_text()), (notes / f"{number}.output").read_text())
        for number, step in enumerate(steps)
        if (notes / f"{number}.status").exists()
    }
