"""The short form of the bench in which the cluster changes in mid-run: every event is followed to its end."""

from __future__ import annotations

import subprocess

import pytest


def test_every_event_in_mid_run_is_followed_to_its_end(bench) -> None:
    (row,) = bench("joint", "--events")
    assert row["policy"] == "max-min"
    assert row["network"] == ("namespaces" if may_make_networks() else "loopback")
    assert [event["event"] for event in row["events"]] == ["job ends", "job joins", "cache is lost", "quota is pinned"]
    for event in row["events"]:
        assert event["epoch_seconds"] > 0 and event["epochs"] == pytest.approx(event["seconds"] / event["epoch_seconds"])
        # Even during an event, the jobs together exceed the remote's rate by no more than their bursts.
        assert event["excess_bytes"] <= event["burst_bytes"]


def may_make_networks() -> bool:
    commands = "ip link set lo up && ip link add hub type bridge && ip link add node0 type veth peer name uplink"
    return subprocess.run(["unshare", "--net", "sh", "-c", commands], capture_output=True).returncode == 0
