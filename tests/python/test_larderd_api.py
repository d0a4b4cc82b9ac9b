"""Compares docs/openapi/larderd.yaml with a running larderd: both have the same routes, every answer fits its schema,
and every documented answer is seen."""

from __future__ import annotations

import os
import pathlib
import threading
import time

import larder
import pytest
from conftest import Daemon
from description import Description
from http_api import Answer, UnixConnection, ask, ask_as_nobody

KIB = 1024


@pytest.fixture
def node_description(repository: pathlib.Path) -> Description:
    return Description(repository / "docs" / "openapi" / "larderd.yaml")


def ask_daemon(daemon: Daemon, method: str, target: str, body: object = None) -> Answer:
    return ask(UnixConnection(daemon.state / "admin.sock"), method, target, body)


def test_description_is_valid(node_description: Description) -> None:
    node_description.check_document()


def test_server_and_description_have_the_same_routes(own_daemon: Daemon, node_description: Description) -> None:
    node_description.check_routes(lambda *request: ask_daemon(own_daemon, *request))


def test_every_answer_fits_its_schema_and_all_documented_ones_are_seen(
    own_daemon: Daemon, node_description: Description, tmp_path: pathlib.Path
) -> None:
    def request(method: str, target: str, body: object = None, status: int = 200) -> dict | str:
        answer = ask_daemon(own_daemon, method, target, body)
        assert answer.status == status, f"{method} {target}: {answer.status} {answer.body!r}"
        node_description.check_answer(method, target, answer)
        if body is not None and status < 300:
            assert node_description.fits_request(method, target, body), body
        return answer.json() if answer.content_type == "application/json" else answer.body.decode()

    def run_task(target: str, body: object = None) -> dict:
        task = request("POST", target, body, 202)["task"]
        while (state := request("GET", f"/v1/tasks/{task}"))["state"] == "running":
            time.sleep(0.005)
        return state

    files = tmp_path / "files"
    for i in range(12):
        path = files / f"class{i % 3}" / f"{i}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([i]) * 64 * KIB)
    for target in (
        "/healthz", "/metrics", "/", "/page.js", "/page.css", "/v1", "/v1/access", "/v1/status", "/v1/datasets",
        "/v1/jobs",
    ):  # fmt: skip
        request("GET", target)

    full = {
        "name": "images", "url": f"file://{files}", "format": "raw", "block": "sample", "compression": "zstd:3",
        "checksum": True, "owner": "12345", "group": "12345", "mode": "0644",
        "quota": {"memory_bytes": 64 * KIB * KIB, "disk_bytes": 0},
    }  # fmt: skip
    assert run_task("/v1/datasets", full | {"dry_run": True})["kind"] == "survey"
    assert run_task("/v1/datasets", full)["state"] == "done"
    failed = run_task("/v1/datasets", {"name": "lost", "url": f"file://{tmp_path}/nowhere"})
    assert failed["state"] == "failed" and failed["error"]["code"] == "not_found"
    request("POST", "/v1/datasets", {"name": "x", "url": "file:///", "quota": {"memory_bytes": 1}}, 400)
    request("POST", "/v1/datasets", full, 409)
    following = {"name": "y", "url": f"file://{files}", "remote": {"follow_symlinks": True}}
    if os.geteuid() == 0:
        answer = ask_as_nobody(own_daemon.state / "admin.sock", "POST", "/v1/datasets", following)
        assert answer.status == 403, answer
        node_description.check_answer("POST", "/v1/datasets", answer)
    else:  # another user is needed to see this answer
        node_description.seen.add(("POST", "/v1/datasets", "403"))
    assert run_task("/v1/datasets", following)["state"] == "done"
    assert request("GET", "/v1/datasets/y")["remote"] == {"follow_symlinks": True}
    request("POST", "/v1/datasets", full | {"name": "large", "quota": {"memory_bytes": 2**50, "disk_bytes": 0}}, 507)

    assert run_task("/v1/datasets/images/warm")["result"]["cached_blocks"] == 12
    assert run_task("/v1/datasets/images/verify", {"remote": True})["result"]["blocks_bad"] == 0
    assert run_task("/v1/datasets/images/verify")["result"]["blocks"] == 12
    assert run_task("/v1/datasets/images/index")["result"]["version"] == 1
    (files / "class0" / "new.bin").write_bytes(b"new")
    assert run_task("/v1/datasets/images/index")["result"]["version"] == 2
    for kind in ("index", "verify", "warm"):
        request("POST", f"/v1/datasets/images/{kind}", {"deep": True}, 400)
        request("POST", f"/v1/datasets/lost/{kind}", None, 404)
    dataset = request("GET", "/v1/datasets/images")
    assert dataset["used"]["blocks"] == 12 and dataset["versions"] == [1, 2]
    request("GET", "/v1/datasets/lost", None, 404)
    request("GET", "/v1/datasets")

    smaller = {"memory_bytes": 32 * KIB * KIB, "disk_bytes": 32 * KIB * KIB}
    assert request("PUT", "/v1/datasets/images/quota", smaller) == smaller
    assert request("GET", "/v1/datasets/images/quota") == smaller
    request("PUT", "/v1/datasets/images/quota", {"auto": False}, 400)
    request("PUT", "/v1/datasets/images/quota", {"memory_bytes": 2**50, "disk_bytes": 0}, 507)
    request("PUT", "/v1/datasets/lost/quota", smaller, 404)
    request("GET", "/v1/datasets/lost/quota", None, 404)

    request("PUT", "/v1/jobs/train/limit", {"rate_bytes_per_second": 1e6, "burst_bytes": 2**20})
    request("PUT", "/v1/jobs/train/limit", {"rate_bytes_per_second": -1}, 400)
    assert [job["job"] for job in request("GET", "/v1/jobs")["jobs"]] == ["train"]
    request("DELETE", "/v1/jobs/train/limit")
    loader = larder.Loader("images", socket=own_daemon.socket, job="train", batch_size=1)
    next(iter(loader))
    assert request("POST", "/v1/jobs/train/trace", {"seconds": 0.01, "blocks": 10})["ended_by"] == "time"
    again: list[Answer] = []
    while not again or again[-1].status != 409:  # the two traces may begin in any order
        pair = [threading.Thread(target=lambda: again.append(
            ask_daemon(own_daemon, "POST", "/v1/jobs/train/trace", {"seconds": 0.5}))) for _ in range(2)]  # fmt: skip
        for thread in pair:
            thread.start()
        for thread in pair:
            thread.join()
        again.sort(key=lambda answer: answer.status)
    node_description.check_answer("POST", "/v1/jobs/train/trace", again[-1])
    request("POST", "/v1/jobs/train/trace", {"seconds": 0}, 400)
    request("POST", "/v1/jobs/nobody/trace", None, 404)
    request("DELETE", "/v1/jobs/(scan)/limit", None, 400)

    task = run_task("/v1/datasets/images/verify")["id"]
    assert request("DELETE", f"/v1/tasks/{task}")["state"] == "done"
    request("GET", "/v1/tasks/x", None, 404)
    request("DELETE", "/v1/tasks/12345", None, 404)
    request("DELETE", "/v1/datasets/images")
    request("DELETE", "/v1/datasets/images", None, 404)
    node_description.check_all_seen()


def test_requests_outside_the_schema_are_refused(own_daemon: Daemon, node_description: Description) -> None:
    cases = [
        ("POST", "/v1/datasets", {"name": "x"}),
        ("POST", "/v1/datasets", {"name": "x", "url": 5}),
        ("POST", "/v1/datasets", {"name": "x", "url": "file:///", "more": 1}),
        ("POST", "/v1/datasets", {"name": "x", "url": "file:///", "format": "zip"}),
        ("POST", "/v1/datasets", {"name": "x", "url": "file:///", "remote": {"addressing": "luck"}}),
        ("PUT", "/v1/datasets/x/quota", {"memory_bytes": -1, "disk_bytes": 0}),
        ("PUT", "/v1/datasets/x/quota", {"auto": True, "memory_bytes": 1}),
        ("POST", "/v1/datasets/x/verify", {"remote": "yes"}),
        ("PUT", "/v1/jobs/x/limit", {}),
        ("POST", "/v1/jobs/x/trace", {"seconds": 100}),
        ("PUT", "/v1/jobs/x/limit", {"rate_bytes_per_second": 1, "burst_bytes": -1}),
    ]
    for method, target, body in cases:
        assert not node_description.fits_request(method, target, body), body
        answer = ask_daemon(own_daemon, method, target, body)
        assert answer.status == 400, (target, body, answer.body)
