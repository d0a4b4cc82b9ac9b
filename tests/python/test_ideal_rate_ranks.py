"""f* of a data-parallel job that waits for the remote: the time in which its ranks wait for each other is not work."""

from __future__ import annotations

import pathlib
import threading
import time
from collections.abc import Callable
from typing import Any

import larder
import pytest
from allocator_process import Allocator, read_from_remote_only

RANKS = 4
BATCH = 16
SIZE = 64 << 10  # bytes of a sample
IDEAL = 40e6  # bytes/s of the job, if it never waits
COMPUTED_S = 8.0


class Rank(threading.Thread):
    """A training process, which computes for as long with each batch, and then waits for all others."""

    def __init__(self, rank: int, barrier: threading.Barrier, socket: str) -> None:
        super().__init__(daemon=True)
        self.rank, self.barrier, self.socket = rank, barrier, socket
        self.read = 0
        self.computed_s = self.waited_s = 0.0

    def run(self) -> None:
        with larder.Loader(
            "files", job="train", socket=self.socket, batch_size=BATCH, memory_budget="16MiB", rank=self.rank,
            world_size=RANKS,
        ) as loader:  # fmt: skip
            asked = time.monotonic()
            while True:
                for batch in loader:
                    begun = time.monotonic()
                    self.waited_s += begun - asked
                    size = sum(len(sample.bytes) for sample in batch)
                    del batch
                    time.sleep(size * RANKS / IDEAL)
                    self.computed_s += time.monotonic() - begun
                    self.read += size
                    try:
                        self.barrier.wait()
                    except threading.BrokenBarrierError:
                        return
                    asked = time.monotonic()


@pytest.mark.parametrize("nodes", [1, 2], ids=["one-node", "two-nodes"])
@pytest.mark.parametrize("remote", [None, 15e6], ids=["enough", "bottleneck"])
def test_measured_f_star_ignores_waits_for_other_ranks(
    start_daemon: Callable[..., Any], larder_bin: pathlib.Path, tmp_path: pathlib.Path, remote: float | None, nodes: int
) -> None:
    (tmp_path / "files").mkdir()
    for number in range(2048):
        (tmp_path / "files" / f"{number:05}.bin").write_bytes(number.to_bytes(4, "little") * (SIZE // 4))
    allocator = Allocator(larder_bin, tmp_path)
    daemons = [
        start_daemon("--allocator.endpoint", str(allocator.socket), "--allocator.node", f"node-{number}")
        for number in range(nodes)
    ]
    barrier = threading.Barrier(RANKS)
    ranks = [Rank(rank, barrier, daemons[rank % nodes].socket) for rank in range(RANKS)]
    try:
        for daemon in daemons:
            daemon.command("dataset", "add", "files", tmp_path / "files", "--block", "sample")
        if remote is not None:
            read_from_remote_only(allocator, "files", remote)
        for rank in ranks:
            rank.start()
        while min(rank.computed_s for rank in ranks) < COMPUTED_S:
            assert all(rank.is_alive() for rank in ranks)
            time.sleep(0.1)
        (job,) = allocator.ask("GET", "/v1/jobs").json()["jobs"]
        measured = job["measured_ideal_bytes_per_second"]
        # The slowest rank's count: sleeping takes longer than requested on a busy machine.
        own = RANKS * min(rank.read / rank.computed_s for rank in ranks)
        if remote is not None:
            assert sum(rank.waited_s for rank in ranks) > RANKS * COMPUTED_S / 4, "data was not the bottleneck"
        assert abs(measured - own) <= 0.07 * own, f"measured {measured}, own {own}"
    finally:
        barrier.abort()
        for rank in ranks:
            rank.join()
        for daemon in daemons:
            daemon.end()
        assert allocator.end() == 0, allocator.log.read_text()
