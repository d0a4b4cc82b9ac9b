"""Several allocators that stand in for each other, with a real etcd of three members."""

from __future__ import annotations

import http.client
import json
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from allocator_process import HeldLeases, node_report
from http_api import Answer, UnixConnection, ask
from servers import ServerProgram

REMOTE = 1e9  # bytes per second
LEASE_S = 5  # longer than it takes until another allocator leads


class Allocators:
    """Three allocators, by number, and the etcd that they share."""

    def __init__(self, programs: pathlib.Path, directory: pathlib.Path, *options: str, members: int = 3) -> None:
        self.programs = programs
        self.directory = directory
        self.options = options
        self.etcd = ServerProgram("etcd.py", "--members", str(members))
        self.sockets = [directory / f"a{number}.sock" for number in range(3)]
        self.endpoints = ",".join(map(str, self.sockets))
        self.processes: list[subprocess.Popen[bytes] | None] = [None, None, None]

    def start(self, *numbers: int) -> None:
        for number in numbers:
            with open(self.log(number), "ab") as log:
                self.processes[number] = subprocess.Popen(
                    [self.programs / "larder-allocator", "--socket", self.sockets[number], "--remote-bandwidth", "1 GB/s",
                     "--lease", f"{LEASE_S} s", "--floor", "1 MB/s", "--etcd.lease", "3 s", "--etcd.name", f"a{number}",
                     "--etcd.endpoints", self.etcd.values["endpoints"], *self.options],
                    stdout=log, stderr=log,
                )  # fmt: skip

    def log(self, number: int) -> pathlib.Path:
        return self.directory / f"a{number}.log"

    def logs(self) -> str:
        return "\n".join(self.log(number).read_text() for number in range(3) if self.log(number).exists())

    def ask(
        self, number: int, method: str, target: str, body: object = None, timeout_s: float = 60
    ) -> Answer | None:
        """None: nobody listens or answers there."""
        connection = UnixConnection(self.sockets[number])
        connection.timeout = timeout_s
        try:
            return ask(connection, method, target, body)
        except (OSError, http.client.HTTPException):
            return None

    def leads(self, number: int) -> bool:
        process = self.processes[number]
        if process is None or process.poll() is not None or is_stopped(process.pid):
            return False
        answer = self.ask(number, "GET", "/v1/status")
        assert answer is None or answer.status in (200, 421), answer
        return answer is not None and answer.status == 200

    def names_leader(self, number: int) -> bool:
        """True if this allocator stands by and knows who leads. None listens while it changes its part."""
        answer = self.ask(number, "GET", "/v1/plan")
        return answer is not None and re.search(rb"this allocator stands by: a\d leads", answer.body) is not None

    def leader(self) -> int:
        """Waits until one leads."""
        leaders: list[int] = []
        self.until(lambda: leaders.extend(filter(self.leads, range(3))) or leaders, "nobody leads")
        assert len(leaders) == 1, leaders
        return leaders[0]

    def until(self, holds: Callable[[], object], what: str) -> None:
        gives_up = time.monotonic() + 300
        while not holds():
            assert time.monotonic() < gives_up, f"{what}\n{self.logs()}"
            time.sleep(0.05)

    def larder(self, *arguments: object) -> dict:
        """Runs the command until an allocator takes it."""
        while True:
            ran = subprocess.run(
                [self.programs / "larder", "--json", "--allocator", self.endpoints, *map(str, arguments)],
                capture_output=True, text=True, cwd=self.directory,
            )  # fmt: skip
            if ran.returncode == 0:
                return json.loads(ran.stdout)
            # Or the leader was replaced while it wrote.
            refused = ("stands by", "no allocator answers", "leads now", "no longer leads")
            assert any(words in ran.stderr for words in refused), ran.stderr

    def signal(self, number: int, what: signal.Signals) -> None:
        process = self.processes[number]
        assert process is not None
        process.send_signal(what)
        if what == signal.SIGSTOP:
            self.until(lambda: is_stopped(process.pid), "not stopped")

    def kill(self, number: int) -> None:
        process = self.processes[number]
        assert process is not None
        process.kill()
        process.wait()

    def end(self) -> None:
        for number, process in enumerate(self.processes):
            if process is not None and process.poll() is None:
                self.kill(number)
        self.etcd.stop()


def is_stopped(process: int) -> bool:
    return pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.fixture
def allocators(larder_bin: pathlib.Path, tmp_path: pathlib.Path) -> Iterator[Allocators]:
    several = Allocators(larder_bin, tmp_path)
    yield several
    several.end()


def test_one_leads_and_the_others_name_it(allocators: Allocators) -> None:
    allocators.start(0)
    assert allocators.leader() == 0
    allocators.start(1, 2)
    for number in (1, 2):
        allocators.until(lambda number=number: allocators.ask(number, "GET", "/healthz"), "does not listen")
        health = allocators.ask(number, "GET", "/healthz")
        assert health is not None and (health.status, health.body) == (200, b"ok\n")
        metrics = allocators.ask(number, "GET", "/metrics")
        assert metrics is not None and metrics.body.endswith(b"\nlarder_allocator_leads 0\n")
        # It may have begun to listen before it heard of the leader.
        allocators.until(lambda number=number: allocators.names_leader(number), "no leader")
        assert allocators.ask(number, "POST", "/v1/jobs", {"name": "vision"}).status == 421


def test_each_reloads_its_config_whatever_its_part(
    larder_bin: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    tokens = tmp_path / "tokens"

    def write_token(token: str) -> None:
        tokens.write_text(f"operator ann {token}\n")
        tokens.chmod(0o600)

    write_token("a-token-that-is-withdrawn")
    allocators = Allocators(larder_bin, tmp_path, "--access.tokens", str(tokens), "--listen", "127.0.0.1:0")
    try:
        allocators.start(0)
        assert allocators.leader() == 0
        allocators.start(1)
        allocators.until(lambda: allocators.names_leader(1), "does not stand by")
        write_token("a-token-that-is-in-force")
        for number in (0, 1):
            allocators.signal(number, signal.SIGHUP)
            allocators.until(lambda number=number: "reloaded" in allocators.log(number).read_text(), "not reloaded")
        allocators.kill(0)
        assert allocators.leader() == 1
        port = int(re.findall(r"listening .*port=(\d+)", allocators.log(1).read_text())[-1])

        def status(token: str) -> int:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            return ask(connection, "GET", "/v1/status", headers={"Authorization": f"Bearer {token}"}).status

        assert status("a-token-that-is-in-force") == 200
        assert status("a-token-that-is-withdrawn") == 401
    finally:
        allocators.end()


def test_next_leader_has_what_was_acknowledged(allocators: Allocators) -> None:
    allocators.start(0, 1, 2)
    for turn in range(3):
        leader = allocators.leader()
        allocators.larder("job", "register", f"job-{turn}", "--weight", turn + 1)
        # Killed, then ended; the last one goes on.
        if turn == 0:
            allocators.kill(leader)
        else:
            allocators.signal(leader, signal.SIGTERM)
            assert allocators.processes[leader].wait(60) == 0
        allocators.until(lambda: not allocators.leads(leader), "still leads")
        allocators.start(leader)
    jobs = {job["name"]: job["weight"] for job in allocators.larder("job", "list")["jobs"]}
    assert jobs == {"job-0": 1, "job-1": 2, "job-2": 3}


def test_stopped_leader_answers_nothing_once_another_leads(allocators: Allocators) -> None:
    allocators.start(0, 1, 2)
    old = allocators.leader()
    # A request that waits in the old leader's socket while it is stopped.
    allocators.signal(old, signal.SIGSTOP)
    answers: list[Answer | None] = []
    waiting = threading.Thread(
        target=lambda: answers.append(allocators.ask(old, "POST", "/v1/jobs", {"name": "late"})), daemon=True
    )
    waiting.start()
    new = allocators.leader()
    assert new != old
    allocators.larder("job", "register", "vision")
    allocators.signal(old, signal.SIGCONT)
    waiting.join()
    # It either refused, or its connection was closed as it gave up.
    assert answers[0] is None or answers[0].status == 421, answers
    allocators.until(lambda: allocators.names_leader(old), "does not stand by")
    assert [job["name"] for job in allocators.larder("job", "list")["jobs"]] == ["vision"]


def test_leader_stops_without_etcd_and_leads_again_with_it(allocators: Allocators) -> None:
    allocators.start(0)
    allocators.leader()
    allocators.larder("job", "register", "vision")
    allocators.etcd.ask({"pause": 0})
    allocators.larder("job", "register", "vision-2")  # two of three members are enough
    allocators.etcd.ask({"pause": 1})
    allocators.until(lambda: not allocators.leads(0), "leads without etcd")

    def blames_etcd() -> bool:
        answer = allocators.ask(0, "GET", "/v1/plan")
        return answer is not None and b"this allocator stands by: etcd does not answer" in answer.body

    allocators.until(blames_etcd, "does not say why")
    for member in (0, 1):
        allocators.etcd.ask({"resume": member})
    allocators.leader()
    assert len(allocators.larder("job", "list")["jobs"]) == 2
    assert "etcd has not renewed its lease in time" in allocators.logs()


def test_change_that_its_leader_could_not_save_says_that_it_no_longer_leads(
    larder_bin: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    allocators = Allocators(larder_bin, tmp_path, "--scheduler.engine", "agent", "--scheduler.node.n1.gpus", "4",
                            "--scheduler.directory", str(tmp_path / "jobs"), members=1)  # fmt: skip
    try:
        allocators.start(0)
        allocators.leader()
        allocators.etcd.ask({"pause": 0})
        refused = allocators.ask(0, "POST", "/v1/queue", {"jobs": [{"command": ["true"], "directory": "/"}]})
        assert refused is not None and refused.status == 503, refused
        assert b"no longer leads: the request may or may not have been carried out" in refused.body, refused.body
    finally:
        allocators.end()


class Node(threading.Thread):
    """Reports for a node as larderd does, and records when which rates are in force there."""

    def __init__(self, allocators: Allocators, name: str) -> None:
        super().__init__(daemon=True)
        self.allocators = allocators
        self.name = name
        self.leases = HeldLeases()
        self.granted: list[tuple[int, dict[str, float]]] = []  # by which allocator, and the rates by job
        self.ends = threading.Event()

    def run(self) -> None:
        applied = 0
        at = 0
        while not self.ends.wait(0.1):
            report = node_report(self.name, lease_applied=applied)
            report["jobs"][0] |= {"name": f"job-{self.name}", "user": 0}
            sent = time.monotonic()
            answer = self.allocators.ask(at, "POST", "/v1/reports", report, timeout_s=2)
            if answer is None or answer.status == 421:
                at = (at + 1) % 3
                continue
            if answer.status == 503 and len(self.leases) == 0:  # leases of before the test may be in force
                continue
            assert answer.status in (200, 503), answer
            if answer.status == 503:
                # Only a request that was under way when its leader was replaced.
                assert b"no longer leads" in answer.body, answer
                continue
            lease = answer.json()["lease"]
            applied = lease["number"]
            self.leases.add(sent, lease)
            self.granted.append((at, {rate["job"]: rate["bytes_per_second"] for rate in lease["rates"]}))


@pytest.mark.parametrize("fault", ["kill", "stop"])
def test_next_leader_grants_at_once_what_the_last_one_granted(allocators: Allocators, fault: str) -> None:
    allocators.start(0, 1, 2)
    old = allocators.leader()
    nodes = [Node(allocators, name) for name in ("a", "b", "c")]
    for node in nodes:
        node.start()

    def is_granted(share: float, by: int | None = None) -> bool:
        assert all(node.is_alive() for node in nodes)
        granted = [[rates for at, rates in node.granted if by in (None, at)][-1:] for node in nodes]
        return all(granted) and sum(sum(rates.values()) for [rates] in granted) > share * REMOTE

    def is_settled() -> bool:
        """Until the plan has settled, what is on record for a node may be more than its last answer."""
        last = [[rates for _, rates in node.granted[-3:]] for node in nodes]
        is_steady = all(rates == pytest.approx(of_node[0], rel=1e-9) for of_node in last for rates in of_node)
        return is_granted(0.9) and is_steady and all(len(of_node) == 3 for of_node in last)

    allocators.until(is_settled, "the remote is not granted")
    if fault == "kill":
        allocators.kill(old)
    else:
        allocators.signal(old, signal.SIGSTOP)
    new = allocators.leader()
    allocators.until(lambda: is_granted(0, new), "no leases of the next leader")
    if fault == "stop":
        allocators.signal(old, signal.SIGCONT)
    for node in nodes:
        node.ends.set()
        node.join()
    for node in nodes:
        last = [rates for at, rates in node.granted if at == old][-1]
        first = next(rates for at, rates in node.granted if at == new)
        assert first == pytest.approx(last, rel=1e-6), node.name
    most = max(sum(node.leases.rate_at(at) for node in nodes) for other in nodes for at in other.leases.begins())
    assert 0.9 * REMOTE < most <= REMOTE * (1 + 1e-9), most


@pytest.mark.parametrize("fault", ["end", "stop"])
def test_leases_of_two_leaders_never_exceed_the_remote(allocators: Allocators, fault: str) -> None:
    allocators.start(0, 1, 2)
    leader = allocators.leader()
    nodes = [Node(allocators, name) for name in ("a", "b", "c")]
    for node in nodes:
        node.start()

    def leased_since(before: list[int]) -> bool:
        assert all(node.is_alive() for node in nodes)
        return all(len(node.leases) > leases for node, leases in zip(nodes, before))

    before = [len(node.leases) for node in nodes]
    allocators.until(lambda: leased_since(before), "no leases")
    allocators.signal(leader, signal.SIGTERM if fault == "end" else signal.SIGSTOP)
    allocators.until(lambda: not allocators.leads(leader), "still leads")
    assert allocators.leader() != leader
    before = [len(node.leases) for node in nodes]
    allocators.until(lambda: leased_since(before), "no leases of the next leader")
    if fault == "stop":
        allocators.signal(leader, signal.SIGCONT)
    before = [len(node.leases) for node in nodes]
    allocators.until(lambda: leased_since(before), "no leases")
    for node in nodes:
        node.ends.set()
        node.join()
    most = max(sum(node.leases.rate_at(at) for node in nodes) for other in nodes for at in other.leases.begins())
    assert 0.5 * REMOTE < most <= REMOTE * (1 + 1e-9), most


def test_jobs_of_an_agent_outlive_their_leader(
    larder_bin: pathlib.Path, tmp_path: pathlib.Path, repository: pathlib.Path
) -> None:
    allocators = Allocators(larder_bin, tmp_path, "--scheduler.engine", "agent", "--scheduler.node.n1.gpus", "4",
                            "--scheduler.directory", str(tmp_path / "jobs"))  # fmt: skip
    agent_directory = tmp_path / "agent"
    agent_directory.mkdir()
    (agent_directory / "nodes").write_text("n1 node_back\n")
    agent = None
    try:
        allocators.start(0, 1, 2)
        leader = allocators.leader()
        with open(tmp_path / "agent.log", "ab") as log:
            agent = subprocess.Popen(
                [sys.executable, repository / "tests" / "servers" / "process_agent.py", allocators.endpoints,
                 agent_directory], stdout=log, stderr=log,
            )  # fmt: skip
        script = f"echo began >>{tmp_path}/runs-$LARDER_JOB; while [ ! -e {tmp_path}/end ]; do sleep 0.05; done"
        submitted = [
            allocators.larder("job", "submit", "--gpus", gpus, "--", "sh", "-c", script)["jobs"][0]["id"]
            for gpus in (2, 2, 4)
        ]

        def states() -> list[str]:
            return [allocators.larder("job", "show", job)["state"] for job in submitted]

        allocators.until(lambda: states() == ["running", "running", "waiting"], "do not run")
        assert allocators.larder("node", "drain", "n1")["jobs"] == 2
        allocators.kill(leader)
        assert allocators.leader() != leader
        assert states() == ["running", "running", "waiting"]
        (node,) = allocators.larder("node", "ls", "--gpus")["nodes"]
        assert "drained" in node and node["jobs"] == 2, "it stays drained under the next leader"
        (tmp_path / "end").touch()
        allocators.until(lambda: states() == ["succeeded", "succeeded", "waiting"], "a drained node takes jobs")
        allocators.larder("node", "undrain", "n1")
        allocators.until(lambda: states() == ["succeeded"] * 3, "do not end")
        runs = [path.read_text() for path in sorted(tmp_path.glob("runs-*"))]
        assert runs == ["began\n"] * 3
    finally:
        if agent is not None:
            agent.kill()
            agent.wait()
        allocators.end()


def test_user_of_etcd_leads_whatever_happens_to_its_tokens(larder_bin: pathlib.Path, tmp_path: pathlib.Path) -> None:
    password = tmp_path / "password"
    password.write_text("first\n")
    password.chmod(0o640)
    allocators = Allocators(
        larder_bin, tmp_path, "--etcd.user", "larder", "--etcd.password-file", str(password), members=1
    )
    endpoint = allocators.etcd.values["endpoints"]

    def etcdctl(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["etcdctl", "--endpoints", endpoint, *words], capture_output=True, text=True, env={"ETCDCTL_API": "3"}
        )

    def admin(*words: str) -> None:
        ran = etcdctl(*words)
        assert ran.returncode == 0, ran

    def registers(job: str) -> None:
        allocators.larder("job", "register", job)

    try:
        allocators.start(0)
        allocators.leader()
        registers("before-users")
        for words in ("role add larder", "role grant-permission larder --prefix=true readwrite /larder/",
                      "user add larder:first", "user grant-role larder larder", "user add root:root",
                      "user grant-role root root", "auth enable"):  # fmt: skip
            admin(*words.split())
        registers("with-users")
        # A change of users ends all tokens.
        admin("--user", "root:root", "user", "add", "other:other")
        registers("after-a-change-of-users")
        # So does a restart of the member.
        allocators.etcd.ask({"kill": 0})
        allocators.etcd.ask({"start": 0})
        registers("after-a-restart")
        denied = etcdctl("--user", "larder:first", "put", "/other", "x")
        assert denied.returncode != 0 and "permission denied" in denied.stderr, denied
        # Another one starts while etcd hangs, has a wrong password, and then the right one. The log names each trouble.
        password.write_text("wrong\n")
        allocators.kill(0)
        allocators.etcd.ask({"pause": 0})
        allocators.start(1)
        allocators.until(lambda: "no answer in time" in allocators.log(1).read_text(), "etcd answers")
        allocators.etcd.ask({"resume": 0})
        refused = 'user "larder": etcdserver: authentication failed'
        allocators.until(lambda: refused in allocators.log(1).read_text().replace("\\", ""), "not refused")
        password.write_text("first\n")
        assert allocators.leader() == 1
        password.chmod(0o644)
        allocators.start(2)
        allocators.until(lambda: "can be read or changed by others" in allocators.log(2).read_text(), "not refused")
        password.chmod(0o640)
        admin("--user", "root:root", "auth", "disable")
        registers("without-users")
        names = {job["name"] for job in allocators.larder("job", "list")["jobs"]}
        assert names == {"before-users", "with-users", "after-a-change-of-users", "after-a-restart", "without-users"}
    finally:
        allocators.end()


def test_local_engine_is_refused(larder_bin: pathlib.Path, tmp_path: pathlib.Path) -> None:
    ran = subprocess.run(
        [larder_bin / "larder-allocator", "--check", "--socket", tmp_path / "a.sock", "--remote-bandwidth", "1 GB/s",
         "--etcd.endpoints", "http://127.0.0.1:2379", "--scheduler.node.n1.gpus", "4",
         "--scheduler.directory", tmp_path],
        capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 2
    assert 'etcd.endpoints needs scheduler.engine = "agent"' in ran.stderr
