#!/usr/bin/python3
"""Three allocators, an etcd of three members and two node daemons, each on a machine of its own (a network namespace,
and clocks that disagree with the others'), lose each other at random: the leader is killed, stopped for a while, or cut
off from etcd, from the clients, or from all; its wall clock jumps; members of etcd are killed or cut off; a node is cut
off. Meanwhile clients register jobs and read the registrations, jobs read through the daemons, other nodes only report
and take leases, and an agent runs submitted jobs.

Whenever a majority of etcd and an allocator are well, one leads within 10 s. The answers to the clients are those of
registers that behave one operation at a time (checked by porcupine, a checker of linearisability). The rates in force on
all nodes never add up to more than the remote's bandwidth, and neither do the bytes that the daemons take from it. A new
leader carries leases over: it never waits for those of its predecessor, and no job falls to its floor in its first
answer. Each acknowledged job runs once. Needs root."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import itertools
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time

from clocks import BootClocks, WallClock
from programs import Campaign, Child, Failure, wait_until
from reading_nodes import ReadingNode, check_bytes, write_dataset

import kubernetes
from allocator_process import HeldLeases, node_report
from http_api import Answer, UnixConnection, ask
from machines import Machines, in_own_network

HERE = pathlib.Path(__file__).resolve().parent
REMOTE = 40_000_000  # bytes/s
FLOOR = 100_000
LEASE_S = 8  # longer than it takes until another allocator leads
TAKE_OVER_S = 10.0
STOPPED_S = 30.0
# Until a leader that was cut off has stepped down, and for the requests that it held up.
SETTLE_S = 60.0
CLIENTS = 4
UNDECIDED = 3  # exit code of `linearizable`
NODES = 3  # that only report
KEYS = ("a", "b", "c", "d")
FAULTS_OF_ROUND = 4
ALLOCATORS = ("a0", "a1", "a2")
MEMBERS = ("e0", "e1", "e2")
READING = ("r0", "r1")
ADDRESS = {name: f"10.99.0.{number}" for number, name in enumerate((*ALLOCATORS, *MEMBERS, *READING), start=1)}
CLIENT = "10.99.0.100"
REFUSED = Answer(421, "", {}, b"")  # in place of an answer if nobody listens


@dataclasses.dataclass
class History:
    """What the clients asked and were answered, for `linearizable`."""

    path: pathlib.Path
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    operations: int = 0

    def add(self, **operation: object) -> None:
        with self.lock, open(self.path, "a") as file:
            file.write(json.dumps(operation) + "\n")
            self.operations += 1


class Cluster:
    def __init__(self, campaign: Campaign, work: pathlib.Path, machines: Machines, draw: random.Random) -> None:
        self.campaign = campaign
        self.work = work
        self.machines = machines
        self.clocks = BootClocks(ADDRESS, draw)
        self.wall_clocks = {
            name: WallClock(campaign.bin / "larder_wall_clock.so", work / f"{name}.clock", draw) for name in ALLOCATORS
        }
        self.children: dict[str, Child] = {}
        self.stopped: set[str] = set()
        self.ending = threading.Event()
        self.token = "0123456789abcdef0123456789abcdef"
        tokens = [f"operator clients {self.token}"]
        for name in READING:
            self.token_file(name).write_text(f"{name}{self.token}\n")
            tokens.append(f"node {name} {name}{self.token}")
        (work / "tokens").write_text("\n".join(tokens) + "\n")
        for file in (work / "tokens", *map(self.token_file, READING)):
            file.chmod(0o600)

    def start(self, name: str) -> None:
        address = ADDRESS[name]
        if name in MEMBERS:
            cluster = ",".join(f"{member}=http://{ADDRESS[member]}:2380" for member in MEMBERS)
            command: list[object] = [
                "etcd", "--name", name, "--data-dir", self.work / name, "--initial-cluster", cluster,
                "--listen-client-urls", f"http://{address}:2379", "--advertise-client-urls", f"http://{address}:2379",
                "--listen-peer-urls", f"http://{address}:2380", "--initial-advertise-peer-urls", f"http://{address}:2380",
                "--logger", "zap", "--log-level", "warn", "--log-outputs", "stderr",
            ]  # fmt: skip
        else:
            command = [
                self.campaign.bin / "larder-allocator", "--socket", self.socket(name), "--remote-bandwidth", f"{REMOTE} B/s",
                "--lease", f"{LEASE_S} s", "--floor", f"{FLOOR} B/s", "--listen", f"{address}:7600", "--plain-tcp", "true",
                "--access.tokens", self.work / "tokens", "--etcd.name", name, "--etcd.lease", "3 s",
                "--etcd.endpoints", ",".join(f"http://{ADDRESS[member]}:2379" for member in MEMBERS),
                "--scheduler.engine", "agent", "--scheduler.node.n1.gpus", "64",
                "--scheduler.directory", self.work / "jobs",
            ]  # fmt: skip
        # A sanitizer's runtime must be loaded before any other library.
        apart = {} if name in MEMBERS or self.campaign.sanitizer else self.wall_clocks[name].environment()
        prefix = self.prefix(name)
        if apart:
            prefix += ["env", *(f"{variable}={value}" for variable, value in apart.items())]
        self.children[name] = Child([*prefix, *command], self.work / f"{name}.log")

    def prefix(self, name: str) -> list[object]:
        """The words before a command line that run it on this machine."""
        return [*self.machines.on(name), *self.clocks.of(name)]

    def token_file(self, name: str) -> pathlib.Path:
        return self.work / f"{name}.token"

    def socket(self, name: str) -> pathlib.Path:
        return self.work / f"{name}.sock"

    def check(self) -> None:
        for name, child in self.children.items():
            code = child.process.poll()
            if code is not None and code not in (0, -signal.SIGKILL):
                log = (self.work / f"{name}.log").read_text(errors="replace")[-3000:]
                raise Failure(f"{name} ended by itself with {code}:\n{log}")

    def ask(self, name: str, method: str, target: str, body: object = None, timeout_s: float = 2.0) -> Answer | None:
        """Over the network. REFUSED: nobody listens there. None: there was no answer."""
        connection = http.client.HTTPConnection(ADDRESS[name], 7600, timeout=timeout_s)
        try:
            return ask(connection, method, target, body, {"Authorization": f"Bearer {self.token}"})
        except ConnectionRefusedError:
            return REFUSED
        except (OSError, http.client.HTTPException):
            return None

    def leads(self, name: str) -> bool:
        """True if it says so, asked on its own machine."""
        if name in self.stopped or self.children[name].process.poll() is not None:
            return False
        connection = UnixConnection(self.socket(name))
        connection.timeout = 1
        try:
            return ask(connection, "GET", "/v1/status").status == 200
        except (OSError, http.client.HTTPException):
            return False

    def leader(self) -> str | None:
        """Who says that it leads. Two cannot at a time: one that says so before and after another breaks a promise."""
        leaders = [name for name in ALLOCATORS if self.leads(name)]
        if len(leaders) > 1 and self.leads(leaders[0]):
            raise Failure(f"{leaders} lead at a time")
        return leaders[-1] if leaders else None

    def wait_for_leader(self, seconds: float, other_than: str = "") -> str:
        def leader() -> str | None:
            found = self.leader()
            return found if found != other_than else None

        return wait_until(leader, seconds, f"an allocator other than {other_than or 'none'} leads", self.check)

    def etcd_is_well(self) -> bool:
        """True if each member knows a leader of etcd."""
        for member in MEMBERS:
            connection = http.client.HTTPConnection(ADDRESS[member], 2379, timeout=2)
            try:
                if ask(connection, "GET", "/health").json() != {"health": "true"}:
                    return False
            except (OSError, http.client.HTTPException):
                return False
        return True

    def kill(self, name: str) -> None:
        self.children[name].process.kill()
        self.children[name].process.wait()

    def stop(self, name: str) -> None:
        self.stopped.add(name)
        self.children[name].process.send_signal(signal.SIGSTOP)

    def resume(self, name: str) -> None:
        self.children[name].process.send_signal(signal.SIGCONT)
        self.stopped.discard(name)

    def end(self) -> None:
        self.ending.set()
        for name in list(self.stopped):
            self.resume(name)
        for child in self.children.values():
            child.stop(signal.SIGKILL)


class Worker(threading.Thread):
    """A thread of the load. An exception in it is the round's."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(daemon=True)
        self.cluster = cluster
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self.work()
        except Exception as error:  # raised again by `finish`
            self.error = error

    def work(self) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        self.join()
        if self.error is not None:
            raise self.error


class Client(Worker):
    """Registers jobs with weights, removes them, and reads their weights."""

    def __init__(self, cluster: Cluster, number: int, seed: int, history: History, values: itertools.count[int]) -> None:
        super().__init__(cluster)
        self.number = number
        self.draw = random.Random(seed)
        self.history = history
        self.values = values
        self.acknowledged = 0

    def work(self) -> None:
        names = list(ALLOCATORS)
        while not self.cluster.ending.wait(0.02):
            key = self.draw.choice(KEYS)
            called_ns = time.monotonic_ns()
            kind = self.draw.choice(("write", "write", "remove", "read", "read", "read"))
            value = next(self.values) if kind == "write" else 0
            if kind == "write":
                answer = self.cluster.ask(names[0], "POST", "/v1/jobs", {"name": key, "weight": value})
            elif kind == "remove":
                answer = self.cluster.ask(names[0], "DELETE", f"/v1/jobs/{key}")
            else:
                answer = self.cluster.ask(names[0], "GET", "/v1/jobs")
            returned_ns = time.monotonic_ns()
            if answer is None or answer.status != 200:
                names.append(names.pop(0))
                time.sleep(0.1)
            done = answer is not None and (answer.status == 200 or (kind == "remove" and answer.status == 404))
            if kind == "read":
                if done:
                    assert answer is not None
                    jobs = {job["name"]: job["weight"] for job in answer.json()["jobs"] if job["registered"]}
                    value = int(jobs.get(key, 0))
                else:
                    continue
            elif answer is not None and answer.status == 421:  # certainly not done
                continue
            self.acknowledged += done
            self.history.add(
                client=self.number, key=key, write=kind != "read", value=value, called_ns=called_ns,
                returned_ns=returned_ns if done else None,
            )  # fmt: skip
            if not done:  # a client does one thing at a time, and this one may still be under way
                self.number += CLIENTS


class Node(Worker):
    """Reports for a node, as larderd does, and notes which rates are in force there, and when."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        super().__init__(cluster)
        self.node = name
        self.leases = HeldLeases()
        self.granted = ("", 0.0)  # by which allocator, and the bytes/s
        self.carried_over = 0

    def work(self) -> None:
        applied = 0
        names = list(ALLOCATORS)
        while not self.cluster.ending.wait(0.1):
            report = node_report(self.node, lease_applied=applied)
            report["jobs"][0] |= {"name": f"job-{self.node}"}
            sent = time.monotonic()
            answer = self.cluster.ask(names[0], "POST", "/v1/reports", report)
            if answer is None or answer.status == 421:
                names.append(names.pop(0))
            if answer is not None and b"rates leased before the allocator's start" in answer.body and len(self.leases) > 0:
                raise Failure(f"a leader waits for leases that are on record: {answer.body!r}")
            if answer is None or answer.status in (421, 503):
                continue
            if answer.status != 200:
                raise Failure(f"a report was answered with {answer.status}: {answer.body!r}")
            lease = answer.json()["lease"]
            applied = lease["number"]
            self.leases.add(sent, lease)
            self.note_carry_over(names[0], sum(rate["bytes_per_second"] for rate in lease["rates"]))

    def note_carry_over(self, leader: str, rate: float) -> None:
        """The first lease of another leader carries the last one's rates over. Its job does not fall to its floor."""
        last_leader, last_rate = self.granted
        self.granted = (leader, rate)
        if last_leader in ("", leader) or last_rate < 10 * FLOOR:
            return
        if rate < 5 * FLOOR:
            raise Failure(f"{leader} granted {self.node} {rate} bytes/s after {last_leader} granted {last_rate}")
        self.carried_over += 1


class Submitter(Worker):
    """Submits jobs that write down each run."""

    def __init__(self, cluster: Cluster, runs: pathlib.Path) -> None:
        super().__init__(cluster)
        self.runs = runs
        self.acknowledged: list[int] = []

    def work(self) -> None:
        names = list(ALLOCATORS)
        while not self.cluster.ending.wait(0.5):
            script = f"echo $LARDER_ATTEMPT >>{self.runs}/$LARDER_JOB_ID; sleep 0.2"
            body = {"jobs": [{"command": ["sh", "-c", script], "directory": "/", "gpus": 1}]}
            connection = UnixConnection(self.cluster.socket(names[0]))
            connection.timeout = 3
            try:
                answer = ask(connection, "POST", "/v1/queue", body)
            except (OSError, http.client.HTTPException):
                names.append(names.pop(0))
                continue
            if answer.status == 200:
                self.acknowledged += [job["id"] for job in answer.json()["jobs"]]
            elif answer.status in (421, 503, 500):
                names.append(names.pop(0))
            else:
                raise Failure(f"a submission was answered with {answer.status}: {answer.body!r}")


class Round:
    def __init__(self, campaign: Campaign, work: pathlib.Path, machines: Machines, draw: random.Random) -> None:
        self.campaign = campaign
        self.work = work
        self.draw = draw
        self.cluster = Cluster(campaign, work, machines, draw)
        self.history = History(work / "history")
        self.reading: list[ReadingNode] = []
        self.agent: subprocess.Popen[bytes] | None = None
        (work / "runs").mkdir()

    def start(self) -> None:
        for name in (*MEMBERS, *ALLOCATORS):
            self.cluster.start(name)
        self.cluster.wait_for_leader(SETTLE_S)
        agent = self.work / "agent"
        agent.mkdir()
        (agent / "nodes").write_text("n1 node_back\n")
        sockets = ",".join(str(self.cluster.socket(name)) for name in ALLOCATORS)
        with open(self.work / "agent.log", "ab") as log:
            self.agent = subprocess.Popen(
                [sys.executable, HERE.parent / "servers" / "process_agent.py", sockets, agent], stdout=log, stderr=log
            )
        files = self.work / "files"
        write_dataset(files, self.draw.randrange(1 << 31))
        endpoints = ",".join(f"http://{ADDRESS[name]}:7600" for name in ALLOCATORS)
        for name in READING:
            node = ReadingNode(
                self.campaign, self.cluster.prefix(name), name, self.work / name, files, endpoints,
                self.cluster.token_file(name),
            )  # fmt: skip
            self.reading.append(node)
            node.start(files)

    def fault(self) -> float:
        """Does one thing, and undoes it. Returns the seconds until another allocator led; 0: the leader was well."""
        cluster = self.cluster
        wait_until(cluster.etcd_is_well, SETTLE_S, "all members of etcd are well", cluster.check)
        leader = cluster.wait_for_leader(SETTLE_S)
        etcd = tuple(ADDRESS[member] for member in MEMBERS)
        others = tuple(ADDRESS[name] for name in ALLOCATORS if name != leader)
        nodes = (CLIENT, *(ADDRESS[name] for name in READING))
        kind = self.draw.choice(
            (
                "kill", "end", "stop", "cut from etcd", "cut from clients", "cut from all", "jump", "kill etcd", "cut etcd",
                "cut node",
            )
        )  # fmt: skip
        began = time.monotonic()
        took = 0.0
        if kind in ("kill", "end"):
            if kind == "kill":
                cluster.kill(leader)
            else:
                cluster.children[leader].stop()
            cluster.wait_for_leader(TAKE_OVER_S, leader)
            took = time.monotonic() - began
            cluster.start(leader)
        elif kind == "stop":
            cluster.stop(leader)
            cluster.wait_for_leader(TAKE_OVER_S, leader)
            took = time.monotonic() - began
            time.sleep(self.draw.choice((self.draw.uniform(0, 5), STOPPED_S - took)))
            cluster.resume(leader)
        elif kind in ("cut from etcd", "cut from all"):
            mend = cluster.machines.cut(leader, etcd if kind == "cut from etcd" else (*etcd, *others, *nodes))
            cluster.wait_for_leader(TAKE_OVER_S, leader)
            took = time.monotonic() - began
            time.sleep(self.draw.uniform(0, 5))
            mend()
        elif kind == "cut from clients":
            mend = cluster.machines.cut(leader, nodes)
            time.sleep(self.draw.uniform(1, 5))
            mend()
        elif kind == "cut node":  # beyond the end of its lease, in half of all cases
            mend = cluster.machines.cut(self.draw.choice(READING), tuple(ADDRESS[name] for name in ALLOCATORS))
            time.sleep(self.draw.uniform(1, 2 * LEASE_S))
            mend()
        elif kind == "jump":
            cluster.wall_clocks[leader].jump()
        else:
            member = self.draw.choice(MEMBERS)
            if kind == "kill etcd":
                cluster.kill(member)
                time.sleep(self.draw.uniform(0, 3))
                cluster.start(member)
            else:
                mend = cluster.machines.cut(member, tuple(address for address in etcd if address != ADDRESS[member]))
                time.sleep(self.draw.uniform(1, 5))
                mend()
            # etcd elects a leader first, which may keep an allocator's lease for another length of it.
            cluster.wait_for_leader(SETTLE_S)
        self.campaign.report(**{kind.replace(" ", "_"): 1})
        return took

    def run(self) -> None:
        values = itertools.count(1)
        workers: list[Worker] = [
            Client(self.cluster, number, self.draw.randrange(1 << 31), self.history, values) for number in range(CLIENTS)
        ]
        nodes = [Node(self.cluster, f"n{number}") for number in range(NODES)]
        submitter = Submitter(self.cluster, self.work / "runs")
        workers += [*nodes, submitter]
        self.start()
        for worker in workers:
            worker.start()
        # The first leader of a new etcd waits for the leases of one that recorded none.
        wait_until(lambda: all(len(node.leases) > 0 for node in nodes), SETTLE_S, "leases are granted", self.cluster.check)
        longest = max(self.fault() for _ in range(FAULTS_OF_ROUND))
        self.cluster.wait_for_leader(SETTLE_S)
        time.sleep(LEASE_S)
        self.cluster.ending.set()
        for worker in workers:
            worker.finish()
        for node in self.reading:
            node.finish()
        self.check_jobs(submitter.acknowledged)
        self.check_rates(nodes)
        check_bytes(self.reading, [node.leases for node in nodes], REMOTE)
        self.check_history()
        acknowledged = sum(worker.acknowledged for worker in workers if isinstance(worker, Client))
        self.campaign.report(
            rounds=1, operations=acknowledged, jobs=len(submitter.acknowledged), take_over_ms_total=round(longest * 1000),
            bytes_read=sum(node.bytes() for node in self.reading),
            carried_over=sum(node.carried_over for node in nodes),
        )  # fmt: skip

    def check_jobs(self, acknowledged: list[int]) -> None:
        def all_ended() -> bool:
            leader = self.cluster.leader()
            if leader is None:
                return False
            states: dict[int, str] = {}
            for target in ("/v1/queue", f"/v1/history?limit={1 << 20}"):
                answer = ask(UnixConnection(self.cluster.socket(leader)), "GET", target)
                if answer.status != 200:
                    return False
                states |= {job["id"]: job["state"] for job in answer.json()["jobs"]}
            # A job that ends between the two answers is in both.
            if lost := [job for job in acknowledged if job not in states]:
                raise Failure(f"jobs {lost} were acknowledged and are not there")
            return all(state == "succeeded" for state in states.values())

        wait_until(all_ended, SETTLE_S, "all jobs have succeeded", self.cluster.check)
        for job in acknowledged:
            file = self.work / "runs" / str(job)
            runs = file.read_text().split() if file.exists() else []
            if runs != ["1"]:
                raise Failure(f"job {job} ran {len(runs)} times, in attempts {runs}")

    def check_rates(self, nodes: list[Node]) -> None:
        for at in sorted(begins for node in nodes for begins in node.leases.begins()):
            rates = [node.leases.rate_at(at) for node in nodes]
            if sum(rates) > REMOTE * (1 + 1e-9):
                raise Failure(f"the rates {rates} were in force at a time, together more than {REMOTE}")

    def check_history(self) -> None:
        checker = self.campaign.build / "linearizable"
        checked = subprocess.run(
            [checker, self.history.path, self.work / "history.html"], capture_output=True, text=True
        )
        if checked.returncode == UNDECIDED:
            self.campaign.report(undecided=1)
        elif checked.returncode != 0:
            raise Failure(f"no order of the operations explains the answers: {checked.stdout}{checked.stderr}")

    def close(self) -> None:
        for node in self.reading:
            node.discard()
        self.cluster.end()
        if self.agent is not None:
            self.agent.kill()
            self.agent.wait()


def main() -> int:
    campaign = Campaign(__doc__)
    if os.geteuid() != 0:
        campaign.report(skipped="it needs root, to make networks")
        return 0
    if kubernetes.find_go() is None:
        campaign.report(skipped=kubernetes.GO_MISSING)
        return 0
    in_own_network()
    kubernetes.build_program(HERE / "linearizable", campaign.build / "linearizable")
    draw = random.Random(campaign.seed)
    seed = campaign.seed
    while True:
        round_draw = random.Random(seed)
        with (
            campaign.directory(f"round-{seed}") as work,
            Machines(ADDRESS, CLIENT) as machines,
            contextlib.closing(Round(campaign, work, machines, round_draw)) as this,
        ):
            try:
                this.run()
            except Failure as failure:
                campaign.fail(failure, campaign.command(seconds=1, seed=seed))
        if campaign.left_s() <= 0:
            return campaign.exit_code()
        seed = draw.randrange(1, 1 << 31)


if __name__ == "__main__":
    sys.exit(main())
