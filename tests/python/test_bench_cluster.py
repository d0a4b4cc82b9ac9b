"""The short forms of the benches that run several nodes: their output is whole and their counts are exact, and an
interrupted one leaves nothing behind."""

from __future__ import annotations

import pathlib
import signal
import subprocess
import time
import xml.etree.ElementTree

import pytest


def test_jobs_on_several_nodes_share_one_remote(bench, tmp_path: pathlib.Path) -> None:
    svg = tmp_path / "joint.svg"
    policies = {row["policy"]: row for row in bench("joint", "--plot", svg)}
    assert list(policies) == ["static", "lru", "max_min", "efficiency"]
    names = ["images-large", "images-small", "speech", "text", "video", "scans"]
    for policy, row in policies.items():
        assert [job["name"] for job in row["jobs"]] == names
        assert row["remote_bytes"] > 0 and row["min_ratio"] > 0
        for job in row["jobs"]:
            assert 0 < job["measured"] <= 1.1 * job["ideal"]
            assert job["equal_share"] > 0 and (job["predicted"] is None) == (policy == "lru")
        # Six jobs' bursts of 1 MiB, whatever the machine does meanwhile.
        assert row["excess_bytes"] <= 8 * (1 << 20)
    for policy in ("static", "max_min", "efficiency"):
        assert policies[policy]["min_ratio_predicted"] >= 0.999, "nobody is promised less than an equal share"
    assert xml.etree.ElementTree.parse(svg).getroot().tag.endswith("svg")


def test_the_simulator_takes_the_scenario_that_runs(bench) -> None:
    rows = bench("reality", "--policy", "static", "--policy", "max_min")
    assert [row["policy"] for row in rows] == ["static", "max_min"]
    names = ["images-large", "images-small", "speech", "text", "video", "scans"]
    for row in rows:
        assert [job["name"] for job in row["jobs"]] == names
        assert row["largest_off"] == max(abs(job["off"]) for job in row["jobs"])
        for job in row["jobs"]:
            assert job["measured_s"] > 0
            assert job["off"] == pytest.approx(job["simulated_s"] / job["measured_s"] - 1)
    # The simulation's are the same on every machine: nobody reads two epochs faster than at f*.
    ideal = [20 * 2**20 / 30e6, 20 * 2**20 / 10e6, 12 * 2**20 / 15e6, 16 * 2**20 / 6e6, 24 * 2**20 / 20e6, 18 * 2**20 / 7e6]
    for row in rows:
        assert all(ideal[j] < job["simulated_s"] < 10 * ideal[j] for j, job in enumerate(row["jobs"]))


def children_of(process: int) -> list[int]:
    children = []
    for status in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has just ended
            continue
        if parent == process:
            children.append(int(status.parent.name))
    return children


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_bench_leaves_nothing(larder_bin: pathlib.Path, tmp_path: pathlib.Path, number: signal.Signals) -> None:
    links = subprocess.run(["ip", "-brief", "link"], capture_output=True, text=True).stdout
    bench = subprocess.Popen(
        [larder_bin / "larder", "bench", "joint", "--events", "--quick", "--directory", tmp_path],
        stderr=subprocess.PIPE,
        text=True,
    )
    while len(children := children_of(bench.pid)) < 5:  # an allocator and four nodes
        assert bench.poll() is None
        time.sleep(0.02)
    bench.send_signal(number)
    assert bench.wait(60) == 1
    assert bench.stderr is not None and "was interrupted" in bench.stderr.read()
    assert list(tmp_path.glob("larder-bench-*")) == []
    assert [child for child in children if pathlib.Path(f"/proc/{child}").exists()] == []
    assert subprocess.run(["ip", "-brief", "link"], capture_output=True, text=True).stdout == links
