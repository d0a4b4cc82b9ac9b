"""docs/availability.md as an operator follows it: runs each command and compares its output."""

from __future__ import annotations

import pathlib

import page
import pytest
from program import hold_port


def before(step: page.Command) -> str:
    """Waits where a reader's fingers are slow enough."""
    if step.text.startswith("larder-allocator --socket demo/a.sock"):
        return "until curl -s http://127.0.0.1:2379/health | grep -q true; do sleep 0.1; done"
    if step.text.startswith("larder-allocator --socket demo/b.sock"):
        return "until grep -q 'this allocator leads' demo/a.log; do sleep 0.1; done"
    if step.text.startswith("larder --allocator demo/c.sock"):
        return "until grep -q 'this allocator leads' demo/c.log && test -S demo/c.sock; do sleep 0.1; done"
    if step.text.startswith("larder --allocator demo/alone"):
        return "until test -S demo/alone/allocator.sock; do sleep 0.1; done"
    if step.text.startswith("larder job list"):
        return "until grep -q 'this allocator leads' demo/b.log; do sleep 0.1; done"
    return ":"


@pytest.fixture(scope="module")
def walk(
    repository: pathlib.Path, larder_bin: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[page.Command, page.Ran]:
    steps = page.commands(repository / "docs" / "availability.md")
    directory = tmp_path_factory.mktemp("walk")
    with hold_port() as client, hold_port() as peer:
        ports = {"2379": client.getsockname()[1], "2380": peer.getsockname()[1]}

        def with_ports(text: str) -> str:
            for written, port in ports.items():
                text = text.replace(f"127.0.0.1:{written}", f"127.0.0.1:{port}")
            return text

        steps = [page.Command(step.line, with_ports(step.text), step.shown) for step in steps]
        return page.run(steps, directory, larder_bin, lambda step: with_ports(before(step)))


def test_every_command_does_what_the_page_says(walk: dict[page.Command, page.Ran]) -> None:
    assert len(walk) == 24
    for step, ran in walk.items():
        assert ran.status == 0, f"line {step.line}: {step.text}\n{ran.output}"
        if step.shown:
            assert ran.output.splitlines() == list(step.shown), step.text
