"""Compares docs/openapi/engine.yaml with a running allocator: both have the same routes, every answer fits its schema,
and every documented answer is seen."""

from __future__ import annotations

import pathlib
import threading
from collections.abc import Iterator

import page
import pytest
from allocator_process import Allocator
from description import Description

NODES = [{"kind": "node_back", "node": "n1"}]


@pytest.fixture
def allocator(larder_bin: pathlib.Path, tmp_path: pathlib.Path) -> Iterator[Allocator]:
    started = Allocator(
        larder_bin, tmp_path, "--scheduler.directory", str(tmp_path / "jobs"), "--scheduler.engine", "agent",
        "--scheduler.node.n1.gpus", "4", "--scheduler.output_url", "https://logs/{job}/{attempt}",
    )  # fmt: skip
    yield started
    assert started.end() == 0


@pytest.fixture
def engine(repository: pathlib.Path) -> Description:
    return Description(repository / "docs" / "openapi" / "engine.yaml")


def test_config_of_the_page_is_taken(larder_bin: pathlib.Path, tmp_path: pathlib.Path, repository: pathlib.Path) -> None:
    ((_, block),) = page.blocks(repository / "docs" / "engines.md")
    (tmp_path / "allocator.toml").write_text("\n".join(block))
    started = Allocator(
        larder_bin, tmp_path, "--config", str(tmp_path / "allocator.toml"), "--scheduler.directory", str(tmp_path / "jobs")
    )
    try:
        assert started.ask("POST", "/v1/engine/attach", {}).status == 400
    finally:
        started.kill()


def test_description_is_valid(engine: Description) -> None:
    engine.check_document()


def test_server_and_description_have_the_same_routes(allocator: Allocator, engine: Description) -> None:
    listed = allocator.ask("GET", "/v1").json()["routes"]
    served = {(route["method"], route["path"]) for route in listed if route["path"].startswith("/v1/engine")}
    assert served == set(engine.operations())


def test_every_answer_fits_its_schema_and_all_documented_ones_are_seen(allocator: Allocator, engine: Description) -> None:
    def ask(method: str, target: str, body: object = None, status: int = 200) -> dict:
        answer = allocator.ask(method, target, body)
        assert answer.status == status, f"{method} {target}: {answer.status} {answer.body!r}"
        engine.check_answer(method, target, answer)
        if body is not None and status == 200:
            assert engine.fits_request(method, target, body), body
        return answer.json()

    def report(number: int, *events: dict, status: int = 200) -> dict:
        return ask("POST", "/v1/engine/events", {"session": session, "number": number, "events": list(events)}, status)

    # The first tick may not have come yet.
    while allocator.ask("POST", "/v1/engine/attach", {"agent": "a", "nodes": NODES, "attempts": []}).status == 503:
        pass
    attached = ask("POST", "/v1/engine/attach", {"agent": "a", "nodes": NODES, "attempts": []})
    session = attached["session"]
    assert allocator.ask("GET", "/v1/queue").json()["queue"] == attached["queue"]
    assert ask("GET", f"/v1/engine/actions?session={session}")["actions"] == []
    answers: list[dict] = []
    waiting = threading.Thread(
        target=lambda: answers.append(ask("GET", f"/v1/engine/actions?session={session}&after=0&wait_s=60"))
    )
    waiting.start()
    job = {"name": "one", "command": ["true"], "directory": "/", "gpus": 2, "engine_parameters": {"image": "x"}}
    assert allocator.ask("POST", "/v1/queue", {"jobs": [job]}).status == 200
    waiting.join()
    assert answers, "the answer did not fit its schema"
    (start,) = answers[0]["actions"]
    assert start["do"] == "start" and start["parameters"] == {"image": "x"} and len(start["tasks"][0]["gpus"]) == 2
    assert start["queue"] == attached["queue"]
    about = {"queue": start["queue"], "job": start["job"], "attempt": start["attempt"]}
    report(1, {"kind": "pending", "message": "no image"} | about)
    report(1)
    devices = [{"node": "n1", "devices": ["0", "GPU-1"]}]
    report(2, {"kind": "started", "at_unix_s": 1e9, "devices": devices} | about, {"kind": "node_drained", "node": "n1", "message": "by hand"})
    assert allocator.ask("DELETE", "/v1/queue/one").status == 200
    (stop,) = ask("GET", f"/v1/engine/actions?session={session}&after={start['number']}&wait_s=60")["actions"]
    assert (stop["do"], stop["queue"], stop["job"]) == ("stop", start["queue"], start["job"])
    report(3, {"kind": "ended", "exit_signal": 15, "was_stopping": True, "stopped_by": "root"} | about)
    shown = allocator.ask("GET", "/v1/queue/one").json()
    assert shown["devices"] == devices
    assert (shown["state"], shown["output"]) == ("cancelled", f"https://logs/{start['job']}/1")
    output = allocator.ask("GET", "/v1/queue/one/output")
    assert output.status == 404 and "https://logs/" in output.json()["error"]["message"]

    for bad in (
        {"kind": "gone"} | about, {"kind": "ended"} | about, {"kind": "ended", "exit_code": 256} | about,
        {"kind": "started", "job": 1}, {"kind": "started", "job": 1, "attempt": 1}, {"kind": "started"} | about | {"queue": ""},
        {"kind": "node_back"}, {"kind": "node_added", "node": "n"}, {"kind": "node_back", "node": "n", "gpus": 65},
        {"kind": "node_back", "node": "n", "gpus": 1, "labels": {"rack": 1}}, {"kind": "started", "node": "n1"} | about,
        {"kind": "started", "devices": [{"node": "n1"}]} | about, {"kind": "started", "devices": ["0"]} | about,
        {"kind": "lost", "message": "x" * 501} | about, {"kind": "ended", "exit_signal": 0} | about,
        {"kind": "started", "resize": -1} | about, {"kind": "started", "resize": 1 << 32} | about,
        {"kind": "resized"} | about, {"kind": "resize_refused", "resize": 0} | about,
        {"kind": "rejected", "also_rejected": "x"} | about, {"kind": "rejected", "also_rejected": [1]} | about,
        {"kind": "rejected", "also_rejected": ["x" * 501]} | about,
    ):  # fmt: skip
        report(4, bad, status=400)
        assert not engine.fits_request("POST", "/v1/engine/events", {"session": session, "number": 4, "events": [bad]}) or (
            bad["kind"] in ("resized", "resize_refused") or bad in ({"kind": "ended"} | about, {"kind": "node_added", "node": "n"})
        )
    report(9, status=400)
    report(0, status=400)
    ask("POST", "/v1/engine/attach", {"agent": "", "nodes": [], "attempts": []}, 400)
    ask("POST", "/v1/engine/attach", {"agent": "a", "nodes": [{"kind": "lost"} | about], "attempts": []}, 400)
    # Agents can drop the attempt that a refusal names.
    attempts = [{"kind": "started"} | about, {"kind": "gone"} | about]
    refused = ask("POST", "/v1/engine/attach", {"agent": "a", "nodes": [], "attempts": attempts}, 400)
    assert refused["error"]["message"].startswith("attempts[1]: ")
    ask("GET", "/v1/engine/actions", None, 400)
    ask("GET", f"/v1/engine/actions?session={session}&after=x", None, 400)
    ask("GET", f"/v1/engine/actions?session={session}&after=99", None, 400)
    ask("GET", f"/v1/engine/actions?session={session}&wait_s=61", None, 400)
    other = allocator.ask("POST", "/v1/engine/attach", {"agent": "b", "nodes": [], "attempts": []})
    assert other.status == 503 and "agent a is attached" in other.json()["error"]["message"]
    ask("POST", "/v1/engine/attach", {"agent": "a", "nodes": [], "attempts": []})
    ask("GET", f"/v1/engine/actions?session={session}", None, 409)
    report(4, status=409)
    engine.check_all_seen()


def test_nodes_of_the_agent_fit_their_schema(larder_bin: pathlib.Path, tmp_path: pathlib.Path, engine: Description) -> None:
    started = Allocator(
        larder_bin, tmp_path, "--scheduler.directory", str(tmp_path / "jobs"), "--scheduler.engine", "agent",
        "--scheduler.nodes", "agent",
    )  # fmt: skip
    try:
        node = {"kind": "node_back", "node": "n1", "gpus": 8, "gpu_type": "a100", "labels": {"rack": "r1"}}
        state = {"agent": "a", "nodes": [node], "attempts": []}
        assert engine.fits_request("POST", "/v1/engine/attach", state)
        while (answer := started.ask("POST", "/v1/engine/attach", state)).status == 503:
            pass
        session = answer.json()["session"]
        events = [
            {"kind": "node_added", "node": "n2", "gpus": 4}, {"kind": "node_resized", "node": "n2", "gpus": 2},
            {"kind": "node_removed", "node": "n1", "message": "its lease has ended"},
        ]  # fmt: skip
        body = {"session": session, "number": 1, "events": events}
        assert engine.fits_request("POST", "/v1/engine/events", body)
        assert started.ask("POST", "/v1/engine/events", body).status == 200
        (left,) = started.ask("GET", "/v1/gpu-nodes").json()["nodes"]
        assert (left["node"], left["gpus"], left["gpu_type"]) == ("n2", 2, "gpu")
        assert started.ask("PUT", "/v1/gpu-nodes/n2/drain").status == 200, "the agent has no command for it"
        assert started.ask("DELETE", "/v1/gpu-nodes/n2/drain").status == 200
        commands = {"drain_command": "cordon {node}", "undrain_command": "uncordon {node}"}
        node["node"] = "n2"
        assert engine.fits_request("POST", "/v1/engine/attach", state | commands)
        assert started.ask("POST", "/v1/engine/attach", state | commands).status == 200
        for method, command in (("PUT", ": cordon n2"), ("DELETE", ": uncordon n2")):
            refused = started.ask(method, "/v1/gpu-nodes/n2/drain")
            assert (refused.status, refused.json()["error"]["message"].endswith(command)) == (501, True), refused.body
        assert started.ask("POST", "/v1/engine/attach", state | {"drain_command": "cordon {node}"}).status == 400
        refused = started.ask("POST", "/v1/engine/attach", {"agent": "a", "nodes": NODES, "attempts": []})
        assert refused.status == 400 and refused.json()["error"]["message"].startswith("nodes[0]: gpus is missing")
    finally:
        started.kill()


def test_only_agents_and_operators_may_be_agents(larder_bin: pathlib.Path, tmp_path: pathlib.Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(
        "submitter ci a-token-of-a-submitter\noperator ops a-token-of-an-operator\nagent k8s a-token-of-an-agent\n"
        "node n1 a-token-of-a-node-1\n"
    )
    tokens.chmod(0o600)
    started = Allocator(
        larder_bin, tmp_path, "--scheduler.directory", str(tmp_path / "jobs"), "--scheduler.engine", "agent",
        "--scheduler.node.n1.gpus", "4", "--listen", "127.0.0.1:0", "--access.tokens", str(tokens),
    )  # fmt: skip
    try:
        state = {"agent": "a", "nodes": NODES, "attempts": []}
        for token in ("a-token-of-a-submitter", "a-token-of-a-node-1"):
            assert started.ask_tcp("POST", "/v1/engine/attach", state, token).status == 403
        for token in ("a-token-of-an-operator", "a-token-of-an-agent"):
            while (answer := started.ask_tcp("POST", "/v1/engine/attach", state, token)).status == 503:
                pass
            assert answer.status == 200

        def submit(name: str, token: str, **more: object) -> int:
            body = {"jobs": [{"name": name, "command": ["true"], "directory": "/", "gpus": 4} | more]}
            return started.ask_tcp("POST", "/v1/queue", body, token).status

        agent, submitter = "a-token-of-an-agent", "a-token-of-a-submitter"
        assert (submit("slurm-9", submitter), submit("slurm-9", agent), submit("own", submitter)) == (403, 200, 200)
        assert started.ask_tcp("DELETE", "/v1/queue/own", None, agent).status == 403
        assert started.ask_tcp("DELETE", "/v1/queue/slurm-9", None, agent).status == 200
        # The agent had an operator's token when it submitted this job.
        assert submit("slurm-8", "a-token-of-an-operator", engine_parameters={"slurm_job": "8"}) == 200
        assert started.ask_tcp("DELETE", "/v1/queue/slurm-8", None, submitter).status == 403
        assert started.ask_tcp("GET", "/v1/queue/slurm-8/output", None, agent).status == 403
        assert started.ask_tcp("DELETE", "/v1/queue/slurm-8", None, agent).status == 200
        assert started.ask_tcp("PUT", "/v1/remote", {"bytes_per_second": 1.0}, agent).status == 403
    finally:
        started.kill()


def test_resizes_fit_their_schema(larder_bin: pathlib.Path, tmp_path: pathlib.Path, engine: Description) -> None:
    started = Allocator(
        larder_bin, tmp_path, "--scheduler.directory", str(tmp_path / "jobs"), "--scheduler.engine", "agent",
        "--scheduler.node.n1.gpus", "4", "--scheduler.node.n2.gpus", "4", "--scheduler.policy", "las",
    )  # fmt: skip
    try:
        nodes = [{"kind": "node_back", "node": name} for name in ("n1", "n2")]
        state = {"agent": "a", "resizes": True, "nodes": nodes, "attempts": []}
        assert engine.fits_request("POST", "/v1/engine/attach", state)
        while (answer := started.ask("POST", "/v1/engine/attach", state)).status == 503:
            pass
        session = answer.json()["session"]

        def action(after: int) -> dict:
            target = f"/v1/engine/actions?session={session}&after={after}&wait_s=60"
            answer = started.ask("GET", target)
            engine.check_answer("GET", target, answer)
            return answer.json()["actions"][0]

        def report(number: int, event: dict) -> None:
            body = {"session": session, "number": number, "events": [event | about]}
            assert engine.fits_request("POST", "/v1/engine/events", body)
            assert started.ask("POST", "/v1/engine/events", body).status == 200

        job = {"name": "one", "command": ["true"], "directory": "/", "gpus": 4, "gpus_max": 8, "elastic": True}
        assert started.ask("POST", "/v1/queue", {"jobs": [job]}).status == 200
        start = action(0)
        about = {"queue": start["queue"], "job": start["job"], "attempt": start["attempt"]}
        assert len(start["tasks"]) == 2
        report(1, {"kind": "started"})
        second = {"name": "two", "command": ["true"], "directory": "/", "gpus": 4}
        assert started.ask("POST", "/v1/queue", {"jobs": [second]}).status == 200
        resize = action(start["number"])
        assert (resize["do"], resize["resize"], resize["tasks"]) == ("resize", 1, start["tasks"][:1])
        assert resize["environment"]["LARDER_NODES"] == start["tasks"][0]["node"]
        report(2, {"kind": "resize_refused", "resize": 1, "message": "no"})
        stop = action(resize["number"])
        assert stop["do"] == "stop"
        report(3, {"kind": "ended", "exit_code": 0, "was_stopping": True})
        again = action(stop["number"])
        assert (again["do"], again["attempt"], len(again["tasks"])) == ("start", 2, 1)
    finally:
        started.kill()
