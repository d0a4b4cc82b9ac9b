"""The allocator over TCP: without a token, every route of the description refuses and nothing changes."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator

import pytest
from allocator_process import Allocator, node_report
from description import Description

TOKENS = {role: f"{role}-0123456789abcdef" for role in ("viewer", "job", "submitter", "node", "agent", "operator")}


@pytest.fixture
def guarded(larder_bin: pathlib.Path, tmp_path: pathlib.Path) -> Iterator[Allocator]:
    file = tmp_path / "tokens"
    file.write_text("".join(f"{role} a-{role} {token}\n" for role, token in TOKENS.items()))
    file.chmod(0o600)
    started = Allocator(
        larder_bin, tmp_path, "--listen", "127.0.0.1:0", "--access.tokens", str(file),
        "--scheduler.directory", str(tmp_path / "jobs"), "--scheduler.gpus", "4",
    )  # fmt: skip
    yield started
    assert started.end() == 0, started.log.read_text()


def bodies() -> dict[tuple[str, str], object]:
    """A valid body for each request that has one."""
    return {
        ("POST", "/v1/reports"): node_report("evil"),
        ("POST", "/v1/jobs"): {"name": "evil"},
        ("PUT", "/v1/jobs/{name}/reservation"): {"cache_bytes": 1, "bandwidth_floor_bytes_per_second": 1.0},
        ("POST", "/v1/jobs/{name}/placement"): {"node": "evil", "runs": True},
        ("PUT", "/v1/datasets/{name}/pin"): {"bytes": 1},
        ("PUT", "/v1/remote"): {"bytes_per_second": 1.0},
        ("POST", "/v1/whatif"): {},
        ("POST", "/v1/queue"): {"jobs": [{"command": ["true"], "directory": "/"}]},
    }


def known_state(allocator: Allocator) -> str:
    """All state that a request could have changed, without values that change with time."""
    state = {path: allocator.ask("GET", f"/v1/{path}").json() for path in ("plan", "datasets", "jobs", "queue", "history")}
    for job in state["jobs"]["jobs"]:
        job.pop("limited_by", None)
    state["nodes"] = [node["name"] for node in allocator.ask("GET", "/v1/nodes").json()["nodes"]]
    return json.dumps(state, sort_keys=True)


@pytest.mark.parametrize("token", [None, "wrong-0123456789abcdef"], ids=["no token", "wrong token"])
def test_every_route_refuses_without_token_and_nothing_changes(
    guarded: Allocator, description: Description, token: str | None
) -> None:
    assert guarded.ask("POST", "/v1/reports", node_report()).status == 200
    assert guarded.ask("POST", "/v1/jobs", {"name": "images"}).status == 200
    before = known_state(guarded)
    for method, path in description.operations():
        answer = guarded.ask_tcp(method, path.replace("{name}", "images"), bodies().get((method, path)), token)
        if path in ("/healthz", "/", "/page.js", "/page.css"):
            assert answer.status == 200
            continue
        assert answer.status == 401, (method, path)
        assert answer.json()["error"]["code"] == "unauthenticated"
        description.validate(answer.json(), {"$ref": "#/components/schemas/Error"})
        assert answer.headers["WWW-Authenticate"].startswith("Bearer ")
    assert known_state(guarded) == before


def test_page_runs_its_own_script_only(guarded: Allocator) -> None:
    for path, kind in (("/", "text/html"), ("/page.js", "text/javascript"), ("/page.css", "text/css")):
        answer = guarded.ask_tcp("GET", path)
        assert (answer.status, answer.content_type) == (200, kind)
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "script-src 'self';" in policy and "unsafe" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "Set-Cookie" not in answer.headers


def test_anyone_reads_and_changes_nothing_where_config_allows(larder_bin: pathlib.Path, tmp_path: pathlib.Path) -> None:
    allocator = Allocator(larder_bin, tmp_path, "--listen", "127.0.0.1:0", "--access.anyone_reads", "true")
    assert allocator.ask("POST", "/v1/reports", node_report()).status == 200
    assert allocator.ask_tcp("GET", "/v1/access").json() == {"name": "anyone", "role": "viewer"}
    assert allocator.ask_tcp("GET", "/v1/jobs").status == 200
    assert allocator.ask_tcp("PUT", "/v1/remote", {"bytes_per_second": 1.0}).status == 403
    assert allocator.ask_tcp("PUT", "/v1/datasets/images/pin", {"bytes": 1}).status == 403
    assert allocator.ask_tcp("GET", "/v1/jobs", token="wrong-0123456789abcdef").status == 401
    # A page of another host lets a browser send this without a question.
    for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}):
        headers["Content-Type"] = "text/plain"
        assert allocator.ask_tcp("POST", "/v1/whatif", {}, headers=headers).status == 403, headers
    own = {"Host": "127.0.0.1:7600", "Origin": "http://127.0.0.1:7600", "Sec-Fetch-Site": "same-origin"}
    assert allocator.ask_tcp("POST", "/v1/whatif", {}, headers=own).status == 200
    # A page of a foreign host whose name leads here reads nothing.
    assert allocator.ask_tcp("GET", "/v1/jobs", host="larder.example.com").status == 401
    assert allocator.ask_tcp("GET", "/v1/jobs", host="localhost:80").status == 200
    assert allocator.end() == 0


def test_role_may_use_only_its_own_routes(guarded: Allocator, description: Description) -> None:
    assert guarded.ask_tcp("POST", "/v1/reports", node_report("a-node"), TOKENS["node"]).status == 200
    assert guarded.ask_tcp("POST", "/v1/reports", node_report("another"), TOKENS["node"]).status == 403
    assert guarded.ask("POST", "/v1/jobs", {"name": "slurm-1"}).status == 200
    for node, status in (("a-node", 200), ("another", 403)):
        body = {"node": node, "runs": True}
        assert guarded.ask_tcp("POST", "/v1/jobs/slurm-1/placement", body, TOKENS["node"]).status == status
    for role in ("viewer", "job", "submitter"):
        body = {"node": "a-node", "runs": True}
        assert guarded.ask_tcp("POST", "/v1/jobs/slurm-1/placement", body, TOKENS[role]).status == 403, role
    assert guarded.ask_tcp("GET", "/v1/plan", None, TOKENS["viewer"]).status == 200
    assert guarded.ask_tcp("GET", "/metrics", None, TOKENS["viewer"]).status == 200
    assert guarded.ask_tcp("POST", "/v1/jobs", {"name": "x"}, TOKENS["job"]).status == 200
    reserves = {"name": "y", "dataset": "images", "cache_bytes": 1}
    assert guarded.ask_tcp("POST", "/v1/jobs", reserves, TOKENS["job"]).status == 403
    assert guarded.ask_tcp("POST", "/v1/jobs", reserves, TOKENS["operator"]).status == 200
    assert guarded.ask_tcp("PUT", "/v1/remote", {"bytes_per_second": 2e9}, TOKENS["operator"]).status == 200
    for role in ("viewer", "job", "node"):
        assert guarded.ask_tcp("GET", "/v1/queue", None, TOKENS[role]).status == 200, role
        for method, path in (("POST", "/v1/queue"), ("DELETE", "/v1/queue/1")):
            assert guarded.ask_tcp(method, path, bodies().get((method, path)), TOKENS[role]).status == 403, role
    for role in ("viewer", "job", "submitter", "node", "agent"):
        answer = guarded.ask_tcp("PUT", "/v1/remote", {"bytes_per_second": 1.0}, TOKENS[role])
        assert answer.status == 403, role
        assert answer.json()["error"]["code"] == "permission_denied"
        description.validate(answer.json(), {"$ref": "#/components/schemas/Error"})
    assert guarded.ask("GET", "/v1/plan").json()["remote_bytes_per_second"] == 2e9
