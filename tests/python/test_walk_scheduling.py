"""The pages about scheduling as an operator follows them: docs/policies.md runs jobs, docs/simulating.md and
docs/scheduling-results.md run simulations, on small traces of the same names. test_jobs.py runs the submissions of
docs/policies.md, the commands after its example."""

from __future__ import annotations

import json
import pathlib
import re
import socket
import subprocess
import sys

import page
import pytest

# Smaller sizes for slow commands of the pages: the number of jobs, and the range of jobs that is measured.
SMALLER = {
    "gavel:6,9000": "gavel:6,90",
    "4000-4999": "40-49",
    "philly_jobs.csv,6000": "philly_jobs.csv,50",
    "philly_jobs.csv,3000": "philly_jobs.csv,50",
}
MODELS = {"fast": {"1": {"v100": 40, "p100": 12, "k80": 2}}, "even": {"1": {"v100": 11, "p100": 10, "k80": 8}}}


@pytest.fixture
def directory(repository: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """A directory with traces of the names that the pages use, but of few jobs."""
    (tmp_path / "docs").symlink_to(repository / "docs")
    philly = "".join(f"{900 * i},{300 + 661 * (i % 37)},{(1, 2, 8, 4)[i % 4]},{'abc'[i % 3]}\n" for i in range(60))
    (tmp_path / "philly_jobs.csv").write_text("submit_s,duration_s,gpus,vc\n" + philly)
    tiresias = "".join(f"{i},{(1, 2, 8, 4)[i % 4]},{30 * i},606,vgg19,{164 + 60 * i},30\n" for i in range(20))
    header = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n"
    (tmp_path / "tiresias_60_job.csv").write_text(header + tiresias)
    (tmp_path / "gavel_throughputs_isolated.json").write_text(json.dumps({"simulation": MODELS}))
    pairs = "v100,fast,1,even,30,8\nk80,even,1,even,6,6\n"
    (tmp_path / "gavel_throughputs_pairs.csv").write_text("worker_type,job_a,gpus,job_b,tput_a,tput_b\n" + pairs)
    (tmp_path / "astraea_philly_tenant_shares.csv").write_text("name,share\na,3\nb,2\nc,1\n")
    return tmp_path


def shapes(text: str) -> list[str]:
    """The shape of the text without its queue identities, which differ from run to run."""
    return page.shapes(re.sub(r"q-[0-9a-f]+", "QUEUE", text))


@pytest.mark.decisions
@pytest.mark.parametrize(
    ("name", "least", "files"),
    [
        ("simulating.md", 8, ["jobs.csv", "compare.svg", "drawings/jct.svg", "drawings/utilisation.svg", "drawings/datasets.svg"]),
        ("scheduling-results.md", 11, []),
    ],
)
def test_every_simulation_runs(
    repository: pathlib.Path, larder_bin: pathlib.Path, directory: pathlib.Path, name: str, least: int, files: list[str]
) -> None:
    steps = page.commands(repository / "docs" / name)
    assert len(steps) >= least
    assert all(step.text.startswith("larder simulate ") for step in steps)
    for written, changed in SMALLER.items():
        steps = [page.Command(step.line, step.text.replace(written, changed)) for step in steps]
    for step, ran in page.run(steps, directory, larder_bin).items():
        assert ran.status == 0, f"line {step.line}: {step.text}\n{ran.output}"
        if step.shown:  # one seed gives one output, except for the last line, the time that the simulation took
            shown, printed = ([line for line in text if line.strip()] for text in (step.shown, ran.output.splitlines()))
            assert shown[:-1] == printed[:-1], f"line {step.line}: {step.text}\n{ran.output}"
            assert page.shape(shown[-1]) == page.shape(printed[-1])
    assert [file for file in files if not (directory / file).exists()] == []
    if files:
        assert len(list((directory / "drawings").iterdir())) == 3


# Rows of the public file, and the rows that the page's program makes of them.
PHILLY = """timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 07:01:55,66.0,1,66.0,11cb48
2017-10-09 05:43:44,2878.0,1,2878.0,6214e9
2017-10-09 05:43:44,2770.0,1,2770.0,6214e9
2017-10-07 01:11:39,193256.0,8,1546048.0,ee9e8c
"""
PHILLY_JOBS = """submit_s,duration_s,gpus,vc
2855499,193256,8,ee9e8c
3044624,2770,1,6214e9
3044624,2878,1,6214e9
3049315,66,1,11cb48
"""


def test_program_converts_the_public_philly_trace(repository: pathlib.Path, larder_bin: pathlib.Path, tmp_path: pathlib.Path) -> None:
    text = (repository / "docs" / "simulating.md").read_text()
    (program,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "philly.csv").write_text(PHILLY)
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    assert (tmp_path / "philly_jobs.csv").read_text() == PHILLY_JOBS
    subprocess.run([larder_bin / "larder", "simulate", "philly_jobs.csv"], cwd=tmp_path, check=True)


def test_smaller_sizes_replace_sizes_of_the_results(repository: pathlib.Path) -> None:
    text = (repository / "docs" / "scheduling-results.md").read_text()
    assert [written for written in SMALLER if written not in text] == []


def test_running_jobs_prints_what_the_page_shows(repository: pathlib.Path, larder_bin: pathlib.Path, tmp_path: pathlib.Path) -> None:
    steps = page.commands(repository / "docs" / "policies.md")
    steps = steps[: 1 + next(i for i, step in enumerate(steps) if step.text == "kill %1")]
    assert any(step.shown for step in steps) and any("sleep 20'" in step.text for step in steps)
    # The page cancels this job. Until then it must run, however busy the machine is.
    steps = [page.Command(step.line, step.text.replace("sleep 20'", "sleep 2000'"), step.shown) for step in steps]

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
            printed = ran.output.replace(str(tmp_path), "/data/ann").replace(socket.gethostname(), "box")
            shown = "\n".join(step.shown)
            if step.text.startswith("larder job why "):  # the page breaks the one line of the answer
                shown, printed = " ".join(step.shown), " ".join(printed.splitlines())
            assert shapes(shown) == shapes(printed), where
            if step.text.startswith("larder jobs "):  # columns are two spaces apart, as on the page
                assert re.split("  +", step.shown[0].strip()) == re.split("  +", ran.output.splitlines()[0].strip()), where
