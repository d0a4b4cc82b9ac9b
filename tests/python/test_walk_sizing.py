"""docs/sizing.md as a buyer follows it: every command runs, and tables of the page agree with the formula."""

from __future__ import annotations

import os
import pathlib
import re
import socket
import subprocess
from collections.abc import Iterator

import page
import pytest

# Less data and shorter benches than on the page, so that the test takes seconds.
SMALLER = {
    "seq 400": "seq 60",
    "--memory 256MiB": "--memory 32MiB",
    "bench miss": "bench miss --quick",
    "bench curve": "bench curve --quick",
}
# Waits in place of the page's `sleep`, until the job's row has a measured f* and all other figures.
MEASURED = (
    "until larder --allocator ~/.local/share/larder/allocator.sock top --count 1 | "
    "grep '^vision' | grep -qv ' - '; do sleep 0.1; done"
)
F_STAR, B, D, NODES = 800, 250, 1.5, 4  # MB/s, MB/s, TB, and nodes of the page's example


def before(step: page.Command) -> str:
    return MEASURED if "top --count 1" in step.text else ":"


@pytest.fixture(scope="module")
def text(repository: pathlib.Path) -> str:
    return (repository / "docs" / "sizing.md").read_text()


@pytest.fixture(scope="module")
def walk(
    repository: pathlib.Path, larder_bin: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[page.Command, page.Ran]]:
    directory = tmp_path_factory.mktemp("walk")
    data = directory / ".local" / "share"
    steps = page.commands(repository / "docs" / "sizing.md")
    for written, changed in {**SMALLER, "sleep 60": "true"}.items():
        assert any(written in step.text for step in steps), written
        steps = [page.Command(step.line, step.text.replace(written, changed), step.shown) for step in steps]
    try:
        yield page.run(steps, directory, larder_bin, before, XDG_DATA_HOME=str(data))
    finally:  # a walk that ended early leaves no daemon
        environment = os.environ | {"HOME": str(directory), "XDG_DATA_HOME": str(data)}
        subprocess.run([larder_bin / "larder", "down"], env=environment, capture_output=True)


def shapes(output: str) -> list[str]:
    """The shape of the output, whichever machine and events it names."""
    output = output.replace(socket.gethostname(), "box")
    return page.shapes(re.sub(r"^last event: .*$", "last event", output, flags=re.MULTILINE))


def test_every_block_is_commands(repository: pathlib.Path) -> None:
    path = repository / "docs" / "sizing.md"
    commands = {step.line for step in page.commands(path)}
    for first, _ in page.blocks(path):
        assert first in commands, f"line {first}"
    assert "```" not in path.read_text()


def test_every_command_runs(walk: dict[page.Command, page.Ran]) -> None:
    assert len(walk) >= 16
    for step, ran in walk.items():
        assert ran.status == 0, f"line {step.line}: {step.text}\n{ran.output}"


def test_measurements_have_the_shape_that_the_page_shows(walk: dict[page.Command, page.Ran]) -> None:
    shown = {step: ran for step, ran in walk.items() if step.shown and "larder simulate" not in step.text}
    assert len(shown) >= 5
    for step, ran in shown.items():
        assert shapes("\n".join(step.shown)) == shapes(ran.output), f"line {step.line}: {step.text}\n{ran.output}"


def test_simulations_print_what_the_page_shows(walk: dict[page.Command, page.Ran]) -> None:
    """Simulations give one output on every machine."""
    shown = {step: ran for step, ran in walk.items() if step.shown and "larder simulate" in step.text}
    assert len(shown) == 4
    for step, ran in shown.items():
        printed = [line.rstrip() for line in ran.output.splitlines() if line.strip()]
        assert [line for line in step.shown if line.strip()] == printed, f"line {step.line}: {step.text}"


def test_table_of_cache_sizes_follows_the_formula(text: str) -> None:
    rows = re.findall(r"^\| ([\d.]+) TB \| ([\d.]+) \| (\d+) MB/s \| (\d+) % \| ([\d,]+) MB/s \|$", text, re.MULTILINE)
    assert len(rows) == 6
    for c, h, f, part, remote in rows:
        hits = float(c) / D
        rate = F_STAR if hits == 1 else min(F_STAR, B / (1 - hits))
        assert float(h) == pytest.approx(hits, abs=5e-5)
        assert float(f) == pytest.approx(rate, abs=0.5)
        assert float(part) == pytest.approx(100 * rate / F_STAR, abs=0.51)
        assert float(remote.replace(",", "")) == pytest.approx(NODES * F_STAR * (1 - hits), abs=0.5)


def test_result_of_the_formula_is_that_of_the_simulator(text: str, walk: dict[page.Command, page.Ran]) -> None:
    enough = D * (1 - B / F_STAR)
    assert f"= {enough:.5f} TB" in text
    ran = next(ran for step, ran in walk.items() if "--most 1.5TB" in step.text)
    found = re.search(r"^([\d.]+) TB of cache reaches", ran.output, re.MULTILINE)
    assert found and float(found[1]) * 1e12 == pytest.approx(enough * 1e12, rel=0.01)
