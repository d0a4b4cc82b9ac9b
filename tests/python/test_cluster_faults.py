"""A real allocator and real node daemons on faulty machines."""

from __future__ import annotations

import json
import pathlib
import subprocess
import time
from typing import Any

import larder
import pytest
from allocator_process import Allocator
from conftest import Daemon, write_tree

# Runs a program in a time namespace whose CLOCK_MONOTONIC, the daemons' clock, is an hour ahead.
AN_HOUR_AHEAD = ["unshare", "--time", "--monotonic", "3600", "--boottime", "3600"]
FLOOR = 1e6


def uptime_s(*prefix: str) -> float:
    ran = subprocess.run([*prefix, "cat", "/proc/uptime"], capture_output=True, text=True)
    if ran.returncode != 0:
        pytest.skip(f"no time namespaces here: {ran.stderr.strip()}")
    return float(ran.stdout.split()[0])


def reports(daemon: Daemon) -> int:
    """Reports that the allocator has answered. Each answer renews the node's lease."""
    return json.loads(daemon.command("--json", "status"))["allocator"]["reports"]


def remote_rate(daemon: Daemon) -> float:
    jobs = json.loads(daemon.command("--json", "jobs"))["jobs"]
    return jobs[0]["remote_rate"] if jobs else 0.0


def test_node_with_clock_an_hour_ahead_works_like_any_other(larder_bin: pathlib.Path, tmp_path: pathlib.Path) -> None:
    if uptime_s(*AN_HOUR_AHEAD) - uptime_s() < 3000:
        pytest.skip("this kernel does not let a program start in another time namespace")
    write_tree(tmp_path / "files", per_class=40, seed=3)
    allocator = Allocator(larder_bin, tmp_path, "--lease", "2 s", "--floor", "1 MB/s")
    node = ("--allocator.endpoint", str(allocator.socket), "--allocator.node")
    ahead = Daemon(larder_bin, tmp_path / "ahead", *node, "ahead", prefix=AN_HOUR_AHEAD)
    usual = Daemon(larder_bin, tmp_path / "usual", *node, "usual")
    loaders: list[Any] = []
    try:
        for daemon in (ahead, usual):
            daemon.start()
            daemon.command("dataset", "add", "files", f"file://{tmp_path / 'files'}")
            loaders.append(larder.Loader("files", socket=daemon.socket, job=daemon.state.name, batch_size=8))
        while min(remote_rate(ahead), remote_rate(usual)) <= FLOOR:
            for loader in loaders:
                assert sum(len(batch) for batch in loader) == 120
        renewed = {daemon: reports(daemon) + 5 for daemon in (ahead, usual)}
        while any(reports(daemon) < count for daemon, count in renewed.items()):
            for node_view in allocator.ask("GET", "/v1/nodes").json()["nodes"]:
                assert node_view.get("lease", {"left_ms": 0})["left_ms"] <= 2000
            time.sleep(0.05)
        # A busy machine may delay a renewal, so that a lease expires for a moment.
        while min(remote_rate(ahead), remote_rate(usual)) <= FLOOR:
            time.sleep(0.05)
        assert allocator.end() == 0
        while max(remote_rate(ahead), remote_rate(usual)) > FLOOR:
            time.sleep(0.05)
    finally:
        for loader in loaders:
            loader.close()
        for daemon in (ahead, usual):
            daemon.end()
        allocator.end()


def test_dataset_without_quota_names_the_allocator_that_does_not_answer(
    larder_bin: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    write_tree(tmp_path / "files", per_class=2, seed=3)
    socket = tmp_path / "nobody.sock"
    daemon = Daemon(larder_bin, tmp_path / "alone", "--allocator.endpoint", str(socket), "--allocator.node", "alone")
    try:
        daemon.start()
        added = daemon.command("dataset", "add", "files", f"file://{tmp_path / 'files'}")
    finally:
        daemon.end()
    assert "note: the dataset has no quota, so nothing is cached yet" in added
    assert f"the allocator at {socket}, which sets quotas, does not answer" in added


def test_dataset_without_quota_says_that_the_allocator_has_no_plan_yet(
    larder_bin: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    write_tree(tmp_path / "files", per_class=2, seed=3)
    # A new allocator grants no lease for as long as an earlier lease could hold.
    allocator = Allocator(larder_bin, tmp_path, "--lease", "3600 s", "--state", str(tmp_path / "allocator"))
    daemon = Daemon(
        larder_bin, tmp_path / "node", "--allocator.endpoint", str(allocator.socket), "--allocator.node", "a"
    )
    try:
        daemon.start()
        while not json.loads(daemon.command("--json", "status"))["allocator"]["problem"]:
            time.sleep(0.01)
        added = daemon.command("dataset", "add", "files", f"file://{tmp_path / 'files'}")
    finally:
        daemon.end()
        allocator.end()
    assert "which sets quotas, has no plan for this node yet: " in added
    assert "no lease is granted until they have expired" in added


def test_ended_job_has_no_limit_to_show(larder_bin: pathlib.Path, tmp_path: pathlib.Path) -> None:
    write_tree(tmp_path / "files", per_class=2, seed=3)
    allocator = Allocator(larder_bin, tmp_path)
    daemon = Daemon(
        larder_bin, tmp_path / "node", "--allocator.endpoint", str(allocator.socket), "--allocator.node", "a"
    )
    try:
        daemon.start()
        added = daemon.command("dataset", "add", "files", f"file://{tmp_path / 'files'}")
        assert "no quota" not in added
        with larder.Loader("files", socket=daemon.socket, job="short", batch_size=8) as loader:
            assert sum(len(batch) for batch in loader) == 6
            assert "has ended" not in daemon.command("job", "limit", "short")
        while "short has ended on this node" not in daemon.command("job", "limit", "short"):
            time.sleep(0.1)
        row = next(line.split() for line in daemon.command("jobs").splitlines() if line.startswith("short"))
        assert "-" in row
    finally:
        daemon.end()
        allocator.end()
