"""Compares docs/openapi/allocator.yaml with a running allocator: both have the same routes, every answer fits its
schema, and every documented answer is seen."""

from __future__ import annotations

import os
import pathlib
import time
from collections.abc import Callable

import pytest
from allocator_process import Allocator, node_report
from description import Description

LARGE = b" " * (5 << 20)


def test_description_is_valid(description: Description) -> None:
    description.check_document()


def test_server_and_description_have_the_same_routes(allocator: Allocator, description: Description) -> None:
    description.check_routes(allocator.ask)


def submit_jobs(ask: Callable[..., object]) -> None:
    """Creates jobs in every state and requests every answer about them. Node "a" has reported "images"."""
    def submit(*jobs: dict[str, object], status: int = 200) -> object:
        return ask("POST", "/v1/queue", {"jobs": [{"command": ["true"], "directory": "/"} | job for job in jobs]}, status)

    def until(job: str, state: str) -> None:
        while ask("GET", f"/v1/queue/{job}")["state"] != state:
            time.sleep(0.02)

    everything = {
        "name": "everything", "command": ["sleep", "1000"], "environment": {"SEED": "7"}, "tenant": "default", "gpus": 4,
        "gpus_min": 4, "gpus_max": 4, "gpu_type": "gpu", "dataset": "images", "epochs": 2, "priority": 3,
        "ideal_bytes_per_second": 1e8, "ideal_bytes_per_second_by_type": {"gpu": 2e8}, "grace_s": 5, "preemptible": False,
        "deadline_unix_s": time.time() + 1000, "service": "soft", "after": [],
    }  # fmt: skip
    submit(everything)
    submit({"name": "good", "after": ["everything"]}, {"name": "behind", "after": ["good"]}, {"name": "next"})
    submit({"name": "guest", "opportunistic": True, "gpus": 4})
    assert ask("GET", "/v1/queue/guest")["opportunistic"]
    ask("DELETE", "/v1/queue/guest")
    submit({"opportunistic": True, "preemptible": False}, status=400)
    submit({"name": "range", "elastic": True, "gpus": 2, "gpus_max": 4, "after": ["everything"]})
    assert ask("GET", "/v1/queue/range")["elastic"]
    ask("DELETE", "/v1/queue/range")
    submit({"elastic": True, "gpus": 2}, status=400)
    submit(everything, status=409)
    submit({"gpus": 5}, status=507)
    submit({"dataset": "lost"}, status=404)
    submit({"name": "a", "after": ["b"]}, {"name": "b", "after": ["a"]}, status=400)
    until("everything", "running")
    for job in ("everything", "good", "next"):
        ask("GET", f"/v1/queue/{job}/why")
    assert ask("GET", "/v1/queue/good/why")["binding"] == "dependencies"
    assert ask("GET", "/v1/queue/next/why")["binding"] == "gpus"
    ask("GET", "/v1/queue")
    ask("DELETE", "/v1/queue/everything")
    until("everything", "cancelled")
    until("behind", "cancelled")
    until("next", "succeeded")
    ask("GET", "/v1/queue/next/why")
    ask("DELETE", "/v1/queue/next", None, 409)
    ask("GET", "/v1/queue/next/output?attempt=1&offset=0")
    ask("GET", "/v1/queue/next/output?attempt=first", None, 400)
    ask("GET", "/v1/queue/next/output?attempt=9", None, 404)
    for method, path in (("GET", "lost"), ("DELETE", "lost"), ("GET", "lost/why")):
        ask(method, f"/v1/queue/{path}", None, 404)
    assert [job["name"] for job in ask("GET", "/v1/history?limit=1")["jobs"]] == ["next"]
    ask("GET", "/v1/history?limit=0", None, 400)
    nodes = ask("GET", "/v1/gpu-nodes")["nodes"]
    assert nodes and all(node["is_usable"] for node in nodes)
    drain = f"/v1/gpu-nodes/{nodes[0]['node']}/drain"
    assert ask("PUT", drain)["jobs"] == 0
    (drained,) = ask("GET", "/v1/gpu-nodes")["nodes"]
    assert not drained["is_usable"] and drained["drained"]["by"] == f"local user {os.getuid()}"
    ask("DELETE", drain)
    ask("DELETE", drain, None, 404)
    ask("PUT", "/v1/gpu-nodes/lost/drain", None, 404)


def test_every_answer_fits_its_schema_and_all_documented_ones_are_seen(
    allocator: Allocator, description: Description, larder_bin: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    def ask(method: str, target: str, body: object = None, status: int = 200) -> object:
        answer = allocator.ask(method, target, body)
        assert answer.status == status, f"{method} {target}: {answer.status} {answer.body!r}"
        description.check_answer(method, target, answer)
        if body is not None and not isinstance(body, bytes) and status == 200:
            assert description.fits_request(method, target, body), body
        return answer.json() if answer.content_type == "application/json" else answer.body.decode()

    def get_all_lists() -> None:
        for target in (
            "/healthz", "/metrics", "/v1", "/v1/plan", "/v1/nodes", "/v1/datasets", "/v1/jobs", "/v1/events",
            "/v1/queue", "/v1/history", "/v1/status", "/v1/access", "/v1/tenants", "/", "/page.js", "/page.css",
        ):  # fmt: skip
            ask("GET", target)

    get_all_lists()  # an empty cluster
    full = {
        "name": "vision", "weight": 2, "epochs": 5, "ideal_bytes_per_second": 4e8,
        "bandwidth_floor_bytes_per_second": 1e6, "bandwidth_cap_bytes_per_second": 9e8,
    }  # fmt: skip
    ask("POST", "/v1/jobs", full)
    ask("POST", "/v1/jobs", full, 409)
    ask("POST", "/v1/jobs", {"name": "late"})
    ask("POST", "/v1/jobs", {"name": "x", "weight": -1}, 400)
    report = node_report()
    ask("POST", "/v1/reports", report)
    get_all_lists()
    for _ in range(3):  # enough for measured values
        time.sleep(0.01)
        report["jobs"][0]["bytes"] += 10**9
        report["jobs"][0]["busy_s"] += 3.0
        ask("POST", "/v1/reports", report)
    ask("PUT", "/v1/datasets/images/pin", {"bytes": 2 * 10**12}, 507)
    ask("POST", "/v1/reports", node_report("b", gpus=0, jobs=[], nic_bytes_per_second=1e9, disk_read_bytes_per_second=2e9))
    ask("POST", "/v1/reports", node_report(instance=2), 409)
    ask("POST", "/v1/reports", node_report(datasets=[]), 400)
    ask("POST", "/v1/jobs", {"name": "slurm-7", "dataset": "images", "cache_bytes": 10**9})
    ask("POST", "/v1/jobs", {"name": "slurm-8", "dataset": "lost"}, 404)
    ask("POST", "/v1/jobs", {"name": "slurm-8", "dataset": "texts", "cache_bytes": 10**15}, 404)
    ask("POST", "/v1/jobs", {"name": "slurm-8", "cache_bytes": 10**9}, 400)
    ask("PUT", "/v1/jobs/slurm-7/reservation", {"cache_bytes": 2 * 10**9, "bandwidth_floor_bytes_per_second": 1e6})
    expected = {"cache_bytes": 2 * 10**9, "bandwidth_floor_bytes_per_second": 1e6, "nodes": ["b", "elsewhere"]}
    ask("PUT", "/v1/jobs/slurm-7/reservation", expected)
    ask("PUT", "/v1/jobs/slurm-7/reservation", expected | {"nodes": [""]}, 400)
    ask("PUT", "/v1/jobs/slurm-7/reservation", {"cache_bytes": 1, "bandwidth_floor_bytes_per_second": -1.0}, 400)
    ask("PUT", "/v1/jobs/slurm-7/reservation", {"cache_bytes": 1, "bandwidth_floor_bytes_per_second": 1e18}, 507)
    ask("PUT", "/v1/jobs/slurm-9/reservation", {"cache_bytes": 1, "bandwidth_floor_bytes_per_second": 0.0}, 404)
    ask("GET", "/v1/jobs")
    ask("POST", "/v1/jobs/slurm-7/placement", {"node": "a", "runs": True, "gpus": 2})
    ask("POST", "/v1/jobs/slurm-7/placement", {"node": "a", "runs": True, "gpus": 10**9}, 400)
    ask("POST", "/v1/jobs/slurm-9/placement", {"node": "a", "runs": True}, 404)
    assert {job["name"]: job["running"] for job in ask("GET", "/v1/jobs")["jobs"]}["slurm-7"]
    ask("POST", "/v1/jobs/slurm-7/placement", {"node": "a", "runs": False})
    ask("DELETE", "/v1/jobs/slurm-7")
    while allocator.ask("GET", "/v1/jobs/vision/rates").status == 404:  # for a second at most
        time.sleep(0.05)
    assert ask("GET", "/v1/jobs/vision/rates")["rates"][0]["ideal_bytes_per_second"] > 0
    ask("GET", "/v1/jobs/lost/rates", None, 404)
    while "limited_by" not in {job["name"]: job for job in ask("GET", "/v1/jobs")["jobs"]}["vision"]:
        time.sleep(0.05)
    measured = [job for job in ask("GET", "/v1/jobs")["jobs"] if "prediction_error_ratio" in job]
    assert [job["name"] for job in measured] == ["vision"]
    ask("PUT", "/v1/datasets/images/pin", {"bytes": 10**9})
    ask("PUT", "/v1/datasets/images/pin", {"bytes": -1}, 400)
    ask("PUT", "/v1/datasets/lost/pin", {"bytes": 1}, 404)
    get_all_lists()
    ask("DELETE", "/v1/datasets/images/pin")
    ask("DELETE", "/v1/datasets/lost/pin", None, 404)
    ask("PUT", "/v1/remote", {"bytes_per_second": 2e9})
    ask("PUT", "/v1/remote", {"bytes_per_second": "fast"}, 400)
    ask("PUT", "/v1/remote", {"bytes_per_second": 0}, 400)
    ask("DELETE", "/v1/remote")
    plan = ask("GET", "/v1/nodes/a/plan")["plan"]
    ask("GET", "/v1/nodes/lost/plan", None, 404)
    ask("GET", "/v1/nodes/a/plan?after=x", None, 400)
    ask("POST", "/v1/whatif", {})
    ask("POST", "/v1/whatif", {
        "remote_bytes_per_second": 1e9, "cache_bytes": -10**9, "objective": "throughput", "remove_jobs": ["vision"],
        "add_jobs": [
            {"name": "big", "dataset": "text", "dataset_size_bytes": 10**9, "gpus": 2, "ideal_bytes_per_second": 1e8},
            {"name": "wide", "dataset": "images", "nodes": ["a", "b"], "weight": 3, "epochs": 1},
            {"name": "waits", "dataset": "images", "gpus": 4000},
        ],
    })  # fmt: skip
    ask("POST", "/v1/whatif", {"pins": [{"dataset": "images", "bytes": 10**9}]})
    ask("POST", "/v1/whatif", {"pins": [{"dataset": "images", "bytes": 10**15}]}, 507)
    ask("POST", "/v1/whatif", {"remove_jobs": ["lost"]}, 404)
    ask("POST", "/v1/whatif", {"cache_bytes": -(10**15)}, 400)
    ask("POST", "/v1/whatif", {"add_jobs": [{"name": "vision", "dataset": "images"}]}, 409)
    last = ask("GET", "/v1/events")["last"]
    ask("GET", f"/v1/events?after={last - 1}")
    ask("GET", "/v1/events?wait_s=61", None, 400)
    ask("GET", "/v1/events/stream?after=x", None, 400)
    ask("GET", "/v1/events/stream?status_ms=99", None, 400)
    description.check_answer("GET", "/v1/events/stream", allocator.stream("/v1/events/stream", b"data: "))
    streamed = allocator.stream("/v1/events/stream?status_ms=100", b"event: status\ndata: ")
    description.check_answer("GET", "/v1/events/stream", streamed)
    submit_jobs(ask)
    get_all_lists()
    ask("DELETE", "/v1/nodes/a", None, 409)
    ask("DELETE", "/v1/nodes/lost", None, 404)
    ask("DELETE", "/v1/jobs/late")
    ask("DELETE", "/v1/jobs/late", None, 404)
    get_all_lists()
    # A node can be removed once its lease has expired.
    (tmp_path / "brief").mkdir()
    brief = Allocator(larder_bin, tmp_path / "brief", "--lease", "1 s")
    assert brief.ask("POST", "/v1/reports", node_report()).status == 200
    while brief.ask("POST", "/v1/jobs", {"name": "slurm-7", "dataset": "images"}).status == 404:
        brief.ask("POST", "/v1/reports", node_report())
    while (answer := brief.ask("DELETE", "/v1/nodes/a")).status == 409:
        time.sleep(0.05)
    description.check_answer("DELETE", "/v1/nodes/a", answer)
    reservation = "/v1/jobs/slurm-7/reservation"
    answer = brief.ask("PUT", reservation, {"cache_bytes": 1, "bandwidth_floor_bytes_per_second": 0.0})
    assert answer.status == 503
    description.check_answer("PUT", reservation, answer)
    assert brief.end() == 0

    # Leaves out `default` answers, which are refusals over TCP: test_allocator_tokens.py sees those.
    description.check_all_seen()


@pytest.mark.parametrize(
    ("method", "target", "body", "status", "code"),
    [
        ("GET", "/other.html", None, 404, "not_found"),
        ("GET", "/v1/nothing", None, 404, "not_found"),
        ("GET", "/v1/jobs?colour=red", None, 400, "invalid_argument"),
        ("POST", "/v1/reports", b"{", 400, "invalid_argument"),
        ("POST", "/v1/reports", b"", 400, "invalid_argument"),
        ("POST", "/v1/whatif", b"[]", 400, "invalid_argument"),
        ("POST", "/v1/whatif", {"colour": "red"}, 400, "invalid_argument"),
        ("POST", "/v1/jobs", {"name": ""}, 400, "invalid_argument"),
        ("PUT", "/v1/remote", b'{"bytes_per_second": 1e999}', 400, "invalid_argument"),
        ("POST", "/v1/reports", LARGE, 413, "invalid_argument"),
        ("BREW", "/v1/plan", None, 405, "method_not_allowed"),
    ],
    ids=lambda value: "large" if value is LARGE else None,
)  # fmt: skip
def test_every_error_has_the_same_schema(
    allocator: Allocator, description: Description, method: str, target: str, body: object, status: int, code: str
) -> None:
    answer = allocator.ask(method, target, body)
    assert answer.status == status
    assert answer.content_type == "application/json"
    description.validate(answer.json(), {"$ref": "#/components/schemas/Error"})
    assert answer.json()["error"]["code"] == code


def test_requests_outside_the_schema_are_refused(allocator: Allocator, description: Description) -> None:
    allocator.ask("POST", "/v1/reports", node_report())
    cases = [
        ("PUT", "/v1/remote", {}),
        ("PUT", "/v1/remote", {"bytes_per_second": -1}),
        ("PUT", "/v1/datasets/images/pin", {"bytes": 1, "more": 1}),
        ("POST", "/v1/jobs", {"weight": 1}),
        ("POST", "/v1/jobs", {"name": "x", "ideal_bytes_per_second": 0}),
        ("POST", "/v1/jobs", {"name": "x" * 256}),
        ("POST", "/v1/reports", node_report(gpus=-1)),
        ("POST", "/v1/reports", node_report(more=1)),
        ("POST", "/v1/whatif", {"add_jobs": [{"name": "x"}]}),
        ("POST", "/v1/whatif", {"objective": "luck"}),
        ("POST", "/v1/whatif", {"cache_bytes": 0.5}),
        ("POST", "/v1/queue", {}),
        ("POST", "/v1/queue", {"jobs": []}),
        ("POST", "/v1/queue", {"jobs": [{"command": ["true"]}]}),
        ("POST", "/v1/queue", {"jobs": [{"command": [], "directory": "/"}]}),
        ("POST", "/v1/queue", {"jobs": [{"command": ["true"], "directory": "here"}]}),
        ("POST", "/v1/queue", {"jobs": [{"command": ["true"], "directory": "/", "gpus": 0}]}),
        ("POST", "/v1/queue", {"jobs": [{"command": ["true"], "directory": "/", "service": "luck"}]}),
        ("POST", "/v1/queue", {"jobs": [{"command": ["true"], "directory": "/", "more": 1}]}),
    ]
    for method, target, body in cases:
        assert not description.fits_request(method, target, body), body
        assert allocator.ask(method, target, body).status == 400, body
