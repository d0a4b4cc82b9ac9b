"""The short forms of the benches that run several nodes: their output is complete and their counts are exact."""

from __future__ import annotations

import pathlib
import xml.etree.ElementTree

import pytest


def test_jobs_on_several_nodes_share_one_remote(bench, tmp_path: pathlib.Path) -> None:
    svg = tmp_path / "joint.svg"
    policies = {row["policy"]: row for row in bench("joint", "--plot", svg)}
    assert list(policies) == ["equal-shares", "lru", "max-min", "efficiency"]
    names = ["images-large", "images-small", "speech", "text", "video", "scans"]
    for policy, row in policies.items():
        assert [job["name"] for job in row["jobs"]] == names
        assert row["remote_bytes"] > 0 and row["min_ratio"] > 0
        for job in row["jobs"]:
            assert 0 < job["measured"] <= 1.1 * job["ideal"]
            assert job["equal_share"] > 0 and (job["predicted"] is None) == (policy == "lru")
        # 8 MiB covers the six jobs' bursts of 1 MiB each, however busy the machine is.
        assert row["excess_bytes"] <= 8 * (1 << 20)
    for policy in ("equal-shares", "max-min", "efficiency"):
        assert policies[policy]["min_ratio_predicted"] >= 0.999, "no job is promised less than an equal share"
    assert xml.etree.ElementTree.parse(svg).getroot().tag.endswith("svg")


def test_simulator_runs_the_same_scenario(bench) -> None:
    policies = ["equal-shares", "max-min+peers", "lru"]
    rows = bench("reality", *(word for policy in policies for word in ("--policy", policy)))
    assert [row["policy"] for row in rows] == policies
    names = ["images-large", "images-small", "speech", "text", "video", "scans"]
    for row in rows:
        assert (row["network"] is None) == (row["policy"] == "lru")
        assert [job["name"] for job in row["jobs"]] == names
        assert row["largest_off"] == max(abs(job["off"]) for job in row["jobs"])
        for job in row["jobs"]:
            assert job["measured_s"] > 0
            assert job["off"] == pytest.approx(job["simulated_s"] / job["measured_s"] - 1)
    # The difference between the two depends on the machine's load, so it is not checked here.
    # tests/unit/bench/joint_simulated_test.cc tests the simulator.
    # No job reads two epochs faster than at f*.
    ideal = [20 * 2**20 / 30e6, 20 * 2**20 / 10e6, 12 * 2**20 / 15e6, 16 * 2**20 / 6e6, 24 * 2**20 / 20e6, 18 * 2**20 / 7e6]
    for row in rows:
        for at_ideal_s, job in zip(ideal, row["jobs"], strict=True):
            assert job["simulated_s"] >= 0.999 * at_ideal_s and job["measured_s"] > 0.9 * at_ideal_s
