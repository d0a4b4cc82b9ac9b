#!/usr/bin/python3
"""Kills larderd, larder-allocator and larder-runner in turn with SIGKILL at random moments, while a loader reads and
small jobs run. No byte is wrong, no sample is missing or comes twice, no job is lost or runs twice at the same time,
every acknowledged submission is there after a restart, and nobody repairs anything."""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import re
import signal
import sys
import threading
import time
from typing import Any

from programs import (
    BROKEN, Answer, Campaign, Failure, Reader, Server, add_data, allocator, larderd, wait_until, write_files,
)  # fmt: skip

CHECK_EVERY = 60  # rounds
UNFINISHED_MAX = 8
LOST_MAX = 5  # the queue gives a job up that is lost so often in a row
# Holds a lock while it or what it started runs, so that a second attempt at the same time finds it taken.
SCRIPT = (
    "exec 9>>{locks}/$LARDER_JOB_ID; flock -n 9 || echo TWICE $LARDER_JOB_ID $LARDER_ATTEMPT >>{log}; "
    "echo START $LARDER_JOB_ID $LARDER_ATTEMPT >>{log}; sleep {seconds}; echo END $LARDER_JOB_ID $LARDER_ATTEMPT >>{log}"
)


class Runners:
    """The larder-runner processes of one allocator."""

    def __init__(self, directory: pathlib.Path) -> None:
        self._attempt = re.compile(re.escape(os.fsencode(directory)) + rb"/.*/(\d+)/(\d+)")

    def find(self) -> list[tuple[int, int, int]]:
        """(pid, job, attempt) of each."""
        found = []
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            try:
                words = pathlib.Path("/proc", name, "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if len(words) < 2 or not words[0].endswith(b"/larder-runner") or not (match := self._attempt.match(words[1])):
                continue
            # A runner leads its session. Its child has the same command line until it runs the job.
            with contextlib.suppress(ProcessLookupError):
                if os.getsid(int(name)) == int(name):
                    found.append((int(name), int(match[1]), int(match[2])))
        return found

    def kill(self, draw: random.Random) -> int | None:
        """Kills one, and returns the number of its job; None: there is none."""
        runners = self.find()
        if not runners:
            return None
        pid, job, attempt = draw.choice(runners)
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return None
        try:
            if (pid, job, attempt) not in self.find():
                return None
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        except ProcessLookupError:
            return None
        finally:
            os.close(handle)
        return job


class Jobs:
    """Submitted jobs, and what the queue must say about them. A thread submits while the programs are killed."""

    def __init__(self, scheduler: Server, work: pathlib.Path, seed: int) -> None:
        self._scheduler = scheduler
        self._draw = random.Random(seed + 1)
        self._log = work / "jobs.log"
        self._locks = work / "locks"
        self._locks.mkdir()
        self._count = 0
        self.acknowledged: dict[int, str] = {}  # names by number
        self.ended: set[int] = set()
        self.killed: dict[int, int] = {}  # how often the job's runner was killed
        self.acknowledgement = threading.Event()  # set by each
        self._wanted = threading.Event()  # set: submit
        self._idle = threading.Event()  # set: the thread does not submit
        self._stop = False
        self._failure: Failure | None = None
        self._thread = threading.Thread(target=self._submit_all, daemon=True)
        self._wanted.set()
        self._thread.start()

    def _submit_all(self) -> None:
        while not self._stop:
            if not self._wanted.is_set():
                self._idle.set()
                self._wanted.wait(0.1)
                continue
            self._idle.clear()
            try:
                if self.unfinished() < UNFINISHED_MAX:
                    self._submit()
                else:
                    time.sleep(0.03)
            except BROKEN:
                time.sleep(0.005)
            except Failure as failure:
                self._failure = failure
                self._idle.set()
                return

    def stop(self) -> None:
        self._stop = True
        self._wanted.set()
        self._thread.join()

    def check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _submit(self) -> None:
        self._count += 1
        name = f"k{self._count}x"
        script = SCRIPT.format(locks=self._locks, log=self._log, seconds=f"0.{self._draw.randrange(5, 50):02}")
        job = {"name": name, "command": ["sh", "-c", script], "directory": "/", "gpus": 1}
        # Without an acknowledgement the job may be there or not.
        answer = self._scheduler.ask("POST", "/v1/queue", {"jobs": [job]})
        if answer.status != 200:
            raise Failure(f"a submission was refused: {answer.status} {answer.body!r}")
        listed: Any = answer.json()
        self.acknowledged[int(listed["jobs"][0]["id"])] = name
        self.acknowledgement.set()

    def unfinished(self) -> int:
        queue: Any = self._scheduler.get("/v1/queue")
        return len(queue["jobs"])

    def check_present(self) -> None:
        """Every acknowledged job is in the queue or in the history."""
        queue: Any = self._scheduler.get("/v1/queue")
        history: Any = self._scheduler.get("/v1/history?limit=100000")
        there = {job["id"]: job["name"] for part in (queue, history) for job in part["jobs"]}
        missing = {job: name for job, name in self.acknowledged.items() if there.get(job) != name}
        if missing:
            raise Failure(f"acknowledged jobs are gone: {missing}")

    def drain(self) -> None:
        self._wanted.clear()
        self._idle.clear()
        wait_until(self._idle.is_set, 60, "the thread that submits is idle")
        self.check()
        wait_until(lambda: self.unfinished() == 0, 120, "all jobs have ended", self._scheduler.check)
        self.check_present()
        starts: dict[tuple[int, int], int] = {}
        ends: set[tuple[int, int]] = set()
        for line in self._log.read_text().splitlines() if self._log.exists() else []:
            what, job, attempt = line.split()
            if what == "TWICE":
                raise Failure(f"job {job} ran twice at the same time, the second time as attempt {attempt}")
            if what == "START":
                starts[int(job), int(attempt)] = starts.get((int(job), int(attempt)), 0) + 1
            else:
                ends.add((int(job), int(attempt)))
        again = {key: count for key, count in starts.items() if count != 1}
        if again:
            raise Failure(f"attempts were started more than once: {again}")
        history: Any = self._scheduler.get("/v1/history?limit=100000")
        jobs = {job["id"]: job for job in history["jobs"]}
        if len(jobs) != len(history["jobs"]):
            raise Failure("a job is in the history twice")
        for number in self.acknowledged:
            job = jobs.get(number)
            if job is None:
                raise Failure(f"acknowledged job {number} has not ended, and is not in the queue")
            if job["state"] == "succeeded":
                if (number, job["attempt"]) not in ends:
                    raise Failure(f"job {number} succeeded, but did not run to its end: {job}")
            elif not (job["state"] == "failed" and self.killed.get(number, 0) >= LOST_MAX):
                raise Failure(f"job {number} did not succeed, its runner was killed {self.killed.get(number, 0)} times: {job}")
        self.ended |= set(self.acknowledged)
        self._wanted.set()


class Kills:
    def __init__(self, campaign: Campaign, work: pathlib.Path) -> None:
        self.campaign = campaign
        self.draw = random.Random(campaign.seed)
        files = work / "files"
        write_files(files, 600, 24_000, campaign.seed)
        self.scheduler = allocator(
            campaign, work, "--remote-bandwidth", "1 GB/s", "--scheduler.gpus", "3", "--scheduler.directory", work / "jobs"
        )
        self.scheduler.start()
        self.daemon = larderd(
            campaign, work, "--allocator.endpoint", self.scheduler.socket, "--allocator.node", "node"
        )  # fmt: skip
        self.daemon.start()
        add_data(self.daemon, files, memory_bytes=0, disk_bytes=9_000_000)
        self.reader = Reader(
            campaign.bin / "larder-test-reader", work / "d" / "larderd.sock", files, work / "reader.log",
            pause_us=300, seed=campaign.seed,
        )  # fmt: skip
        self.jobs = Jobs(self.scheduler, work, campaign.seed)
        self.runners = Runners(work / "jobs")
        self.blocks_kept = 0

    def dataset(self) -> Any:
        def ask() -> Answer | None:
            answer = self.daemon.ask("GET", "/v1/datasets/data")
            return answer if answer.status == 200 else None

        return wait_until(ask, 30, "the daemon knows its dataset", self.daemon.check).json()

    def kill_daemon(self, round_number: int) -> None:
        served_to = self.draw.randrange(1, 400_000)
        ends_s = time.monotonic() + 0.3
        dataset = self.dataset()
        while dataset["counters"]["bytes_disk"] + dataset["counters"]["bytes_remote"] < served_to and time.monotonic() < ends_s:
            dataset = self.dataset()
        resized = round_number % 10 == 9
        if resized:
            bytes_now = self.draw.choice([3_000_000, 9_000_000, 30_000_000])
            answer = self.daemon.ask("PUT", "/v1/datasets/data/quota", {"memory_bytes": 0, "disk_bytes": bytes_now})
            if answer.status != 200:
                raise Failure(f"a quota was refused: {answer.status} {answer.body!r}")
        if dataset["counters"]["crc_failures"] != 0:
            raise Failure(f"blocks on the disk were bad: {dataset['counters']}")
        self.daemon.kill()
        self.daemon.spawn()
        if self.draw.random() < 0.2:
            time.sleep(self.draw.random() * 0.1)
            self.daemon.kill()
            self.daemon.spawn()
            self.campaign.report(kills=1, daemon=1)
        self.daemon.wait()
        after = self.dataset()
        if not resized and after["used"]["blocks"] < dataset["used"]["blocks"]:
            raise Failure(f"a kill lost blocks: {dataset['used']} before, {after['used']} after")
        self.blocks_kept += dataset["used"]["blocks"]
        self.campaign.report(kills=1, daemon=1)

    def kill_allocator(self) -> None:
        if self.draw.random() < 0.6:
            # Kill right after an acknowledgement: what it promised must be on the disk.
            self.jobs.acknowledgement.clear()
            self.jobs.acknowledgement.wait(0.3)
        else:
            time.sleep(self.draw.random() * 0.15)
        self.scheduler.kill()
        self.scheduler.spawn()
        if self.draw.random() < 0.2:
            time.sleep(self.draw.random() * 0.1)
            self.scheduler.kill()
            self.scheduler.spawn()
            self.campaign.report(kills=1, allocator=1)
        self.scheduler.wait()
        self.campaign.report(kills=1, allocator=1)

    def kill_runner(self) -> None:
        time.sleep(self.draw.random() * 0.1)
        ends_s = time.monotonic() + 0.5
        while time.monotonic() < ends_s:
            job = self.runners.kill(self.draw)
            if job is not None:
                self.jobs.killed[job] = self.jobs.killed.get(job, 0) + 1
                self.campaign.report(kills=1, runner=1)
                return
            time.sleep(0.02)

    def run(self) -> None:
        round_number = 0
        while self.campaign.left_s() > 0 or round_number == 0:
            for kill in (lambda: self.kill_daemon(round_number), self.kill_allocator, self.kill_runner):
                kill()
                self.jobs.check()
                self.reader.check()
                self.daemon.check()
                self.scheduler.check()
            round_number += 1
            self.campaign.report(rounds=1)
            if round_number % (CHECK_EVERY // 3) == 0:
                self.check()
        self.check()
        if self.blocks_kept == 0:
            raise Failure("no block was on the disk at any kill: this campaign tests nothing")
        if self.campaign.options.seconds >= 10 and self.reader.epochs() == 0:
            raise Failure("the reader ended no epoch")
        self.campaign.report(epochs=self.reader.epochs(), jobs=len(self.jobs.ended))
        self.reader.end()
        self.daemon.end()
        self.scheduler.end()

    def check(self) -> None:
        self.jobs.drain()
        self.reader.check()

    def discard(self) -> None:
        self.jobs.stop()
        self.reader.discard()
        self.daemon.discard()
        self.scheduler.discard()


def main() -> int:
    campaign = Campaign(__doc__)
    with campaign.directory(f"seed-{campaign.seed}") as work:
        kills = Kills(campaign, work)
        try:
            kills.run()
        finally:
            kills.discard()
    return campaign.exit_code()


if __name__ == "__main__":
    sys.exit(main())
