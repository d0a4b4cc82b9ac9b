"""A training loop with a known f*: a real DataLoader, a daemon, and an allocator that measures f*."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import larder.torch  # noqa: E402

from allocator_process import Allocator, read_from_remote_only  # noqa: E402

BATCH = 64  # large, so that the time between batches is small compared with the pause for each
SIZE = 64 << 10  # bytes of a sample
IDEAL = 40e6  # bytes/s of the training loop
WARM_UP_S = 2  # computing time that is not measured; the allocator leaves it out too
COMPUTED_S = 10  # most of the allocator's window, and long compared with the workers' lead


def write_equal_files(directory: pathlib.Path, count: int, size: int) -> None:
    for i in range(count):
        (directory / "a").mkdir(parents=True, exist_ok=True)
        (directory / "a" / f"{i:05}.bin").write_bytes(i.to_bytes(4, "little") * (size // 4))


def expect_the_loops_own_rate(
    start_daemon: Callable[..., Any],
    larder_bin: pathlib.Path,
    tmp_path: pathlib.Path,
    num_workers: int,
    remote: float | None,
) -> None:
    """Expects the allocator to measure the loop's own rate.

    `remote` limits the remote, in bytes/s, so that data is the bottleneck. None sets no limit.
    """
    write_equal_files(tmp_path / "files", count=2048, size=SIZE)
    allocator = Allocator(larder_bin, tmp_path)
    daemon = start_daemon("--allocator.endpoint", str(allocator.socket), "--allocator.node", "node")
    try:
        daemon.command("dataset", "add", "files", tmp_path / "files", "--block", "sample")
        if remote is not None:
            read_from_remote_only(allocator, "files", remote)
        dataset = larder.torch.IterableDataset(
            "files", job="train", socket=daemon.socket, batch_size=BATCH, memory_budget="16MiB", decode=len_of
        )
        loader = larder.torch.DataLoader(dataset, num_workers=num_workers, persistent_workers=num_workers > 0)
        read = 0
        warmed_s = computed_s = 0.0
        measured: float | None = None
        # Workers load ahead, so the allocator also counts samples that the loop has not taken yet. In mid-epoch their
        # number is about the same as at the end of the warm-up; at an epoch's end it is 0. So the rate is measured in
        # mid-epoch. On a busy machine the lead may change after the warm-up, by `lead_bytes` at most.
        lead_bytes = num_workers * (loader.prefetch_factor or 0) * BATCH * SIZE
        while measured is None:
            for batch, lengths in enumerate(loader, start=1):
                started = time.monotonic()
                size = int(lengths.sum())
                time.sleep(size / IDEAL)
                spent_s = time.monotonic() - started
                if warmed_s < WARM_UP_S:
                    warmed_s += spent_s
                else:
                    read += size
                    computed_s += spent_s
                if computed_s > COMPUTED_S and batch == len(loader) // 2:
                    (job,) = allocator.ask("GET", "/v1/jobs").json()["jobs"]
                    measured = job["measured_ideal_bytes_per_second"]
                    break
        if remote is not None:
            assert loader.stall_s > warmed_s + computed_s, "data was not the bottleneck"
        # Compares with the loop's own count: sleeping takes longer than requested on a busy machine.
        own = read / computed_s
        assert abs(measured - own) <= 0.05 * own + lead_bytes / computed_s, f"measured {measured}, own {own}"
    finally:
        daemon.end()
        assert allocator.end() == 0, allocator.log.read_text()


def len_of(sample: larder.Sample) -> int:
    return len(sample.bytes)
