#!/usr/bin/python3
"""A user attacks a real daemon with all weapons of attacker.cc, while another user's job reads. The job goes on, its
bytes and counts are right, it gets at least 0.9 of its fair share of the remote's bandwidth, the daemon takes back all
that the attacker had, and ends on SIGTERM. In rounds with an allocator, the user also attacks its socket, and others'
registrations stay. In the other rounds the user owns a dataset, and changes its files while they are indexed and read;
nothing outside of it is served. Needs root, to run programs as other users."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import time

from hostile_user import OTHERS_JOBS, OTHERS_RUN, OTHERS_TENANT, REGISTERED_MAX, ROUND, SUBMITTED
from programs import (
    END_S, Campaign, Child, Failure, Reader, add_data, allocator, descriptors, larderd, resident_bytes, wait_until, write_files,
)  # fmt: skip

HERE = pathlib.Path(__file__).resolve().parent
VICTIM = 65533
ATTACKER = 65534
ROUND_S = 8.0
WARM_UP_S = 30.0  # at most until the plan knows both users' jobs, and the node has all of the remote's bandwidth
SETTLE_S = 2.0
ATTACKERS = 3
REMOTE = 8_000_000  # bytes/s
SHARE = 0.9
EPOCH_S_MAX = 60.0  # under a sanitizer, at half the remote's bandwidth an epoch takes less than 2 s
ANSWER_S_MAX = 5.0
TASK_S_MAX = 30.0  # a warming task included
DESCRIPTORS_LEFT_MAX = 16
JOBS = 2000  # names of the attacker's jobs
# Weapons of hostile_user.py.
FILES = "files"  # in rounds without an allocator
ALLOCATOR = "allocator"  # in rounds with one
SECRET = "bytes that nobody but root may read; "
WEAPONS = (
    "garbage", "odd-opens", "handshakes", "sessions", "memory", "mapped", "halves", "descriptors", "event", "futex", "ring",
    "requests", "hog", "reports", "messages", "sent-descriptors", "explain", "metrics", FILES, ALLOCATOR,
)  # fmt: skip


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Round:
    def __init__(self, campaign: Campaign, work: pathlib.Path, seed: int) -> None:
        self.campaign = campaign
        self.work = work
        self.draw = random.Random(seed)
        # Half of the rounds have an allocator that leases the remote's bandwidth. In the others all is cached.
        self.leased = self.draw.random() < 0.5
        self.files = work / "files"
        write_files(self.files, 150, 60_000, seed)
        # The build may lie where other users may not go.
        self.programs = {}
        for name in ("larder-test-reader", "larder-test-attacker"):
            self.programs[name] = pathlib.Path(shutil.copy(campaign.bin / name, work / name))
        self.scheduler = None
        options: list[object] = []
        if self.leased:
            # So long that no lease expires on a busy machine.
            self.scheduler = allocator(
                campaign, work, "--remote-bandwidth", f"{REMOTE} B/s", "--floor", "1 MB/s", "--socket-mode", "0666",
                "--objective", "max-min", "--scheduler.gpus", "3", "--scheduler.tenant.default.priority-max", "0",
                f"--scheduler.tenant.{OTHERS_TENANT}.submitters", str(VICTIM), lease="4 s",
            )  # fmt: skip
            self.scheduler.start()
            options = ["--allocator.endpoint", self.scheduler.socket, "--allocator.node", "node"]
        self.port = free_port()
        io = self.draw.choice(["auto", "threads"])
        self.daemon = larderd(
            campaign, work, "--socket-mode", "0666", "--metrics-listen", f"127.0.0.1:{self.port}", "--io", io, *options,
            environment={"TSAN_OPTIONS": "halt_on_error=1", "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1"},
        )  # fmt: skip
        self.daemon.start()
        cached = 0 if self.leased else 1 << 25
        add_data(self.daemon, self.files, cached, cached)
        self.reader = Reader(
            self.programs["larder-test-reader"], work / "d" / "larderd.sock", self.files, work / "reader.log",
            job="victim", seed=seed, user=VICTIM, group=VICTIM, extra_groups=[],
        )  # fmt: skip
        self.user_program = pathlib.Path(shutil.copy(HERE / "hostile_user.py", work / "hostile_user.py"))
        self.registered = self.register_victims() if self.leased else []
        self.thief: Reader | None = None  # the attacker's job that reads their dataset
        self.thefts = 0
        self.tasks: list[int] = []  # of the attacker's dataset
        if not self.leased:
            self.make_trap(seed)
        self.attackers: list[tuple[Child, pathlib.Path]] = []
        self.stopped: list[Child] = []
        self.count = 0

    def user_command(self, *words: object) -> list[object]:
        return ["/usr/bin/python3", "-I", self.user_program, *words]

    def register_victims(self) -> list[dict[str, object]]:
        """The victim registers its job and another one, and submits a third; an operator registers a fourth. Returns the
        rows of those that are registered."""
        assert self.scheduler is not None
        bodies = [{"name": name, "bandwidth_cap_bytes_per_second": 1e12} for name in ("victim", "victim-later")]
        script = f"touch {self.work}/victims/$LARDER_ATTEMPT; echo secret; exec sleep 1000"
        (self.work / "victims").mkdir()
        os.chown(self.work / "victims", VICTIM, VICTIM)
        run = {
            "name": OTHERS_RUN, "tenant": OTHERS_TENANT, "command": ["sh", "-c", script], "directory": "/", "gpus": 1,
            "environment": {ROUND: str(self.work)},
        }  # fmt: skip
        for target, posted in (("/v1/jobs", bodies), ("/v1/queue", [{"jobs": [run]}])):
            subprocess.run(
                list(map(str, self.user_command("post", self.scheduler.socket, target, *map(json.dumps, posted)))),
                user=VICTIM, group=VICTIM, extra_groups=[], check=True,
            )  # fmt: skip
        answer = self.scheduler.ask("POST", "/v1/jobs", {"name": "operators", "weight": 3, "bandwidth_floor_bytes_per_second": 9.0})
        if answer.status != 200:
            raise Failure(f"the operator could not register a job: {answer.body!r}")
        wait_until(
            lambda: len(self.registrations()[0]) == len(OTHERS_JOBS), 30, "the victim's jobs are registered", self.scheduler.check
        )
        return self.registrations()[0]

    def registrations(self) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
        """Returns the declarations of the others' jobs, and the rows of the attacker's registrations."""
        assert self.scheduler is not None
        rows = [row for row in self.scheduler.get("/v1/jobs")["jobs"] if row["registered"]]
        others = [row for row in rows if row["name"] in OTHERS_JOBS]
        keys = ("name", "user", "weight", "bandwidth_cap_bytes_per_second")
        declared = [{key: row.get(key) for key in keys} for row in others]
        return declared, [row for row in rows if row["name"] not in OTHERS_JOBS]

    def check_registrations(self) -> None:
        others, attackers = self.registrations()
        if others != self.registered:
            raise Failure(f"registrations of others have changed: they were {self.registered}, and are {others}")
        own = [row for row in attackers if not str(row["name"]).startswith(SUBMITTED)]
        if len(own) > REGISTERED_MAX:
            raise Failure(f"the attacker has registered {len(own)} jobs")
        for row in attackers:
            floor = 0 if row["running"] else row["bandwidth_floor_bytes_per_second"]
            if row.get("user") != ATTACKER or row["weight"] > 1 or floor > 0:  # type: ignore[operator]
                raise Failure(f"the attacker has registered what it must not: {row}")
        self.campaign.report(registrations=len(own))

    def check_queue(self) -> None:
        """The victim's job runs in its first attempt. Ends all jobs: their processes must go with them."""
        assert self.scheduler is not None
        scheduler = self.scheduler
        job = scheduler.get(f"/v1/queue/{OTHERS_RUN}")
        attempts = os.listdir(self.work / "victims")
        if job["state"] != "running" or job["attempt"] != 1 or attempts != ["1"]:
            raise Failure(f"the victim's job was disturbed: {job}, attempts {attempts}")
        self.end_jobs()
        self.campaign.report(submissions=len(scheduler.get("/v1/history?limit=100000")["jobs"]) - 1)
        wait_until(lambda: not self.jobs_processes(), 30, "no process of a job is left", self.check_daemon)

    def end_jobs(self) -> None:
        assert self.scheduler is not None
        scheduler = self.scheduler
        for job in scheduler.get("/v1/queue")["jobs"]:
            scheduler.ask("DELETE", f"/v1/queue/{job['id']}")
        wait_until(lambda: not scheduler.get("/v1/queue")["jobs"], 60, "all jobs have ended", scheduler.check)

    def jobs_processes(self) -> list[str]:
        """The processes of this round's jobs."""
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if f"{ROUND}={self.work}".encode() in pathlib.Path("/proc", name, "environ").read_bytes().split(b"\0"):
                    found.append(name)
        return found

    def make_trap(self, seed: int) -> None:
        """Adds a dataset "theirs" whose files belong to the attacker. Files of the same names and sizes, which only root
        may read, lie beside it."""
        self.kinds = self.draw.randrange(1 << 32)
        self.tree, secrets = self.work / "theirs", self.work / "secrets"
        write_files(self.tree, 60, 20_000, seed + 1)
        for file in self.tree.rglob("*.bin"):
            secret = secrets / file.relative_to(self.tree)
            secret.parent.mkdir(parents=True, exist_ok=True)
            size = file.stat().st_size
            secret.write_bytes((SECRET.encode() * (size // len(SECRET) + 1))[:size])
            for path in (file, secret):
                os.utime(path, ns=(1_700_000_000_000_000_000,) * 2)
        secrets.chmod(0o700)
        for path in (self.tree, *self.tree.rglob("*")):
            os.chown(path, ATTACKER, ATTACKER)
        # Without a quota each read comes from the files.
        quota = self.draw.choice([0, 1 << 17])
        add_data(self.daemon, self.tree, quota, quota, "theirs", bool(self.campaign.options.follow))

    def steal(self) -> None:
        """Keeps a job of the attacker's reading their dataset, and has it indexed again now and then."""
        if self.thief is not None and self.thief.has_ended():
            if self.thief.wait(1) == 3:
                raise Failure(f"a file outside of the dataset was served: {self.thief.output()[-1000:]}")
            self.thief = None
        if self.thief is None:
            self.thefts += 1
            self.thief = Reader(
                self.programs["larder-test-reader"], self.work / "d" / "larderd.sock", self.tree,
                self.work / f"thief-{self.thefts}.log", job="thief", seed=self.draw.randrange(1 << 32), dataset="theirs",
                forbidden=SECRET[:16], user=ATTACKER, group=ATTACKER, extra_groups=[],
            )  # fmt: skip
            self.campaign.report(thefts=1)
        if self.draw.random() < 0.3:
            answer = self.daemon.ask("POST", f"/v1/datasets/theirs/{self.draw.choice(['index', 'index', 'warm', 'verify'])}")
            if answer.status not in (202, 409):
                raise Failure(f"no task was begun: {answer.status} {answer.body!r}")
            if answer.status == 202:
                self.tasks.append(answer.json()["task"])
                self.campaign.report(tasks=1)

    def runs(self, task: int) -> bool:
        answer = self.daemon.ask("GET", f"/v1/tasks/{task}")
        return answer.status != 404 and answer.json()["state"] == "running"

    def check_nothing_stolen(self) -> None:
        """Nothing from outside of the dataset is on the daemon's disk either, and no task goes on forever."""
        for task in self.tasks:
            wait_until(lambda task=task: not self.runs(task), TASK_S_MAX, f"task {task} has ended", self.check_daemon)
        for path in (self.work / "d").rglob("*"):
            if path.is_file() and SECRET[:16].encode() in path.read_bytes():
                raise Failure(f"{path} has bytes from outside of the dataset")

    def start_user(self, mode: str) -> None:
        self.count += 1
        log = self.work / f"attacker-{self.count}.log"
        seconds, seed = f"{self.draw.uniform(0.5, 4):.2f}", self.draw.randrange(1 << 32)
        if mode == FILES:
            words = [mode, self.tree, self.work / "secrets", seconds, seed, self.kinds]
        else:
            assert self.scheduler is not None
            words = [mode, self.scheduler.socket, VICTIM, seconds, seed]
        child = Child(self.user_command(*words), log, user=ATTACKER, group=ATTACKER, extra_groups=[])
        self.attackers.append((child, log))

    def start_attacker(self, weapons: list[str]) -> None:
        own = [mode for mode in (FILES, ALLOCATOR) if mode in weapons and self.leased == (mode == ALLOCATOR)]
        weapons = [name for name in weapons if name not in (FILES, ALLOCATOR)]
        if own and (not weapons or self.count % ATTACKERS == 0):
            return self.start_user(own[0])
        self.count += 1
        log = self.work / f"attacker-{self.count}.log"
        seconds = self.draw.uniform(0.5, 4)
        child = Child(
            [self.programs["larder-test-attacker"], self.work / "d" / "larderd.sock", "data", "victim", self.port,
             JOBS, f"{seconds:.2f}", self.draw.randrange(1 << 32), *weapons],
            log, user=ATTACKER, group=ATTACKER, extra_groups=[],
        )  # fmt: skip
        self.attackers.append((child, log))

    def step(self, weapons: list[str]) -> None:
        """Replaces attackers that have ended, and kills or stops one now and then."""
        for child, log in list(self.attackers):
            code = child.process.poll()
            if code is None:
                continue
            self.attackers.remove((child, log))
            text = log.read_text(errors="replace")
            if "BREACH" in text or code == 4:
                raise Failure(f"the attacker got what it must not: {text[-1000:]}")
            if code == 2:
                raise SystemExit(f"the attacker was started wrongly: {text}")
            self.campaign.report(attackers=1)
        while len(self.attackers) < ATTACKERS:
            self.start_attacker(weapons)
        if self.draw.random() < 0.03:
            self.draw.choice(self.attackers)[0].process.kill()
        elif self.draw.random() < 0.03:
            child = self.draw.choice(self.attackers)[0]
            child.process.send_signal(signal.SIGSTOP)
            self.stopped.append(child)

    def check_daemon(self) -> None:
        self.daemon.check()
        self.reader.check()
        began_s = time.monotonic()
        answer = self.daemon.ask("GET", "/healthz")
        if answer.status != 200:
            raise Failure(f"the daemon answered its administrator with {answer.status}: {answer.body!r}")
        took_s = time.monotonic() - began_s
        limit_s = ANSWER_S_MAX * (6 if self.campaign.sanitizer else 1)
        if took_s > limit_s:
            raise Failure(f"the daemon took {took_s:.1f} s to answer its administrator")

    def jobs(self) -> dict[str, dict[str, float]]:
        """Returns each job's rate on the node, the bytes it got from the remote, and the bytes it paid for."""
        return {
            job["job"]: {
                "rate": job["remote_rate"],
                "read": job["counters"]["bytes_remote_read"],
                "got": job["counters"]["bytes_remote"],
            }
            for job in self.daemon.get("/v1/jobs")["jobs"]
        }

    def run(self, weapons: list[str]) -> None:
        wait_until(lambda: self.reader.epochs() >= 1, EPOCH_S_MAX, "the victim has read an epoch", self.check_daemon)
        before = descriptors(self.daemon.pid)
        began_s = time.monotonic()
        share = None
        if self.leased:
            while not self.is_planned():
                self.attack(weapons)
                if time.monotonic() - began_s > WARM_UP_S:
                    raise Failure(f"the node did not get the remote's bandwidth within {WARM_UP_S:g} s: {self.jobs()}")
            settled_s = time.monotonic() + SETTLE_S
            while time.monotonic() < settled_s:
                self.attack(weapons)
        began_s, before_jobs, rates = time.monotonic(), self.jobs() if self.leased else {}, []
        while time.monotonic() - began_s < ROUND_S:
            self.attack(weapons)
            if self.leased:
                rates.append(self.jobs()["victim"]["rate"])
        if self.leased and not self.campaign.sanitizer:
            seconds, after = time.monotonic() - began_s, self.jobs()
            granted = (after["victim"]["read"] - before_jobs["victim"]["read"]) / seconds
            rate = sum(rates) / len(rates)
            what = f"in {seconds:.1f} s; its rate was {rate:.0f} B/s; jobs before {before_jobs}, after {after}"
            share = granted / (REMOTE / 2)
            self.campaign.report(leased_rounds=1, share_sum=round(share, 3))
        epochs = self.reader.epochs()
        wait_until(
            lambda: self.reader.epochs() > epochs, EPOCH_S_MAX, "the victim has read an epoch under attack", self.check_daemon
        )
        self.check_counts()
        self.end_attackers()
        if self.leased:
            self.check_registrations()
            self.check_queue()
        else:
            self.check_nothing_stolen()
        if share is not None and share < SHARE:
            raise Failure(f"the victim got {share:.2f} of its fair share, {REMOTE / 2 / 1e6:g} MB/s, {what}")
        # The daemon must get back all that the attackers had, and the victim must go on.
        wait_until(
            lambda: self.daemon.get("/v1/status")["sessions"] <= 1, 30, "only the victim's session is left", self.check_daemon
        )
        # Each version of a dataset has two for some minutes.
        most = before + DESCRIPTORS_LEFT_MAX + 2 * len(self.tasks)
        wait_until(
            lambda: descriptors(self.daemon.pid) <= most, 30,
            f"the daemon has at most {most} descriptors (before: {before}; now {descriptors(self.daemon.pid)})",
            self.check_daemon,
        )  # fmt: skip
        if resident_bytes(self.daemon.pid) > 4 << 30:
            raise Failure(f"the daemon kept {resident_bytes(self.daemon.pid)} bytes of memory")
        epochs = self.reader.epochs()
        wait_until(
            lambda: self.reader.epochs() > epochs, EPOCH_S_MAX, "the victim has read an epoch after it", self.check_daemon
        )
        counters = self.daemon.get("/v1/datasets/data")["counters"]
        if counters["crc_failures"] != 0:
            raise Failure(f"an attacker damaged the cache: {counters}")
        # Both ends, the victim's first or the daemon's first.
        if self.draw.random() < 0.5:
            self.reader.end()
            self.daemon.end(END_S)
        else:
            self.daemon.end(END_S)
            self.reader.end()
        self.campaign.report(rounds=1)

    def check_counts(self) -> None:
        """What the node counts for the victim's job is what the victim has read, and nothing of the attackers."""
        before, epochs = self.reader.bytes(), self.reader.epochs()
        counted = next(job["bytes"] for job in self.daemon.get("/v1/jobs")["jobs"] if job["job"] == "victim")
        # The epoch in progress has ended by then, and so has the one whose first batches may be counted.
        wait_until(
            lambda: self.reader.epochs() >= epochs + 2, EPOCH_S_MAX, "the victim has read two epochs", self.check_daemon
        )
        if not before <= counted <= self.reader.bytes():
            raise Failure(f"the node counted {counted} bytes for the victim, which has read {before} to {self.reader.bytes()}")

    def is_planned(self) -> bool:
        assert self.scheduler is not None
        nodes = self.scheduler.get("/v1/nodes")["nodes"]
        lease = nodes[0].get("lease") if nodes else None
        has_all = lease is not None and lease["bytes_per_second"] >= 0.95 * REMOTE
        return has_all and self.jobs()["victim"]["rate"] < 0.95 * REMOTE

    def attack(self, weapons: list[str]) -> None:
        self.step(weapons)
        if not self.leased and FILES in weapons:
            self.steal()
        self.check_daemon()
        time.sleep(0.1)

    def end_attackers(self) -> None:
        for child, log in self.attackers:
            if child in self.stopped or self.draw.random() < 0.5:
                child.process.kill()
            child.process.wait()
            if "BREACH" in log.read_text(errors="replace"):
                raise Failure(f"the attacker got what it must not: {log.read_text(errors='replace')[-1000:]}")
        self.attackers.clear()
        if self.thief is not None:
            self.thief.discard()
            self.thief = None

    def discard(self) -> None:
        for child, _ in self.attackers:
            child.process.kill()
            child.process.wait()
        if self.thief is not None:
            self.thief.discard()
        self.reader.discard()
        self.daemon.discard()
        # rmtree of shutil cannot remove trees this deep.
        subprocess.run(["rm", "-rf", self.work / "theirs"], check=False)
        if self.scheduler is not None:
            self.scheduler.discard()
            for pid in self.jobs_processes():
                with contextlib.suppress(OSError):
                    os.kill(int(pid), signal.SIGKILL)


def main() -> int:
    campaign = Campaign(
        __doc__,
        weapons={"default": ",".join(WEAPONS), "help": "weapons of attacker.cc and hostile_user.py, with commas between"},
        follow={"type": int, "default": 0, "help": "1: follow all links in the attacker's dataset; this must be found"},
    )
    if os.geteuid() != 0:
        campaign.report(skipped="only root can run programs as other users")
        return 0
    weapons = [word for word in campaign.options.weapons.split(",") if word]
    seed = campaign.seed * 1000
    while campaign.left_s() > 0 or seed == campaign.seed * 1000:
        with campaign.directory(f"seed-{seed}") as work:
            attack = Round(campaign, work, seed)
            try:
                attack.run(weapons)
            finally:
                attack.discard()
        seed += 1
    return campaign.exit_code()


if __name__ == "__main__":
    sys.exit(main())
