"""docs/scheduling.md as an operator follows it: simulations on small traces of the same names, and running jobs."""

from __future__ import annotations

import json
import pathlib
import re
import socket

import page
import pytest

# Smaller sizes for slow commands of the page: the mean number of jobs, and the range that is measured.
SMALLER = {"poisson:3,9000": "poisson:3,90", "4000-4999": "40-49"}
MODELS = {"fast": {"1": {"v100": 40, "p100": 12, "k80": 2}}, "even": {"1": {"v100": 11, "p100": 10, "k80": 8}}}


@pytest.fixture
def directory(repository: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """The directory of the page's traces. These have a few jobs each."""
    (tmp_path / "docs").symlink_to(repository / "docs")
    philly = "".join(f"{900 * i},{300 + 661 * (i % 37)},{(1, 2, 8, 4)[i % 4]},{'abc'[i % 3]}\n" for i in range(60))
    (tmp_path / "philly_jobs.csv").write_text("submit_s,duration_s,gpus,vc\n" + philly)
    tiresias = "".join(f"{i},{(1, 2, 8, 4)[i % 4]},{30 * i},606,vgg19,{164 + 60 * i},30\n" for i in range(20))
    header = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n"
    (tmp_path / "tiresias_60_job.csv").write_text(header + tiresias)
    (tmp_path / "gavel_throughputs_isolated.json").write_text(json.dumps({"simulation": MODELS}))
    (tmp_path / "astraea_philly_tenant_shares.csv").write_text("name,share\na,3\nb,2\nc,1\n")
    return tmp_path


def steps_of(repository: pathlib.Path, *, simulated: bool) -> list[page.Command]:
    steps = page.commands(repository / "docs" / "scheduling.md")
    return [step for step in steps if step.text.startswith("larder simulate") == simulated]


def shapes(text: str) -> list[str]:
    """The shape of the text, equal for every queue identity."""
    return page.shapes(re.sub(r"q-[0-9a-f]+", "QUEUE", text))


def test_every_simulation_runs(repository: pathlib.Path, larder_bin: pathlib.Path, directory: pathlib.Path) -> None:
    steps = steps_of(repository, simulated=True)
    assert len(steps) >= 16
    for written, changed in SMALLER.items():
        assert any(written in step.text for step in steps), written
        steps = [page.Command(step.line, step.text.replace(written, changed)) for step in steps]
    for step, ran in page.run(steps, directory, larder_bin).items():
        assert ran.status == 0, f"line {step.line}: {step.text}\n{ran.output}"
    assert {path.name for path in (directory / "drawings").iterdir()} == {"jct.svg", "utilisation.svg", "datasets.svg"}
    assert (directory / "jobs.csv").exists() and (directory / "compare.svg").exists()


def test_running_jobs_prints_what_the_page_shows(repository: pathlib.Path, larder_bin: pathlib.Path, tmp_path: pathlib.Path) -> None:
    steps = steps_of(repository, simulated=False)
    steps = steps[: 1 + next(i for i, step in enumerate(steps) if step.text == "kill %1")]
    assert any(step.shown for step in steps)

    def before(step: page.Command) -> str:
        """Replaces the page's `sleep` by waiting for its purpose, however busy the machine is."""
        return {
            "sleep 1": "until larder --allocator demo/allocator.sock jobs --queue; do sleep 0.1; done",
            "larder jobs --queue": "until larder jobs --queue | grep -q 'hello *running'; do sleep 0.1; done",
            "larder jobs --history": "until larder jobs --history | grep -q 'job-3 *succeeded'; do sleep 0.1; done",
        }.get(step.text, ":")

    for step, ran in page.run(steps, tmp_path, larder_bin, before).items():
        where = f"line {step.line}: {step.text}\n{ran.output}"
        assert ran.status == 0, where
        if step.shown:
            there = ran.output.replace(str(tmp_path), "/home/ann").replace(socket.gethostname(), "box")
            assert shapes("\n".join(step.shown)) == shapes(there), where
