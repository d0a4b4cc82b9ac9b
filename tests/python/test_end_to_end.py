"""The whole, once by each engine: real daemons on eight machines, a remote of limited bandwidth, two tenants' jobs with
real readers, and one node that is lost. bench/end_to_end.py runs it; this file holds its result against the bars."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import kubernetes
import pytest

RATE_OFF_MAX = 0.07
JCT_OFF_MAX = 0.10
SETTLED_S_MIN = 5.0  # a shorter time has too few batches to tell a rate
COMPARED_MIN = 9  # jobs


@pytest.mark.alone
@pytest.mark.control_plane
@pytest.mark.parametrize("engine", ["processes", "slurm", "kubernetes"])
def test_rates_and_times_are_as_planned(engine: str, repository: pathlib.Path, larder_bin: pathlib.Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make networks for the nodes")
    if engine == "kubernetes" and kubernetes.find_go() is None:
        pytest.skip(kubernetes.GO_MISSING)
    ran = subprocess.run(
        [sys.executable, repository / "bench" / "end_to_end.py", engine, "--json", "--programs", larder_bin],
        capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    result = json.loads(ran.stdout)
    jobs = result["jobs"]

    assert {job["state"] for job in jobs.values()} == {"succeeded"}, jobs
    compared = {name: job for name, job in jobs.items() if job["settled_s"] >= SETTLED_S_MIN}
    assert len(compared) >= COMPARED_MIN, jobs
    off = {name: job["read_bytes_per_second"] / job["plan_bytes_per_second"] - 1 for name, job in compared.items()}
    assert max(map(abs, off.values())) <= RATE_OFF_MAX, (off, jobs)
    plan, read = (
        sum(job[key] * job["settled_s"] for job in jobs.values() if job["settled_s"])
        for key in ("plan_bytes_per_second", "read_bytes_per_second")
    )
    assert abs(read / plan - 1) <= RATE_OFF_MAX, jobs
    late = {name: job["simulated_jct_s"] / job["jct_s"] - 1 for name, job in jobs.items()}
    assert max(map(abs, late.values())) <= JCT_OFF_MAX, (late, jobs)

    # The jobs of the lost node ran again elsewhere; the same jobs are lost in the simulation.
    lost = {name for name, job in jobs.items() if len(job["nodes"]) > 1}
    assert lost and lost == {name for name, job in jobs.items() if job["simulated_failures"]}, jobs
    assert all(result["lost_node"] in jobs[name]["nodes"][0] for name in lost)
    assert not any(result["lost_node"] in jobs[name]["nodes"][-1] for name in lost)
    assert result["sent_bytes_per_second"] <= result["remote_bytes_per_second"] * (1 + RATE_OFF_MAX)

    # The run compared each reason with the queue.
    assert jobs["tts"]["waited_for"][0] == "quota"
    assert jobs["pose"]["waited_for"][0] == "gpus"
    assert jobs["distil"]["waited_for"][0] == "dependencies"
    assert all("gpus" in jobs[name]["waited_for"] for name in lost)
    # Kubernetes refuses no pod that Larder has placed.
    assert result["refused_waited_for"] == ([] if engine == "kubernetes" else ["engine"])
