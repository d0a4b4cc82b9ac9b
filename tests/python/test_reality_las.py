"""Queueing and preemption under the policy las, with real daemons and readers. bench/reality_las.py runs it, and compares
its times with the simulator's. Here is what holds at any speed."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest


@pytest.mark.control_plane
def test_preempted_jobs_go_on_from_where_they_were(repository: pathlib.Path, larder_bin: pathlib.Path) -> None:
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
    assert preempted, jobs
    assert all(len(jobs[name]["nodes"]) == jobs[name]["preemptions"] + 1 for name in preempted), jobs
