"""Faults that a real Slurm and a real allocator do not have on demand: the agent of larder-slurm with stand-ins of
Slurm's commands and of the allocator."""

from __future__ import annotations

import http.server
import json
import os
import pathlib
import socketserver
import subprocess
import threading
import time
from collections.abc import Callable, Iterator

import pytest

EMPTY = {
    "/v1/engine/attach": {"session": "s"}, "/v1/events": {"first": 1, "last": 0, "events": []},
    "/v1/queue": {"jobs": []}, "/v1/history": {"jobs": []}, "/v1/engine/actions": {"actions": []},
}  # fmt: skip


class StandIn(socketserver.ThreadingUnixStreamServer):
    """An allocator that knows no jobs. It takes reports, and sends no answer to them while `loses_answers`. While it is
    stopped, it answers nothing."""

    daemon_threads = True

    def __init__(self, directory: pathlib.Path, name: str = "allocator") -> None:
        self.attached: list[dict] = []
        self.reports: list[dict] = []
        self.waits: list[str] = []
        self.loses_answers = False
        self.goes_on = threading.Event()
        self.goes_on.set()
        super().__init__(str(directory / f"{name}.sock"), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: StandIn

    def do_GET(self) -> None:
        self.server.goes_on.wait()
        if self.path.startswith("/v1/engine/actions"):
            self.server.waits.append(self.path.split("wait_s=")[1])
            time.sleep(0.2)
        self._answer(EMPTY[self.path.split("?")[0]])

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/v1/engine/events":
            self.server.reports.append(body)
            if self.server.loses_answers:
                self.close_connection = True
                return
            return self._answer({})
        self.server.attached.append(body)
        self._answer(EMPTY[self.path])

    def _answer(self, value: dict) -> None:
        text = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def address_string(self) -> str:
        return "agent"

    def log_message(self, format: str, *arguments: object) -> None:
        pass


class Agent:
    def __init__(self, programs: pathlib.Path, directory: pathlib.Path, endpoint: str = "{}/allocator.sock") -> None:
        self.directory = directory
        self.allocator = StandIn(directory)
        (directory / "bin").mkdir()
        self.show(n1="idle", n2="idle")
        for name, text in {"sinfo": f"cat {directory}/nodes", "squeue": "true", "scontrol": "cat", "scancel": "true"}.items():
            program = directory / "bin" / name
            program.write_text(f"#!/bin/sh\n{text}\n")
            program.chmod(0o755)
        config = directory / "slurm.toml"
        config.write_text(f'partitions = "p"\nlook = "100 ms"\n[allocator]\nendpoint = "{endpoint.format(directory, directory)}"\n')
        path = f"{directory}/bin:{os.environ['PATH']}"
        with open(directory / "log", "wb") as log:
            self.process = subprocess.Popen(
                [programs / "larder-slurm", "--config", config, "place"], stdout=log, stderr=log, env=os.environ | {"PATH": path}
            )

    def show(self, **states: str) -> None:
        rows = [f"{node:65}{state:24}{'gpu:2':257}{'gpu:0':257}p\n" for node, state in states.items()]
        part = self.directory / "part"
        part.write_text("".join(rows))
        part.rename(self.directory / "nodes")

    def until(self, holds: Callable[[], object]) -> None:
        end = time.monotonic() + 300
        while not holds():
            assert self.process.poll() is None and time.monotonic() < end, (self.directory / "log").read_text()
            time.sleep(0.02)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self.allocator.shutdown()
        self.allocator.server_close()


@pytest.fixture
def agent(larder_bin: pathlib.Path, tmp_path: pathlib.Path) -> Iterator[Agent]:
    agent = Agent(larder_bin, tmp_path)
    yield agent
    agent.stop()


def test_agent_finds_the_next_leader_while_the_last_one_hangs(larder_bin: pathlib.Path, tmp_path: pathlib.Path) -> None:
    second = StandIn(tmp_path, "second")
    agent = Agent(larder_bin, tmp_path, "{}/allocator.sock,{}/second.sock")
    try:
        agent.until(lambda: agent.allocator.waits)
        agent.allocator.goes_on.clear()
        agent.until(lambda: second.waits)
        assert float(agent.allocator.waits[0]) < 5, "another one leads after etcd.lease, which is 5 s"
    finally:
        agent.allocator.goes_on.set()
        agent.stop()
        second.shutdown()
        second.server_close()


def nodes_of(report: dict) -> list[tuple[str, str]]:
    return [(event["node"], event["kind"]) for event in report["events"]]


def test_report_whose_answer_is_lost_is_sent_again_as_it_was(agent: Agent) -> None:
    allocator = agent.allocator
    agent.until(lambda: allocator.attached)
    allocator.loses_answers = True
    agent.show(n1="drained", n2="idle")
    agent.until(lambda: allocator.reports)
    agent.show(n1="drained", n2="drained")
    before = len(allocator.reports)
    agent.until(lambda: len(allocator.reports) >= before + 5)  # with looks between them
    allocator.loses_answers = False
    agent.until(lambda: allocator.reports[-1]["number"] == 2)
    *again, last = allocator.reports
    assert {report["number"] for report in again} == {1}
    assert all(nodes_of(report) == [("n1", "node_drained")] for report in again)
    assert nodes_of(last) == [("n2", "node_drained")]


def test_empty_answer_of_sinfo_is_a_failed_look(agent: Agent) -> None:
    allocator = agent.allocator
    agent.until(lambda: allocator.attached)
    agent.show()
    agent.until(lambda: "sinfo shows no nodes in the partitions p" in (agent.directory / "log").read_text())
    agent.show(n1="idle", n2="drained")
    agent.until(lambda: allocator.reports)
    assert nodes_of(allocator.reports[0]) == [("n2", "node_drained")]
