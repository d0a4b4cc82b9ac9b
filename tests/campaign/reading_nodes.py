"""Real nodes of the campaign failover.py: on each a larderd, and a job that reads as fast as its leases allow."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import pathlib
import threading
import time

from allocator_process import HeldLeases
from programs import BROKEN, Campaign, Failure, Reader, Server, add_data, wait_until, write_files

FILES = 400
FILE_BYTES_MAX = 200_000
SAMPLE_S = 0.1
SAMPLES_APART_S = 20.0  # more on a busy machine than SAMPLE_S
START_S = 60.0
BYTES_LEAST = 1 << 20
# A job may take at once what 50 ms of its rate are, or 1 MiB, and again as much that others left (token_bucket.h). What
# is on its way counts later than it was taken.
BURST_S = 2 * 0.05
BURST_BYTES_MIN = 2 << 20
ON_ITS_WAY_BYTES = 4 * FILE_BYTES_MAX


@dataclasses.dataclass(frozen=True)
class Sample:
    asked: float
    answered: float
    bytes: int  # that the node had taken from the remote


class ReadingNode:
    """Starts a larderd with a cache for a tenth of the dataset at most, so that nearly all comes from the remote."""

    def __init__(
        self, campaign: Campaign, prefix: list[object], name: str, work: pathlib.Path, files: pathlib.Path,
        endpoints: str, token_file: pathlib.Path,
    ) -> None:  # fmt: skip
        self.name = name
        self._samples: list[Sample] = []
        self._ending = threading.Event()
        self._error: Exception | None = None
        self._reader: Reader | None = None
        self._thread = threading.Thread(target=self._sample, daemon=True)
        work.mkdir()
        command = [
            *prefix, campaign.bin / "larderd", "--state-directory", work / "d", "--memory", "4 MiB",
            "--disk", "4 MiB", "--data-plane-threads", "1", "--log.level", "warn", "--allocator.endpoint", endpoints,
            "--allocator.node", name, "--allocator.token-file", token_file,
        ]  # fmt: skip
        self._daemon = Server(command, work / "d" / "admin.sock", work / "larderd.log")
        self._reader_arguments = (
            campaign.bin / "larder-test-reader", work / "d" / "larderd.sock", files, work / "reader.log",
        )  # fmt: skip

    def start(self, files: pathlib.Path) -> None:
        self._daemon.start()
        add_data(self._daemon, files, memory_bytes=0, disk_bytes=0)
        # Until a leader has granted a lease, the node takes its own floor, which is not the allocator's.

        def has_lease() -> bool:
            left_s: float = self._daemon.get("/v1/status")["allocator"]["lease_left_s"]
            return left_s > 0

        wait_until(has_lease, START_S, f"{self.name} has a lease", self.check)
        self._reader = Reader(*self._reader_arguments, job=f"job-{self.name}")
        self._thread.start()

    def check(self) -> None:
        self._daemon.check()

    def _taken(self) -> int:
        counters: dict[str, int] = self._daemon.get("/v1/datasets/data")["counters"]
        return counters["bytes_remote_read"]

    def _sample(self) -> None:
        while not self._ending.wait(SAMPLE_S):
            asked = time.monotonic()
            try:
                taken = self._taken()
                self._samples.append(Sample(asked, time.monotonic(), taken))
            except BROKEN:  # an answer that was late; the daemon's end is found by `check`
                continue
            except Exception as error:  # raised again by `finish`
                self._error = error
                return

    def finish(self) -> None:
        """Raises Failure unless the node read all the time."""
        assert self._reader is not None
        self._ending.set()
        self._thread.join()
        if self._error is not None:
            raise self._error
        self.check()
        self._reader.check()
        apart = [later.asked - earlier.asked for earlier, later in itertools.pairwise(self._samples)]
        longest = max(apart, default=START_S)
        if longest > SAMPLES_APART_S or self.bytes() < BYTES_LEAST:
            raise Failure(f"{self.name}: {longest:.1f} s between two samples, {self.bytes()} bytes in all")

    def discard(self) -> None:
        self._ending.set()
        if self._reader is not None:
            self._reader.discard()
        self._daemon.discard()

    def times(self) -> list[float]:
        return [sample.answered for sample in self._samples]

    def bytes(self) -> int:
        return self._samples[-1].bytes if self._samples else 0

    def taken_at_most(self, at: float) -> int:
        place = bisect.bisect_left(self._samples, at, key=lambda sample: sample.asked)
        return self._samples[min(place, len(self._samples) - 1)].bytes

    def taken_at_least(self, at: float) -> int:
        place = bisect.bisect_right(self._samples, at, key=lambda sample: sample.answered)
        return self._samples[place - 1].bytes if place > 0 else 0


def write_dataset(folder: pathlib.Path, seed: int) -> None:
    folder.mkdir()
    write_files(folder, FILES, FILE_BYTES_MAX, seed)


def check_bytes(nodes: list[ReadingNode], promised: list[HeldLeases], remote: float) -> None:
    """Raises Failure if, from any time to any later one, the nodes took more than the remote's bandwidth and their bursts.
    What others were promised meanwhile counts as taken."""
    times = sorted(at for node in nodes for at in node.times())
    if not times:
        raise Failure("no node was read from")
    begin, end = max(node.times()[0] for node in nodes), min(node.times()[-1] for node in nodes)
    times = [at for at in times if begin <= at <= end]
    changes = sorted({*times, *(at for leases in promised for at in leases.changes() if begin <= at <= end)})
    promised_until = {changes[0]: 0.0}
    for earlier, later in itertools.pairwise(changes):
        rate = sum(leases.rate_at(earlier) for leases in promised)
        promised_until[later] = promised_until[earlier] + rate * (later - earlier)
    allowed_at_once = len(nodes) * (max(BURST_S * remote, BURST_BYTES_MIN) + ON_ITS_WAY_BYTES)
    least = [sum(node.taken_at_least(at) for node in nodes) + promised_until[at] - remote * at for at in times]
    most = [sum(node.taken_at_most(at) for node in nodes) + promised_until[at] - remote * at for at in times]
    lowest, lowest_at = most[0], times[0]
    for at, excess, excess_at_most in zip(times, least, most, strict=True):
        if excess - lowest > allowed_at_once:
            raise Failure(
                f"within {at - lowest_at:.1f} s the nodes took {(excess - lowest) / 1e6:.1f} MB more than the remote's"
                f" {remote / 1e6:g} MB/s; their bursts are {allowed_at_once / 1e6:.1f} MB"
            )
        lowest, lowest_at = min((lowest, lowest_at), (excess_at_most, at))
