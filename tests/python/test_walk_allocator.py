"""docs/allocator.md as an operator follows it: runs each command unchanged and compares the shape of its output."""

from __future__ import annotations

import json
import pathlib

import page
import pytest
from program import hold_port

# Less data and cache than on the page, in about the same proportions, so that the test takes seconds.
SMALLER = {"seq 1000": "seq 60", "seq 500": "seq 30", "384MiB": "24MiB", "128MiB": "8MiB", "-256MiB": "-16MiB"}
# Succeeds once both jobs have a measured f* and measured rates.
MEASURED = (
    """larder --json job ls | python -c 'import json, sys; jobs = json.load(sys.stdin)["jobs"]; words = """
    """{"measured_ideal_bytes_per_second", "measured_bytes_per_second", "predicted_bytes_per_second"}; """
    """sys.exit(len(jobs) < 2 or not all(words <= job.keys() for job in jobs))'"""
)


def until(condition: str) -> str:
    return f"until {condition}; do sleep 0.1; done"


def before(step: page.Command) -> str:
    """A command that waits where a reader waits without noticing, or because the page says so."""
    if step.text.startswith(("larder top", "larder job ls", "larder plan --allocator")):
        return until(MEASURED)
    if step.text.startswith("larder --admin-socket"):
        return until(f"test -S {step.text.split()[2]}")
    return ":"


@pytest.fixture(scope="module")
def walk(
    repository: pathlib.Path, larder_bin: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[page.Command, page.Ran]:
    with hold_port() as held:
        endpoint = f"127.0.0.1:{held.getsockname()[1]}"
        steps = page.commands(repository / "docs" / "allocator.md")
        for written, changed in {**SMALLER, "127.0.0.1:7600": endpoint}.items():
            assert any(written in step.text for step in steps), written
            steps = [page.Command(step.line, step.text.replace(written, changed), step.shown) for step in steps]
        return page.run(steps, tmp_path_factory.mktemp("walk"), larder_bin, before)


def kinds(lines: list[str]) -> set[str]:
    """The kinds of events, without their subjects."""
    return {line.split()[1] for line in lines}


def test_every_command_does_what_the_page_says(walk: dict[page.Command, page.Ran]) -> None:
    for step, ran in walk.items():
        assert ran.status == 0, f"line {step.line}: {step.text}\n{ran.output}"


def test_output_has_the_shape_that_the_page_shows(walk: dict[page.Command, page.Ran]) -> None:
    shown = {step: ran for step, ran in walk.items() if step.shown}
    assert len(shown) > 20
    for step, ran in shown.items():
        where = f"line {step.line}: {step.text}\n{ran.output}"
        expected, printed = page.shapes("\n".join(step.shown)), page.shapes(ran.output)
        if step.text == "larder events":
            assert kinds(expected) <= kinds(printed), where
        elif step.text.startswith("larder events --json"):
            assert [list(json.loads(line)) for line in step.shown] == [list(json.loads(line)) for line in ran.output.splitlines()], where
        elif "events/stream" in step.text:
            assert [line.split(":")[0] for line in expected] == [line.split(":")[0] for line in printed], where
        elif step.text.startswith("larder top"):  # the last event depends on timing
            assert expected.pop().startswith("last event: ") and printed.pop().startswith("last event: "), where
            assert sorted(expected) == sorted(printed), where
        else:
            assert sorted(expected) == sorted(printed), where
