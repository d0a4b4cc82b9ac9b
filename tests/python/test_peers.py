"""Nodes that read each other's caches under a real allocator, which tells each node its peers and plans their caches as
one."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import time
from typing import Any

import larder
import pytest
from allocator_process import Allocator
from conftest import Daemon, write_tree


@pytest.fixture
def pair(request: pytest.FixtureRequest, larder_bin: pathlib.Path, tmp_path: pathlib.Path):
    """The allocator, whose leases may be given as a parameter, and two nodes."""
    write_tree(tmp_path / "files", per_class=60, seed=5)
    token = tmp_path / "token"
    token.write_text("what peers share\n")
    token.chmod(0o600)
    allocator = Allocator(larder_bin, tmp_path, "--lease", getattr(request, "param", "5 s"))
    nodes = [
        Daemon(
            larder_bin,
            tmp_path / name,
            *("--allocator.endpoint", str(allocator.socket), "--allocator.node", name),
            *("--peers.listen", "127.0.0.1:0", "--peers.token-file", str(token), "--peers.group", "rack"),
        )
        for name in ("one", "two")
    ]
    for node in nodes:
        node.start()
        node.command("dataset", "add", "files", f"file://{tmp_path / 'files'}")
    yield allocator, nodes
    for node in nodes:
        node.end()
    assert allocator.end() == 0


def peers_of(node: Daemon) -> list[dict[str, Any]]:
    return json.loads(node.command("--json", "status"))["peers"]["others"]


def wait_for_peers(nodes: list[Daemon]) -> list[dict[str, Any]]:
    """Waits until the nodes' peers answer them. Returns the peer of each node."""
    while True:
        peers = [peers_of(node) for node in nodes]
        if all(len(others) == 1 and others[0]["answers"] for others in peers):
            return [others[0] for others in peers]
        time.sleep(0.05)


def counters(node: Daemon) -> dict[str, int]:
    return json.loads(node.command("--json", "dataset", "info", "files"))["counters"]


def used_blocks(node: Daemon) -> int:
    return json.loads(node.command("--json", "dataset", "info", "files"))["used"]["blocks"]


def test_job_on_two_nodes_uses_both_caches(pair, tmp_path: pathlib.Path) -> None:
    allocator, nodes = pair
    wait_for_peers(nodes)
    size = sum(path.stat().st_size for path in (tmp_path / "files").rglob("*") if path.is_file())
    ranks = [larder.Loader("files", socket=node.socket, job="train", rank=rank, world_size=2, batch_size=8) for rank, node in enumerate(nodes)]
    epochs = 0
    try:
        # Once every block is cached on some node, no byte comes from the remote.
        while True:
            before = [counters(node)["bytes_remote_read"] for node in nodes]
            assert sum(len(batch) for rank in ranks for batch in rank) == 180
            epochs += 1
            if [counters(node)["bytes_remote_read"] for node in nodes] == before:
                break
        assert epochs > 1
        assert sum(before) >= size
        assert sum(counters(node)["peer_hits"] for node in nodes) > 0
    finally:
        for rank in ranks:
            rank.close()
    plan = allocator.ask("GET", "/v1/plan").json()
    assert [dataset["name"] for dataset in plan["datasets"]] == ["files"]


def test_status_names_peers_and_own_endpoint(pair) -> None:
    _, nodes = pair
    wait_for_peers(nodes)
    text = nodes[0].command("status")
    assert re.search(r"^lends cached blocks +at http://127\.0\.0\.1:\d+$", text, re.MULTILINE), text
    assert re.search(r"^two +http://127\.0\.0\.1:\d+ +0 ", text, re.MULTILINE), text
    assert "what peers share" not in text + nodes[0].command("--json", "status") + nodes[0].log.read_text()


# A lost node stays a peer as long as its lease lasts.
@pytest.mark.parametrize("pair", ["1 h"], indirect=True)
def test_lost_node_is_named(pair) -> None:
    _, nodes = pair
    place = wait_for_peers(nodes)[0]["endpoint"].removeprefix("http://")
    nodes[1].end()
    # The first problem may be a connection that was cut.
    while f"peer two ({place}) does not answer: connection refused\n" not in nodes[0].command("status"):
        time.sleep(0.05)


def test_lost_node_is_no_longer_a_peer(pair) -> None:
    _, nodes = pair
    wait_for_peers(nodes)
    nodes[1].end()
    while peers_of(nodes[0]):
        time.sleep(0.05)


@pytest.mark.parametrize("address", ["0.0.0.0:0", "127.0.0.1:0"])
def test_listening_for_peers_needs_a_token(larder_bin: pathlib.Path, tmp_path: pathlib.Path, address: str) -> None:
    ran = subprocess.run(
        [larder_bin / "larderd", "--state-directory", tmp_path / "state", "--peers.listen", address],
        capture_output=True,
        text=True,
    )
    assert ran.returncode != 0
    assert "peers.token_file" in ran.stderr
