"""The state of an allocator that was alone moves to a real etcd: larder-allocator --move-state-to-etcd."""

from __future__ import annotations

import http.client
import pathlib
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from allocator_process import node_report
from http_api import Answer, UnixConnection, ask
from servers import ServerProgram

JOBS = 400  # in the queue
PREFIX = "/moved/"


class Site:
    def __init__(self, programs: pathlib.Path, directory: pathlib.Path, repository: pathlib.Path) -> None:
        self.programs = programs
        self.directory = directory
        self.repository = repository
        self.state = directory / "state"
        self.socket = directory / "a.sock"
        self.etcd = ServerProgram("etcd.py")
        self.process: subprocess.Popen[bytes] | None = None
        self.agent: subprocess.Popen[bytes] | None = None

    def command(self, *options: object, in_etcd: bool) -> list[object]:
        etcd = ["--etcd.endpoints", self.etcd.values["endpoints"], "--etcd.prefix", PREFIX, "--etcd.lease", "3 s"]
        return [
            self.programs / "larder-allocator", "--socket", self.socket, "--state", self.state,
            "--remote-bandwidth", "1 GB/s", "--lease", "5 s", "--scheduler.engine", "agent",
            "--scheduler.node.n1.gpus", "4", *(etcd if in_etcd else []), *options,
        ]  # fmt: skip

    def log(self) -> str:
        path = self.directory / "allocator.log"
        return path.read_text() if path.exists() else ""

    def start(self, *, in_etcd: bool) -> None:
        with open(self.directory / "allocator.log", "ab") as log:
            self.process = subprocess.Popen(self.command(in_etcd=in_etcd), stdout=log, stderr=log)

    def kill(self) -> None:
        for process in (self.agent, self.process):
            if process is not None:
                process.kill()
                process.wait()
        self.agent = self.process = None

    def start_agent(self) -> None:
        directory = self.directory / "agent"
        directory.mkdir(exist_ok=True)
        (directory / "nodes").write_text("n1 node_back\n")
        self.agent = subprocess.Popen(
            [sys.executable, self.repository / "tests" / "servers" / "process_agent.py", self.socket, directory]
        )

    def ask(self, method: str, target: str, body: object = None) -> Answer | None:
        try:
            return ask(UnixConnection(self.socket), method, target, body)
        except (OSError, http.client.HTTPException):
            return None

    def get(self, target: str) -> dict:
        answer = self.ask("GET", target)
        assert answer is not None and answer.status == 200, answer
        return answer.json()

    def until(self, holds, what: str) -> None:
        gives_up = time.monotonic() + 300
        while not holds():
            assert time.monotonic() < gives_up, f"{what}\n{self.log()}"
            time.sleep(0.05)

    def serves(self) -> bool:
        answer = self.ask("GET", "/v1/status")
        return answer is not None and answer.status == 200

    def move(self) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*map(str, self.command("--move-state-to-etcd", in_etcd=True))], capture_output=True, text=True
        )

    def etcdctl(self, *words: str) -> str:
        return subprocess.run(
            ["etcdctl", "--endpoints", self.etcd.values["endpoints"], *words], check=True, capture_output=True,
            text=True, env={"ETCDCTL_API": "3"},
        ).stdout  # fmt: skip

    def half_moved(self) -> bool:
        return self.etcdctl("get", f"{PREFIX}moving", "--keys-only").strip() != ""

    def seen(self) -> dict[str, object]:
        """What users see of the state, without what depends on the time."""
        queue = {job["id"]: (job["name"], job["state"], job["tenant"], job["gpus"]) for job in self.get("/v1/queue")["jobs"]}
        history = {
            job["id"]: (job["name"], job["state"], job["tenant"], job["gpus"])
            for job in self.get("/v1/history?limit=100000")["jobs"]
        }
        jobs = {
            job["name"]: (job["weight"], job["bandwidth_floor_bytes_per_second"])
            for job in self.get("/v1/jobs")["jobs"]
            if job["registered"] and job["name"].startswith("registered-")
        }
        return {
            "queue": queue,
            "history": history,
            "jobs": jobs,
            "remote": self.get("/v1/status")["remote_bytes_per_second"],
            "pins": {one["name"]: one["pinned_bytes"] for one in self.get("/v1/datasets")["datasets"]},
        }


@pytest.fixture
def site(larder_bin: pathlib.Path, tmp_path: pathlib.Path, repository: pathlib.Path) -> Iterator[Site]:
    site = Site(larder_bin, tmp_path, repository)
    yield site
    site.kill()
    site.etcd.stop()


def test_state_is_the_same_in_etcd(site: Site) -> None:
    site.start(in_etcd=False)
    site.until(site.serves, "does not serve")
    site.start_agent()

    def report(applied: int) -> Answer | None:
        return site.ask("POST", "/v1/reports", node_report("n1", lease_applied=applied))

    site.until(lambda: (answer := report(0)) is not None and answer.status == 200, "no lease is granted")
    for weight in (1, 2, 3):
        answer = site.ask("POST", "/v1/jobs", {"name": f"registered-{weight}", "weight": weight})
        assert answer is not None and answer.status == 200, answer
    answer = site.ask("PUT", "/v1/datasets/images/pin", {"bytes": 50_000_000_000})
    assert answer is not None and answer.status == 200, answer
    answer = site.ask("PUT", "/v1/remote", {"bytes_per_second": 9e8})
    assert answer is not None and answer.status == 200, answer
    ended = [{"command": ["true"], "directory": "/", "gpus": 1} for _ in range(3)]
    site.ask("POST", "/v1/queue", {"jobs": ended})
    site.until(lambda: len(site.get("/v1/history")["jobs"]) == 3, "the jobs do not end")
    assert site.agent is not None
    site.agent.kill()
    site.agent.wait()
    waiting = [{"command": ["true"], "directory": "/", "gpus": 4, "name": f"waiting-{i}"} for i in range(JOBS)]
    answer = site.ask("POST", "/v1/queue", {"jobs": waiting})
    assert answer is not None and answer.status == 200, answer
    # The agent is gone, so the first of them stays where it is.
    site.until(lambda: site.get("/v1/queue")["jobs"][0]["state"] == "starting", "no job starts")
    granted = report(0)
    assert granted is not None and granted.status == 200
    before = site.seen()
    assert len(before["queue"]) == JOBS and len(before["history"]) == 3 and len(before["jobs"]) == 3
    assert before["pins"] == {"images": 50_000_000_000}

    ran = site.move()
    assert ran.returncode == 1 and "another larder-allocator uses the state directory" in ran.stderr, ran
    site.kill()

    # Killed in the middle: nobody leads with half of the state.
    draw = random.Random(1)
    longest_s = 0.5
    while not site.half_moved():
        site.etcdctl("del", "--prefix", PREFIX)
        process = subprocess.Popen(site.command("--move-state-to-etcd", in_etcd=True), stdout=subprocess.DEVNULL)
        time.sleep(draw.uniform(0, longest_s))
        longest_s *= 1.1  # on a busy machine, it takes longer until it begins
        process.send_signal(signal.SIGKILL)
        process.wait()
    # etcd keeps the leader's key of the killed process until its lease ends.
    site.etcdctl("del", f"{PREFIX}leader")
    site.start(in_etcd=True)
    site.until(lambda: "a move of state to it was not finished" in site.log(), "it leads with half of the state")
    assert not site.serves()
    site.kill()
    site.etcdctl("del", f"{PREFIX}leader")

    ran = site.move()
    assert ran.returncode == 0 and "read them back" in ran.stdout, ran
    assert not site.half_moved()
    ran = site.move()
    assert ran.returncode == 1 and "etcd has a state under /moved/" in ran.stderr, ran

    # Two allocators would lease the same bandwidth.
    site.start(in_etcd=False)
    assert site.process is not None and site.process.wait() == 1
    assert f"was moved to {PREFIX} of etcd" in site.log()

    site.start(in_etcd=True)
    site.until(site.serves, "does not lead")
    ran = site.move()
    assert ran.returncode == 1 and "leads in /moved/ of etcd: stop all allocators" in ran.stderr, ran
    # Leases are carried over: the first answer grants what the allocator that was alone had granted.
    first = report(granted.json()["lease"]["number"])
    assert first is not None and first.status == 200, first
    assert first.json()["lease"]["rates"] == granted.json()["lease"]["rates"]
    assert site.seen() == before
    answer = site.ask("POST", "/v1/queue", {"jobs": [{"command": ["true"], "directory": "/", "gpus": 1}]})
    assert answer is not None and answer.json()["jobs"][0]["id"] == max(before["queue"]) + 1


def test_without_state_there_is_nothing_to_move(site: Site) -> None:
    ran = site.move()
    assert ran.returncode == 1 and "there is no state of an allocator in" in ran.stderr, ran
    assert not site.half_moved()
