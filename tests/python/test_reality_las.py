"""Queueing and preemption under the policy las, with real daemons and readers, beside the simulator's.
bench/reality_las.py runs it, and has the differences of a quiet machine. Here is what holds on a busy one, too."""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import subprocess
import sys

import pytest

JCT_OFF_MAX = 0.10  # of the mean
APART_S = 5.0  # jobs whose simulated ends are so far apart end in this order


@pytest.mark.control_plane
def test_preempted_jobs_go_on_and_end_as_simulated(repository: pathlib.Path, larder_bin: pathlib.Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make networks for the nodes")
    ran = subprocess.run(
        [sys.executable, repository / "bench" / "reality_las.py", "--json", "--programs", larder_bin],
        capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    result = json.loads(ran.stdout)
    jobs = result["jobs"]

    assert {job["state"] for job in jobs.values()} == {"succeeded"}, jobs
    assert all(job["epochs_are_whole"] for job in jobs.values()), jobs
    preempted = {name for name, job in jobs.items() if job["preemptions"]}
    assert preempted == {"resnet", "vit"} == {name for name, job in jobs.items() if job["simulated_preemptions"]}, jobs
    assert all(len(jobs[name]["nodes"]) == jobs[name]["preemptions"] + 1 for name in preempted), jobs
    # Short jobs that came later went first, and those that found no GPUs waited.
    assert all(jobs[name]["ended_s"] < jobs["resnet"]["ended_s"] for name in ("detect", "asr", "pose", "lanes", "lm"))
    assert all(jobs[name]["started_s"] > jobs[name]["submitted_s"] + APART_S for name in ("lanes", "lm")), jobs
    by_end = sorted(jobs.values(), key=lambda job: job["simulated_end_s"])
    for before, after in itertools.combinations(by_end, 2):
        if after["simulated_end_s"] - before["simulated_end_s"] >= APART_S:
            assert before["ended_s"] < after["ended_s"], jobs
    jct, simulated = (sum(job[key] for job in jobs.values()) for key in ("jct_s", "simulated_jct_s"))
    assert abs(simulated / jct - 1) <= JCT_OFF_MAX, jobs
