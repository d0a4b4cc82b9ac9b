#!/usr/bin/python3
"""Loaders, allocator and queue at full load for a long time. Samples descriptors, threads and resident memory of
larderd and larder-allocator, the size of their state, and what the remote gave beyond the leases.

The first third is warm-up. The rule: the least value of the last third is at most 5 % above that of the second third,
and a small number of units (SLACK) more, so that a short run means something. What leaks raises the least value, too;
sessions that open and close meanwhile do not. The remote's bytes of each third are at most
what the leases allowed, and the lease of the only node does not shrink. Run it for two hours to learn something."""

from __future__ import annotations

import json
import os
import pathlib
import statistics
import sys
import time
from typing import Any

from programs import (
    Campaign, Failure, Reader, Server, add_data, allocator, descriptors, larderd, resident_bytes, wait_until, write_files,
)  # fmt: skip

REMOTE = 40_000_000  # bytes/s
GROWTH = 1.05
# Units by which a value may always grow.
SLACK = {"fds": 6, "threads": 2, "resident": 6 << 20, "state": 8 << 20}
BURST_S = 0.2  # a bucket may give so much more than its rate, at the begin and at the end of a measurement
JOBS_KEPT = 200
SAMPLE_S = 2.0


def state_bytes(folder: pathlib.Path) -> int:
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(path, name)).st_blocks * 512
            except FileNotFoundError:
                pass
    return total


def sample_of(server: Server, state: pathlib.Path) -> dict[str, int]:
    return {
        "fds": descriptors(server.pid),
        "threads": len(os.listdir(f"/proc/{server.pid}/task")),
        "resident": resident_bytes(server.pid),
        "state": state_bytes(state),
    }


class Soak:
    def __init__(self, campaign: Campaign, work: pathlib.Path) -> None:
        self.campaign = campaign
        self.work = work
        files = work / "files"
        write_files(files, 500, 60_000, campaign.seed)
        self.scheduler = allocator(
            campaign, work, "--remote-bandwidth", f"{REMOTE} B/s", "--scheduler.gpus", "4", "--scheduler.directory",
            work / "jobs", "--scheduler.history", JOBS_KEPT,
        )  # fmt: skip
        self.scheduler.start()
        self.daemon = larderd(campaign, work, "--allocator.endpoint", self.scheduler.socket, "--allocator.node", "node")
        self.daemon.start()
        # A part is cached in memory and on disk, so that each source has work.
        add_data(self.daemon, files, memory_bytes=3_000_000, disk_bytes=5_000_000)
        program, socket = campaign.bin / "larder-test-reader", work / "d" / "larderd.sock"
        self.readers = [
            Reader(program, socket, files, work / f"reader-{i}.log", job=f"soak{i}", seed=campaign.seed + i) for i in range(3)
        ]
        self.short_reader: Reader | None = None  # sessions come and go
        self.files = files
        self.jobs = 0
        self.samples: list[dict[str, Any]] = []

    def submit(self) -> None:
        queue: Any = self.scheduler.get("/v1/queue")
        for _ in range(max(0, 8 - len(queue["jobs"]))):
            self.jobs += 1
            job = {"name": f"s{self.jobs}x", "command": ["sh", "-c", "echo begin; sleep 0.2; echo end"], "directory": "/", "gpus": 1}
            answer = self.scheduler.ask("POST", "/v1/queue", {"jobs": [job]})
            if answer.status != 200:
                raise Failure(f"a submission was refused: {answer.status} {answer.body!r}")

    def step(self) -> None:
        for part in (self.scheduler, self.daemon, *self.readers):
            part.check()
        self.submit()
        if self.short_reader is not None and self.short_reader.has_ended():
            code = self.short_reader.wait(1)
            if code != 0:
                raise Failure(f"a reader ended with {code}: {self.short_reader.output()[-1000:]}")
            self.short_reader = None
        if self.short_reader is None:
            log = self.work / "short.log"
            log.unlink(missing_ok=True)
            self.short_reader = Reader(
                self.campaign.bin / "larder-test-reader", self.work / "d" / "larderd.sock", self.files, log, job="short",
                epochs=1,
            )  # fmt: skip

    def only_long_sessions(self) -> bool:
        return self.daemon.get("/v1/status")["sessions"] == len(self.readers)

    def take_sample(self) -> bool:
        """Returns False, without a sample, while the short reader has a session: samples with and without its memory
        cannot be compared."""
        if not self.only_long_sessions():
            return False
        counters = self.daemon.get("/v1/datasets/data")["counters"]
        nodes: Any = self.scheduler.get("/v1/nodes")
        sample = {
            "s": time.monotonic(),
            "larderd": sample_of(self.daemon, self.work / "d"),
            "larder-allocator": sample_of(self.scheduler, self.work / "a"),
            "remote_bytes": counters["bytes_remote_read"],
            "lease": nodes["nodes"][0].get("lease") if nodes["nodes"] else None,
        }
        if counters["crc_failures"] != 0:
            raise Failure(f"blocks on the disk were bad: {counters}")
        if not self.only_long_sessions():
            return False
        self.samples.append(sample)
        with open(self.campaign.state / f"samples-{self.campaign.seed}.jsonl", "a") as file:
            file.write(json.dumps(sample) + "\n")
        return True

    def run(self) -> None:
        wait_until(lambda: all(reader.epochs() > 0 for reader in self.readers), 60, "each job has read an epoch", self.step)
        next_sample_s = 0.0
        while self.campaign.left_s() > 0 or len(self.samples) < 6:
            self.step()
            if time.monotonic() >= next_sample_s and self.take_sample():
                next_sample_s = time.monotonic() + min(SAMPLE_S, self.campaign.options.seconds / 20)
            time.sleep(0.05)
        self.judge()
        self.campaign.report(rounds=1, samples=len(self.samples), jobs=self.jobs, epochs=sum(r.epochs() for r in self.readers))
        for reader in self.readers:
            reader.end()
        self.daemon.end()
        self.scheduler.end()

    def judge(self) -> None:
        third = len(self.samples) // 3
        second, last = self.samples[third : 2 * third], self.samples[2 * third :]
        problems = []
        for program in ("larderd", "larder-allocator"):
            for value, slack in SLACK.items():
                was = min(sample[program][value] for sample in second)
                now = min(sample[program][value] for sample in last)
                if now > was * GROWTH + slack:
                    problems.append(f"{value} of {program} grew from {was:g} to {now:g}")
        for name, part in (("second", second), ("last", last)):
            seconds = part[-1]["s"] - part[0]["s"]
            given = part[-1]["remote_bytes"] - part[0]["remote_bytes"]
            most = REMOTE * (seconds + 2 * BURST_S)
            if given > most:
                problems.append(f"the remote gave {given} bytes in the {name} third, {seconds:.1f} s; the leases allow {most:.0f}")
        # The median: on a busy machine a lease of a second may expire now and then.
        leased = [
            statistics.median((sample["lease"] or {}).get("bytes_per_second", 0) for sample in part) for part in (second, last)
        ]
        if leased[1] < leased[0] / GROWTH or leased[1] == 0:
            problems.append(f"the lease of the only node shrank from {leased[0]:g} to {leased[1]:g} bytes/s")
        if problems:
            raise Failure("; ".join(problems))

    def discard(self) -> None:
        for reader in [*self.readers, *([self.short_reader] if self.short_reader else [])]:
            reader.discard()
        self.daemon.discard()
        self.scheduler.discard()


def main() -> int:
    campaign = Campaign(__doc__)
    # Freed memory that AddressSanitizer keeps, 256 MB by default, would count as growth.
    os.environ["ASAN_OPTIONS"] = f"{os.environ.get('ASAN_OPTIONS', '')}:quarantine_size_mb=1"
    with campaign.directory(f"seed-{campaign.seed}") as work:
        soak = Soak(campaign, work)
        try:
            soak.run()
        finally:
            soak.discard()
    return campaign.exit_code()


if __name__ == "__main__":
    sys.exit(main())
