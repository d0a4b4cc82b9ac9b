#!/usr/bin/python3
"""Cuts the power of a machine that runs larderd or larder-allocator: at its first flush, in the next round at its second,
and so on until a round ends before its flush. Then the walk begins again, with other seeds. The disk keeps what was
flushed before the cut, and some sectors of what was written since. Afterwards the program starts, nobody repairs anything, and all that
was acknowledged is there: datasets, quotas and limits of a node, jobs and settings of the allocator. No byte that a job
reads is wrong.

A library that is loaded into the programs keeps the state of the disk; see ../crash/power_cut.cc. DIR/walks.json keeps
how far each walk is."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from programs import BROKEN, Campaign, Failure, Reader, Server, allocator, larderd, wait_until, write_files

STEP_S = 60.0
WALKS_WITHOUT_BLOCKS = 10
BANDWIDTH = 1_000_000_000  # of the remote, until it is set through the API
QUOTA = {"memory_bytes": 300_000, "disk_bytes": 6_000_000}


class PowerIsOff(Exception):
    """The program under test has no power any more."""


class Disk:
    """The directory `state` of a program, and what a power cut leaves of it."""

    def __init__(self, campaign: Campaign, work: pathlib.Path, state: pathlib.Path) -> None:
        self.state = state
        self._images = work / "images"
        self._counters = work / "counters"
        self._library = campaign.bin / "larder_power_cut.so"
        if not self._library.exists():
            raise FileNotFoundError(f"{self._library}: build the target larder_power_cut")
        self._counters.write_bytes(bytes(16))

    def environment(self, cut_at: int, seed: int) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(self._library),
            "LARDER_POWER_CUT_OF": str(self.state),
            "LARDER_POWER_CUT": str(self._images),
            "LARDER_POWER_CUT_COUNTERS": str(self._counters),
            "LARDER_POWER_CUT_AT": str(cut_at),
            "LARDER_POWER_CUT_SEED": str(seed),
        }

    def is_cut(self) -> bool:
        return bool(struct.unpack("=2Q", self._counters.read_bytes())[1])

    def end_all_processes(self) -> None:
        """Kills every process of the machine: all that have the library loaded."""
        mark = f"LARDER_POWER_CUT_COUNTERS={self._counters}".encode()
        found = True
        while found:
            found = False
            for name in filter(str.isdigit, os.listdir("/proc")):
                with contextlib.suppress(OSError):
                    if mark in pathlib.Path("/proc", name, "environ").read_bytes():
                        os.kill(int(name), signal.SIGKILL)
                        found = True
            time.sleep(0.005)

    def restore(self) -> None:
        """Makes the state what the disk has."""
        shutil.rmtree(self.state, ignore_errors=True)
        self._images.mkdir(exist_ok=True)
        shutil.move(self._images, self.state)


class Round:
    """One program with power, then without, then with power again."""

    def __init__(self, campaign: Campaign, work: pathlib.Path, seed: int) -> None:
        self.campaign = campaign
        self.work = work
        self.draw = random.Random(seed)
        self.recovered = 0  # blocks that the disk had after the cut

    def ask(self, server: Server, method: str, target: str, body: object = None) -> Any:
        """The answer's JSON. Raises PowerIsOff if the program has ended."""
        try:
            answer = server.ask(method, target, body)
        except BROKEN:
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.process.wait(STEP_S)
            if server.returncode() == -signal.SIGKILL:
                raise PowerIsOff from None
            raise Failure(f"{method} {target} has no answer:\n{server.tail()}") from None
        if answer.status >= 300:
            raise Failure(f"{method} {target} answered {answer.status}: {answer.body!r}")
        return answer.json() if answer.body else {}

    def settle(self, server: Server, holds: Callable[[], object], what: str) -> None:
        def check() -> None:
            try:
                server.check()
            except Failure:
                if server.returncode() == -signal.SIGKILL:
                    raise PowerIsOff from None
                raise

        wait_until(holds, STEP_S, what, check)

    def task(self, server: Server, started: Any) -> str:
        state = "running"

        def has_ended() -> bool:
            nonlocal state
            state = self.ask(server, "GET", f"/v1/tasks/{started['task']}")["state"]
            return state != "running"

        self.settle(server, has_ended, "a task ends")
        return state


class Node(Round):
    def __init__(self, campaign: Campaign, work: pathlib.Path, seed: int) -> None:
        super().__init__(campaign, work, seed)
        self.files = work / "files"
        write_files(self.files, 20, 40_000, seed)
        self.state = work / "d"
        self.has_dataset = False
        # The value last acknowledged, and the one that was asked for since.
        self.memory_bytes: set[int] = set()
        self.rate: set[float] = {0}

    def server(self, environment: dict[str, str]) -> Server:
        return larderd(self.campaign, self.work, environment=environment)

    def read_epoch(self, log: str) -> int | None:
        reader = Reader(
            self.campaign.bin / "larder-test-reader", self.state / "larderd.sock", self.files, self.work / log, epochs=1,
        )  # fmt: skip
        try:
            return reader.wait(20)
        except subprocess.TimeoutExpired:
            return None  # it waits for a daemon without power
        finally:
            self.said = reader.output()
            reader.discard()

    def with_power(self, daemon: Server) -> None:
        self.settle(daemon, daemon.serves, "the daemon serves")
        body = {"name": "data", "url": f"file://{self.files}", "mode": "0644", "quota": QUOTA}
        self.memory_bytes = {QUOTA["memory_bytes"]}
        if self.task(daemon, self.ask(daemon, "POST", "/v1/datasets", body)) != "done":
            raise Failure("the dataset was not added")
        self.has_dataset = True
        for step in range(4):
            self.memory_bytes.add(wanted := 300_000 + 1000 * step)
            self.ask(daemon, "PUT", "/v1/datasets/data/quota", {**QUOTA, "memory_bytes": wanted})
            self.memory_bytes = {wanted}
            self.rate.add(rate := 1e8 + 1e6 * step)
            self.ask(daemon, "PUT", "/v1/jobs/job/limit", {"rate_bytes_per_second": rate})
            self.rate = {rate}
            if step == 1:
                self.task(daemon, self.ask(daemon, "POST", "/v1/datasets/data/warm"))
            if step == 2 and self.read_epoch("reader-1.log") == 3:
                raise Failure(f"wrong bytes: {self.said}")

    def after_cut(self, daemon: Server) -> None:
        daemon.start()
        listed: Any = daemon.get("/v1/datasets")
        if listed["damaged"]:
            raise Failure(f"a dataset is damaged: {listed['damaged']}")
        datasets = {dataset["name"]: dataset for dataset in listed["datasets"]}
        if self.has_dataset and "data" not in datasets:
            raise Failure("the dataset, whose addition had ended, is gone")
        if "data" in datasets:
            quota = datasets["data"]["quota"]["memory_bytes"]
            if quota not in self.memory_bytes:
                raise Failure(f"the quota is {quota}, not one of {self.memory_bytes}")
            if self.read_epoch("reader-2.log") != 0:
                raise Failure(f"the reader failed: {self.said}\n{daemon.tail()}")
            self.recovered = daemon.get("/v1/datasets/data")["counters"]["disk_hits"]
        rates = {job["job"]: job["remote_rate"] for job in daemon.get("/v1/jobs")["jobs"]}
        if rates.get("job", 0) not in self.rate:
            raise Failure(f"the limit of the job is {rates.get('job')}, not one of {self.rate}")
        daemon.end()


class Scheduler(Round):
    def __init__(self, campaign: Campaign, work: pathlib.Path, seed: int) -> None:
        super().__init__(campaign, work, seed)
        self.state = work / "a"
        self.acknowledged: list[int] = []
        self.cancelled: list[int] = []
        self.maybe_cancelled = 0  # its cancellation was asked for and not acknowledged
        # The value last acknowledged, and the one that was asked for since.
        self.rates: set[float] = {BANDWIDTH}

    def server(self, environment: dict[str, str]) -> Server:
        return allocator(
            self.campaign, self.work, "--remote-bandwidth", f"{BANDWIDTH} B/s", "--scheduler.gpus", "2",
            environment=environment,
        )  # fmt: skip

    def submit(self, scheduler: Server, name: str, script: str) -> int:
        job = {"name": name, "command": ["sh", "-c", script], "directory": str(self.work), "gpus": 1}
        number = int(self.ask(scheduler, "POST", "/v1/queue", {"jobs": [job]})["jobs"][0]["id"])
        if number in self.acknowledged:
            raise Failure(f"two jobs have number {number}")
        self.acknowledged.append(number)
        return number

    def with_power(self, scheduler: Server) -> None:
        self.settle(scheduler, scheduler.serves, "the allocator serves")
        for step in range(5):
            self.submit(scheduler, f"short-{step}", f"echo {step} >>ran")
            self.rates.add(rate := 5e8 + 1e6 * step)
            self.ask(scheduler, "PUT", "/v1/remote", {"bytes_per_second": rate})
            self.rates = {rate}
            if step == 2:
                job = self.submit(scheduler, "long", "sleep 1")
                self.maybe_cancelled = job
                self.ask(scheduler, "DELETE", f"/v1/queue/{job}")
                self.maybe_cancelled = 0
                self.cancelled.append(job)
        self.settle(scheduler, lambda: self.all_ended(self.ask(scheduler, "GET", "/v1/history?limit=100")), "all jobs end")

    def all_ended(self, history: Any) -> bool:
        numbers = [job["id"] for job in history["jobs"]]
        if len(numbers) != len(set(numbers)):
            raise Failure(f"a job ended twice: {numbers}")
        return set(self.acknowledged) <= set(numbers)

    def after_cut(self, scheduler: Server) -> None:
        scheduler.start()
        rate = scheduler.get("/v1/status")["remote_bytes_per_second"]
        if rate not in self.rates:
            raise Failure(f"the remote bandwidth is {rate}, not one of {self.rates}")
        before = list(self.acknowledged)
        self.submit(scheduler, "later", "true")
        if before and self.acknowledged[-1] <= max(before):
            raise Failure(f"job {self.acknowledged[-1]} was submitted after {before}")
        wait_until(
            lambda: self.all_ended(scheduler.get("/v1/history?limit=100")), STEP_S, f"jobs {self.acknowledged} end",
            scheduler.check,
        )  # fmt: skip
        states = {job["id"]: job["state"] for job in scheduler.get("/v1/history?limit=100")["jobs"]}
        for job in self.acknowledged:
            expected = {"cancelled"} if job in self.cancelled else {"succeeded"}
            if job == self.maybe_cancelled:
                expected = {"cancelled", "succeeded"}
            if states[job] not in expected:
                raise Failure(f"job {job} is {states[job]}, not {expected}")
        scheduler.end()


KINDS: dict[str, type[Node] | type[Scheduler]] = {"node": Node, "allocator": Scheduler}


class Walks:
    """DIR/walks.json: for each kind of program the flush of its next round, and how often all flushes had their turn."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self.values: dict[str, dict[str, int]] = json.loads(path.read_text()) if path.exists() else {}

    def of(self, kind: str) -> dict[str, int]:
        return self.values.setdefault(kind, {"next": 1, "walks": 0, "rounds": 0})

    def advance(self, kind: str, cut: bool, recovered: int) -> None:
        """After a round: the power was cut at the flush, or there was no flush of that number."""
        walk = self.of(kind)
        if recovered > 0:
            walk["recovered"] = walk.get("recovered", 0) + recovered
        walk["rounds"] += 1
        walk["next"] = walk["next"] + 1 if cut else 1
        walk["walks"] += not cut
        copy = self._path.with_suffix(".new")
        copy.write_text(json.dumps(self.values))
        copy.rename(self._path)

    def tests_no_blocks(self) -> bool:
        """A cut seldom leaves whole blocks. That none of many did is no chance."""
        node = self.of("node")
        return node["walks"] >= WALKS_WITHOUT_BLOCKS and "recovered" not in node


def run_round(campaign: Campaign, kind: str, cut_at: int, seed: int) -> tuple[bool, int]:
    """Cuts the power at a flush, or after the last. Returns False if there were fewer flushes, and the blocks that the
    disk had after the cut."""
    cut, recovered = False, 0
    with campaign.directory(f"{kind}-{cut_at}-{seed}") as work:
        this = KINDS[kind](campaign, work, seed)
        disk = Disk(campaign, work, this.state)
        server = this.server(disk.environment(cut_at, seed))
        later = this.server({})
        try:
            server.spawn()
            with contextlib.suppress(PowerIsOff):
                this.with_power(server)
            cut = disk.is_cut()
            disk.end_all_processes()
            server.discard()
            disk.restore()
            this.after_cut(later)
            recovered = this.recovered if cut else 0
        except Failure as failure:
            cut = disk.is_cut()
            repeat = campaign.command(only=kind, at=cut_at, seed=seed)
            campaign.fail(f"{kind}: the power failed at flush {cut_at}: {failure}", repeat)
        finally:
            disk.end_all_processes()
            server.discard()
            later.discard()
    campaign.report(rounds=1, cuts=int(cut), blocks_recovered=recovered)
    return cut, recovered


def main() -> int:
    campaign = Campaign(
        __doc__,
        only={"choices": list(KINDS), "help": "node or allocator"},
        at={"type": int, "help": "the number of the flush"},
    )
    if campaign.sanitizer:
        campaign.report(skipped="a sanitizer's runtime must be the first library of a program")
        return 0
    kinds = [campaign.options.only] if campaign.options.only else list(KINDS)
    if campaign.options.at is not None:
        run_round(campaign, kinds[0], campaign.options.at, campaign.seed)
        return campaign.exit_code()
    walks = Walks(campaign.state / "walks.json")
    draw = random.Random(campaign.seed)
    while campaign.left_s() > 0:
        kind = min(kinds, key=lambda name: walks.of(name)["rounds"])
        cut, recovered = run_round(campaign, kind, walks.of(kind)["next"], draw.randrange(1, 1 << 31))
        walks.advance(kind, cut, recovered)
        if not cut:
            campaign.report(**{f"{kind}.walks": 1})
    if walks.tests_no_blocks():
        campaign.fail("no block was on the disk after any cut: no byte that survives is checked")
    return campaign.exit_code()


if __name__ == "__main__":
    sys.exit(main())
