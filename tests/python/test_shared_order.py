"""Jobs that read one dataset in shared order: each sample once per epoch and job, and one fetch for all of them."""

from __future__ import annotations

import collections
import json
import pathlib
import random
import signal
import threading
from collections.abc import Iterator
from typing import Any

import larder
import pytest
from conftest import Daemon
from epochs import keys_of, take, write_files

FILES = 240
FILE_BYTES = 1 << 16


def add(daemon: Daemon, directory: pathlib.Path, name: str, cached: float = 0) -> str:
    """A dataset of files, of which this part is cached."""
    write_files(directory / name, FILES, FILE_BYTES)
    daemon.command("dataset", "add", name, f"file://{directory / name}", "--format", "raw")
    daemon.command("quota", "set", name, "--memory", f"{int(cached * FILES * (FILE_BYTES + 64))} B", "--disk", "0 B")
    if cached > 0:
        daemon.command("dataset", "warm", name)
    return name


def loader(daemon: Daemon, name: str, job: str = "job", **more: Any) -> larder.Loader:
    return larder.Loader(name, socket=daemon.socket, job=job, order="shared", **{"batch_size": 8, **more})


def figures(daemon: Daemon, name: str) -> dict[str, Any]:
    listed = json.loads(daemon.command("--json", "dataset", "ls"))["datasets"]
    return next(dataset for dataset in listed if dataset["name"] == name)


def remote_reads(daemon: Daemon, name: str) -> float:
    return figures(daemon, name)["counters"]["bytes_remote_read"] / FILE_BYTES


def test_epochs_are_complete_and_each_another(raw: Any) -> None:
    with larder.Loader(**raw.options(batch_size=16, order="shared")) as shared:
        assert len(shared) == 14
        orders = []
        for epoch in range(3):
            assert shared.epoch == epoch
            keys = keys_of(shared)
            assert sorted(keys) == sorted(raw.contents)
            orders.append(keys)
    assert len({tuple(order) for order in orders}) == 3
    assert all(order != sorted(order) for order in orders)


def test_samples_of_blocks_are_mixed_within_the_window(shards: Any) -> None:
    with larder.Loader(**shards.options(batch_size=7, order="shared", shuffle_window_blocks=4)) as shared:
        for _ in range(2):
            seen = collections.Counter()
            for batch in shared:
                for sample in batch:
                    assert sample["jpg"] == shards.contents[sample.key]
                    seen[sample.key] += 1
            assert seen == dict.fromkeys(shards.contents, 1)


@pytest.mark.parametrize("ranks, workers", [(1, 1), (3, 1), (2, 2)])
def test_ranks_divide_an_epoch(shards: Any, ranks: int, workers: int) -> None:
    loaders = [
        larder.Loader(**shards.options(
            batch_size=4, order="shared", rank=rank, world_size=ranks, worker=worker, worker_count=workers,
        ))
        for rank in range(ranks) for worker in range(workers)
    ]  # fmt: skip
    for _ in range(2):
        parts = [list(keys_of(part)) for part in loaders]
        assert sorted(key for part in parts for key in part) == sorted(shards.contents)
    lengths = {len(part) for part in loaders}
    assert max(lengths) - min(lengths) <= 1
    for part in loaders:
        part.close()


@pytest.mark.parametrize("before, after", [(1, 1), (1, 3), (3, 2)])
@pytest.mark.parametrize("batches", [0, 1, 9])
def test_job_resumes_exactly(shards: Any, before: int, after: int, batches: int) -> None:
    def ranks(count: int) -> list[larder.Loader]:
        return [
            larder.Loader(**shards.options(batch_size=5, order="shared", rank=rank, world_size=count))
            for rank in range(count)
        ]

    seen: list[str] = []
    states = []
    for part in ranks(before):
        seen += take(iter(part), batches)
        states.append(json.loads(json.dumps(part.state_dict())))
        part.close()
    state = larder.merge_states(states)
    assert before > 1 or state == states[0]
    rest = ranks(after)
    for part in rest:
        part.load_state_dict(state)
    for part in rest:
        seen += keys_of(part)
    assert sorted(seen) == sorted(shards.contents)
    # The next epoch is whole again.
    assert sorted(key for part in rest for key in keys_of(part)) == sorted(shards.contents)
    for part in rest:
        part.close()


def test_state_of_one_rank_of_several_is_refused(shards: Any) -> None:
    options = shards.options(batch_size=5, order="shared")
    with larder.Loader(**options, rank=1, world_size=2) as part:
        take(iter(part), 2)
        state = part.state_dict()
        with pytest.raises(larder.InvalidArgument, match="1 of 2 ranks and workers: merge"):
            part.load_state_dict(state)
    with larder.Loader(**shards.options(batch_size=5)) as seeded:
        with pytest.raises(larder.InvalidArgument, match="order shared, this loader has seeded"):
            seeded.load_state_dict(state)
        with pytest.raises(larder.InvalidArgument, match="only states of loaders with the shared order"):
            larder.merge_states([seeded.state_dict()])
    with pytest.raises(larder.InvalidArgument, match="no state to merge"):
        larder.merge_states([])


@pytest.mark.parametrize("wrong, why", [
    ({"shuffle": False}, "needs shuffle"),
    ({"deal": "interleaved"}, "deals contiguously"),
    ({"order": "random"}, "must be one of seeded, shared"),
])  # fmt: skip
def test_options_that_do_not_fit_are_refused(raw: Any, wrong: dict[str, object], why: str) -> None:
    with pytest.raises(larder.InvalidArgument, match=why):
        larder.Loader(**raw.options(**{"order": "shared", **wrong}))


@pytest.mark.parametrize("cached", [0.0, 0.5])
def test_jobs_in_step_fetch_each_block_once(own_daemon: Daemon, tmp_path: pathlib.Path, cached: float) -> None:
    name = add(own_daemon, tmp_path, "shared", cached)
    before = remote_reads(own_daemon, name)
    missing = FILES - figures(own_daemon, name)["used"]["blocks"]
    assert missing == pytest.approx(FILES * (1 - cached), rel=0.2)
    jobs = [loader(own_daemon, name, f"job{i}") for i in range(4)]
    seen: list[list[str]] = [[] for _ in jobs]
    passes = [iter(job) for job in jobs]
    for _ in range(FILES // 8):
        for keys, job in zip(seen, passes, strict=True):
            keys += take(job, 1)
    assert all(len(set(keys)) == FILES for keys in seen)
    fetched = remote_reads(own_daemon, name) - before
    assert missing <= fetched <= missing * 1.05
    for job in jobs:
        job.close()


def test_slower_job_takes_what_the_faster_one_brings(own_daemon: Daemon, tmp_path: pathlib.Path) -> None:
    name = add(own_daemon, tmp_path, "shared")
    fast, slow = loader(own_daemon, name, "fast"), loader(own_daemon, name, "slow")
    slow_keys: list[str] = []
    slow_pass = iter(slow)
    for _ in range(2):
        for step, _ in enumerate(fast):
            if step % 2 == 0:
                slow_keys += take(slow_pass, 1)
    assert len(set(slow_keys)) == FILES
    # The fast job alone fetches two epochs.
    assert remote_reads(own_daemon, name) <= 2 * FILES * 1.1
    fast.close()
    slow.close()


def test_job_that_stops_holds_nobody_up(own_daemon: Daemon, tmp_path: pathlib.Path) -> None:
    name = add(own_daemon, tmp_path, "shared")
    stopped = loader(own_daemon, name, "stopped")
    held = iter(stopped)
    first = next(held)  # a batch that is held, in memory of the window
    keys = [sample.key for sample in first]
    contents = [bytes(sample.bytes) for sample in first]
    with loader(own_daemon, name, "going") as going:
        for _ in range(3):
            assert len(set(keys_of(going))) == FILES
    assert [bytes(sample.bytes) for sample in first] == contents
    assert len(set(keys + keys_of(held))) == FILES
    stopped.close()


def test_seeded_jobs_and_scans_go_on_beside_shared_ones(own_daemon: Daemon, tmp_path: pathlib.Path) -> None:
    name = add(own_daemon, tmp_path, "shared", 0.25)
    jobs: list[Iterator[Any]] = [
        iter(loader(own_daemon, name, "a")),
        iter(loader(own_daemon, name, "b")),
        iter(larder.Loader(name, socket=own_daemon.socket, job="c", batch_size=8, seed=5)),
    ]
    seen: list[list[str]] = [[] for _ in jobs]
    for step in range(FILES // 8):
        for keys, job in zip(seen, jobs, strict=True):
            keys += take(job, 1)
        if step == 5:
            own_daemon.command("quota", "set", name, "--memory", "16MiB")
            own_daemon.command("dataset", "warm", name)
        if step == 15:
            own_daemon.command("dataset", "verify", name)
            own_daemon.command("quota", "set", name, "--memory", "2MiB")
    assert all(len(set(keys)) == FILES for keys in seen)


def test_epoch_is_exact_over_a_restart_of_the_daemon(own_daemon: Daemon, tmp_path: pathlib.Path) -> None:
    name = add(own_daemon, tmp_path, "shared", 0.25)
    jobs = [loader(own_daemon, name, f"job{i}") for i in range(2)]
    seen: list[list[str]] = [[] for _ in jobs]
    passes = [iter(job) for job in jobs]
    for step in range(FILES // 8):
        if step in (7, 20):
            own_daemon.end(signal.SIGKILL)
            own_daemon.start()
        for keys, job in zip(seen, passes, strict=True):
            keys += take(job, 1)
    assert all(len(set(keys)) == FILES for keys in seen)
    assert all(job.statistics().reconnects >= 1 for job in jobs)
    for job in jobs:
        job.close()


def test_many_jobs_read_in_threads(own_daemon: Daemon, tmp_path: pathlib.Path) -> None:
    name = add(own_daemon, tmp_path, "shared", 0.25)
    wrong: list[str] = []

    def read(number: int) -> None:
        draw = random.Random(number)
        with loader(own_daemon, name, f"job{number}", batch_size=draw.choice([1, 3, 8, 50])) as job:
            for _ in range(3):
                batches = iter(job)
                keys = take(batches, draw.randrange(3)) if number % 3 == 0 else []
                keys += keys_of(batches)
                if sorted(keys) != sorted(f"{i:04}.bin" for i in range(FILES)):
                    wrong.append(f"{number}: {len(keys)} samples, {len(set(keys))} different")

    threads = [threading.Thread(target=read, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
