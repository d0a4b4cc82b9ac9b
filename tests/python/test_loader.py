"""larder.Loader and larder.Dataset against a real daemon."""

from __future__ import annotations

import collections
import concurrent.futures
import itertools
import json
import os
import pathlib
import pickle
import pwd
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import larder
import pytest
from conftest import Daemon, Data
from epochs import keys_of, take


# --- contents


def test_raw_samples_have_bytes_keys_and_labels(raw: Any) -> None:
    with larder.Loader(**raw.options(batch_size=16)) as loader:
        assert loader.sample_count == len(raw.contents)
        assert loader.class_names == raw.classes
        assert len(loader) == 14
        seen = collections.Counter()
        for batch in loader:
            assert len(batch) == (16 if len(seen) + 16 <= len(raw.contents) else 2)
            for sample in batch:
                seen[sample.key] += 1
                assert sample.bytes == raw.contents[sample.key]
                assert list(sample.fields) == ["png"]
                assert sample["png"] == raw.contents[sample.key]
                assert sample.label == raw.labels[sample.key]
                assert loader.class_names[sample.label] == sample.key.split("/")[0]
    assert seen == dict.fromkeys(raw.contents, 1)


def test_webdataset_samples_have_their_fields(shards: Any) -> None:
    with larder.Loader(**shards.options(batch_size=7)) as loader:
        seen = collections.Counter()
        for batch in loader:
            assert batch.samples_bytes("txt") == [sample.key.encode() for sample in batch]
            assert batch.labels() == [shards.labels[sample.key] for sample in batch]
            for sample in batch:
                seen[sample.key] += 1
                assert set(sample.fields) == {"jpg", "cls", "txt", "nil"}
                assert sample["nil"] == b"" and sample.numpy("nil").shape == (0,)
                assert sample["jpg"] == shards.contents[sample.key]
                assert sample.label == shards.labels[sample.key] == int(bytes(sample["cls"]))
    assert seen == dict.fromkeys(shards.contents, 1)


@pytest.mark.parametrize("block", ["sample", "object"])
def test_blocks_of_any_size_give_every_sample(daemon: Any, make_shards: Callable[..., Any], block: str) -> None:
    data = make_shards(daemon, block)
    with larder.Loader(**data.options(batch_size=9)) as loader:
        assert {s.key: bytes(s["jpg"]) for batch in loader for s in batch} == data.contents


def test_index_is_the_position_in_the_dataset(raw: Any) -> None:
    with larder.Dataset(**raw.options()) as dataset, larder.Loader(**raw.options(batch_size=32)) as loader:
        for batch in loader:
            assert batch.indices() == [sample.index for sample in batch]
            assert keys_of([dataset.fetch(batch.indices())]) == keys_of([batch])


# --- order


def test_order_without_shuffle_is_that_of_the_dataset(raw: Any) -> None:
    with larder.Loader(**raw.options(batch_size=50, shuffle=False)) as loader:
        assert keys_of(loader) == sorted(raw.contents)


def test_order_depends_only_on_seed_and_epoch(raw: Any) -> None:
    def two_epochs(seed: int) -> tuple[list[str], list[str]]:
        with larder.Loader(**raw.options(batch_size=16, seed=seed)) as loader:
            return keys_of(loader), keys_of(loader)

    first = two_epochs(1)
    assert first == two_epochs(1)
    assert len({tuple(order) for order in (*first, *two_epochs(2))}) == 4
    with larder.Loader(**raw.options(batch_size=16, seed=1, first_epoch=1)) as loader:
        assert loader.epoch == 1
        assert keys_of(loader) == first[1]
        assert loader.epoch == 2
        loader.start_epoch(0)
        assert keys_of(loader) == first[0]


@pytest.mark.parametrize("name", ["raw", "shards"])
@pytest.mark.parametrize(("world_size", "worker_count"), [(1, 3), (4, 1), (3, 2)])
def test_ranks_and_workers_split_an_epoch(
    request: pytest.FixtureRequest, name: str, world_size: int, worker_count: int
) -> None:
    data = request.getfixturevalue(name)
    seen = collections.Counter()
    for rank in range(world_size):
        for worker in range(worker_count):
            place = dict(rank=rank, world_size=world_size, worker=worker, worker_count=worker_count)
            with larder.Loader(**data.options(batch_size=5, **place)) as loader:
                seen.update(keys_of(loader))
    assert seen == dict.fromkeys(data.contents, 1)


def test_drop_last_gives_every_rank_equally_many_full_batches(raw: Any) -> None:
    seen = collections.Counter()
    for rank in range(4):
        with larder.Loader(**raw.options(batch_size=16, rank=rank, world_size=4, drop_last=True)) as loader:
            sizes = [len(batch) for batch in loader for _ in [seen.update(keys_of([batch]))]]
            assert sizes == [16] * (len(raw.contents) // 64) == [16] * len(loader)
    assert set(seen.values()) == {1}


# --- states


@pytest.mark.parametrize("name", ["raw", "shards"])
def test_resume_on_other_ranks_and_workers_reads_the_rest_once(request: pytest.FixtureRequest, name: str) -> None:
    data = request.getfixturevalue(name)
    draw = random.Random(3)
    for _ in range(8):
        seen = collections.Counter()
        state = None
        for last in (False, False, True):  # three runs of the job, the last to the end
            world_size, worker_count = draw.choice([(1, 1), (2, 1), (1, 3), (3, 2)])
            batch_size = draw.choice([1, 4, 8])
            steps = draw.randrange(3)
            states = []
            for rank in range(world_size):
                for worker in range(worker_count):
                    place = dict(rank=rank, world_size=world_size, worker=worker, worker_count=worker_count)
                    with larder.Loader(**data.options(seed=5, batch_size=batch_size, **place)) as loader:
                        if state is not None:
                            loader.load_state_dict(state)
                        if last:
                            seen.update(keys_of(loader))
                            assert loader.epoch == 1
                            continue
                        seen.update(take(iter(loader), steps))
                        states.append(json.dumps(loader.state_dict()))
            if not last:
                assert len(set(states)) == 1, "all ranks know the same state"
                state = json.loads(states[0])
        assert seen == dict.fromkeys(data.contents, 1)


def test_state_of_another_order_is_refused(raw: Any, shards: Any) -> None:
    with larder.Loader(**raw.options(seed=1)) as loader:
        state = loader.state_dict()
        assert state["dataset"] == raw.name
    for options, says in (
        (raw.options(seed=2), "seed"),
        (raw.options(seed=1, shuffle=False), "shuffle"),
        (shards.options(seed=1), "dataset"),
    ):
        with larder.Loader(**options) as loader:
            before = loader.state_dict()
            with pytest.raises(larder.InvalidArgument, match=says):
                loader.load_state_dict(state)
            assert loader.state_dict() == before


def test_resumes_on_another_node(start_daemon: Callable[..., Daemon], make_raw: Callable[..., Data]) -> None:
    data = make_raw(start_daemon())
    other = start_daemon()
    other.command("dataset", "add", data.name, f"file://{data.directory}", "--format", "raw")
    seen: collections.Counter[str] = collections.Counter()
    with larder.Loader(**data.options(seed=5, batch_size=16)) as loader:
        seen.update(take(iter(loader), 4))
        state = json.loads(json.dumps(loader.state_dict()))
    # The newest version of that node has other content and another number.
    (data.directory / "cat" / "new.png").write_bytes(b"new")
    other.command("dataset", "index", data.name)
    with larder.Loader(data.name, socket=other.socket, seed=5, batch_size=16) as loader:
        assert loader.sample_count == len(data.contents) + 1
        loader.load_state_dict(state)
        assert loader.sample_count == len(data.contents)
        seen.update(keys_of(loader))
    assert seen == dict.fromkeys(data.contents, 1)


def test_resumes_on_a_node_that_has_not_seen_earlier_versions(
    start_daemon: Callable[..., Daemon], make_raw: Callable[..., Data]
) -> None:
    first = start_daemon()
    data = make_raw(first)
    (data.directory / "ant" / "new.png").write_bytes(b"new")  # before most others in the order of paths
    first.command("dataset", "index", data.name)
    with larder.Loader(**data.options(seed=5, batch_size=16)) as loader:
        count = loader.sample_count
        assert count == len(data.contents) + 1
        seen = [sample.index for batch in itertools.islice(loader, 4) for sample in batch]
        state = loader.state_dict()
    other = start_daemon()
    other.command("dataset", "add", data.name, f"file://{data.directory}", "--format", "raw")
    with larder.Loader(data.name, socket=other.socket, seed=5, batch_size=16) as loader:
        loader.load_state_dict(state)
        seen += [sample.index for batch in loader for sample in batch]
    assert sorted(seen) == list(range(count))


def test_state_is_refused_by_a_node_with_other_content(
    start_daemon: Callable[..., Daemon], make_raw: Callable[..., Data]
) -> None:
    data = make_raw(start_daemon())
    with larder.Loader(**data.options(seed=5)) as loader:
        state = loader.state_dict()
    (data.directory / "cat" / "new.png").write_bytes(b"new")
    other = start_daemon()
    other.command("dataset", "add", data.name, f"file://{data.directory}", "--format", "raw")
    with larder.Loader(data.name, socket=other.socket, seed=5) as loader:
        with pytest.raises(larder.InvalidArgument, match="of another version of it"):
            loader.load_state_dict(state)
        assert sum(map(len, loader)) == len(data.contents) + 1


# --- decode, statistics, closing


def test_decode_replaces_samples(raw: Any) -> None:
    with larder.Loader(**raw.options(batch_size=64), decode=lambda s: (s.key, bytes(s.bytes))) as loader:
        assert dict(pair for batch in loader for pair in batch) == raw.contents


def test_statistics_count_delivered_samples(raw: Any) -> None:
    with larder.Loader(**raw.options(batch_size=64, job="statistics")) as loader:
        assert loader.statistics() == larder.Statistics()
        assert sum(map(len, loader)) == len(raw.contents)
        first = loader.statistics()
        assert first.samples == len(raw.contents)
        assert first.bytes == sum(map(len, raw.contents.values()))
        assert len(list(loader)) == 4
        second = loader.statistics() - first
        assert second.samples == first.samples and second.remote_blocks == 0 and second.hit_ratio == 1
        assert loader.statistics().stall_s >= 0


def test_node_says_whose_job_it_is(raw: Any) -> None:
    me = pwd.getpwuid(os.geteuid()).pw_name
    with larder.Loader(**raw.options(job="whose")) as loader:
        next(iter(loader))
        jobs = {job["job"]: job for job in json.loads(raw.daemon.command("--json", "jobs"))["jobs"]}
        rows = [line.split()[:3] for line in raw.daemon.command("jobs").splitlines()]
    assert jobs["whose"]["user"] == me
    assert rows[0][:3] == ["JOB", "USER", "DATASET"] and ["whose", me, raw.name] in rows


def test_every_block_counts_once_per_epoch_despite_held_batches(daemon: Any, make_raw: Callable[..., Any]) -> None:
    data = make_raw(daemon)
    daemon.command("quota", "set", data.name, "--memory", "1MiB", "--disk", "0")  # about half of the dataset
    with larder.Loader(**data.options(batch_size=16)) as loader:
        for _ in range(3):
            before = loader.statistics()
            for batch in loader:  # the last batch is held until the next epoch's first one arrives
                pass
            now = loader.statistics() - before
            assert now.memory_blocks + now.disk_blocks + now.remote_blocks == now.samples == len(data.contents)
        assert 0 < now.remote_blocks < len(data.contents)


def test_closed_loader_refuses_and_its_batches_stay(raw: Any) -> None:
    with larder.Loader(**raw.options()) as loader:
        walk = iter(loader)
        batch = next(walk)
    with pytest.raises(ValueError, match="closed"):
        next(walk)
    with pytest.raises(ValueError, match="closed"):
        iter(loader)
    assert batch[0].bytes == raw.contents[batch[0].key]
    dataset = larder.Dataset(**raw.options())
    sample = dataset[3]
    dataset.close()
    with pytest.raises(ValueError, match="closed"):
        dataset[3]
    assert sample.bytes == raw.contents[sample.key]


# --- Dataset


def test_dataset_is_read_by_index(raw: Any) -> None:
    with larder.Dataset(**raw.options()) as dataset:
        order = sorted(raw.contents)
        assert len(dataset) == len(order)
        assert dataset.total_bytes == sum(map(len, raw.contents.values()))
        assert dataset.class_names == raw.classes
        assert dataset[0].key == order[0] and dataset[-1].key == order[-1]
        assert keys_of([dataset[10:20:3]]) == order[10:20:3]
        asked = [5, 5, 200, 0, 17]
        assert keys_of([dataset.fetch(asked)]) == [order[i] for i in asked]
        assert len(dataset.fetch([])) == 0
        assert [sample.key for sample in dataset] == order
        for wrong in (len(order), -len(order) - 1):
            with pytest.raises(IndexError, match=raw.name):
                dataset[wrong]
        assert dataset.statistics().samples > len(order)


def test_dataset_decodes_and_can_be_pickled(raw: Any) -> None:
    dataset = larder.Dataset(**raw.options(), decode=larder.Sample.key.__get__)
    assert dataset[7] == sorted(raw.contents)[7]
    plain = pickle.loads(pickle.dumps(larder.Dataset(**raw.options())))
    assert plain[7].bytes == raw.contents[plain[7].key]


# --- errors


def test_unknown_dataset_is_named(daemon: Any) -> None:
    with pytest.raises(larder.NotFound, match="nothing-of-the-kind"):
        larder.Loader("nothing-of-the-kind", socket=daemon.socket)


def test_too_small_budget_error_names_the_needed_budget(raw: Any) -> None:
    with pytest.raises(larder.InvalidArgument, match="memory budget of .* is too small.* need .*"):
        larder.Loader(**raw.options(batch_size=64, memory_budget="64KiB"))


def test_changed_object_is_reported_or_skipped(daemon: Any, make_raw: Callable[..., Any]) -> None:
    data = make_raw(daemon, per_class=10)
    changed, gone = "bee/0003.png", "cat/0004.png"
    (data.directory / changed).write_bytes(b"something else, of another length")
    (data.directory / gone).unlink()
    with larder.Loader(**data.options(batch_size=1)) as loader:
        walk = iter(loader)
        failed = []
        while True:
            try:
                if next(walk, None) is None:
                    pytest.fail("the changed object went unnoticed")
            except (larder.ObjectChanged, larder.NotFound) as error:
                failed.append(str(error))
                break
        assert changed in failed[0] or gone in failed[0]
        with pytest.raises(larder.Error):
            next(walk)  # nothing was skipped
    with larder.Loader(**data.options(batch_size=4, skip_failed=True)) as loader:
        assert {s.key: bytes(s.bytes) for batch in loader for s in batch} == {
            key: content for key, content in data.contents.items() if key not in (changed, gone)
        }
        assert loader.statistics().skipped_samples == 2


def test_epoch_continues_after_daemon_restart(start_daemon: Callable[[], Any], make_raw: Callable[..., Any]) -> None:
    daemon = start_daemon()
    data = make_raw(daemon, per_class=60)
    with larder.Loader(**data.options(batch_size=8, memory_budget="2MiB")) as loader:
        walk = iter(loader)
        held = next(walk)
        seen = keys_of([held])
        for _ in range(3):
            daemon.end(signal.SIGKILL)
            daemon.start()
            seen += take(walk, 3)
        seen += keys_of(walk)
        assert sorted(seen) == sorted(data.contents)
        assert loader.statistics().reconnects >= 1
        assert [s.bytes for s in held] == [data.contents[s.key] for s in held]
    with larder.Loader(**data.options(batch_size=8, memory_budget="2MiB", reconnect_timeout_s=0.2)) as loader:
        walk = iter(loader)
        next(walk)
        daemon.end(signal.SIGKILL)
        with pytest.raises(larder.Unavailable, match="200 ms"):
            list(walk)


def test_open_waits_while_the_daemon_restarts(
    start_daemon: Callable[[], Any], make_raw: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    daemon = start_daemon()
    data = make_raw(daemon, per_class=5)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for kind in (larder.Loader, larder.Dataset):
            daemon.end(number)
            with concurrent.futures.ThreadPoolExecutor(1) as opening:
                opened = opening.submit(kind, **data.options())
                while "waiting: " not in caplog.text:
                    assert not opened.done(), opened.exception()
                    time.sleep(0.01)
                daemon.start()
                with opened.result() as reader:
                    assert sum(1 for _ in reader) == len(data.contents)
            assert daemon.socket in caplog.text
            caplog.clear()


def test_ctrl_c_ends_a_waiting_read(
    start_daemon: Callable[[], Any], make_raw: Callable[..., Any], tmp_path: pathlib.Path
) -> None:
    daemon = start_daemon()
    data = make_raw(daemon, per_class=5)
    waiting = tmp_path / "waiting"
    program = f"""
import larder, pathlib, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # the process that runs the tests may ignore it
loader = larder.Loader({data.name!r}, socket={daemon.socket!r}, memory_budget="1MiB")
pathlib.Path({str(waiting)!r}).touch()
try:
    input()
    while True: list(loader)
except KeyboardInterrupt:
    print("interrupted")
"""
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        while not waiting.exists():
            assert child.poll() is None
            time.sleep(0.01)
        daemon.send(signal.SIGSTOP)
        child.stdin.write("\n")
        child.stdin.flush()
        time.sleep(0.2)  # lets the child begin to wait; if it has not yet, the test checks less but still passes
        child.send_signal(signal.SIGINT)
        assert child.communicate(timeout=60)[0] == "interrupted\n"
    finally:
        daemon.send(signal.SIGCONT)
        child.kill()
        child.wait()


def test_forked_child_reads_on_its_own(raw: Any, in_child: Callable[[Callable[[], None]], None]) -> None:
    with larder.Loader(**raw.options(batch_size=16)) as loader, larder.Dataset(**raw.options()) as dataset:
        walk = iter(loader)
        held = next(walk)
        views = held.samples_bytes()
        expected = [raw.contents[sample.key] for sample in held]
        begun = keys_of([held])

        def child() -> None:
            assert views == expected
            rest = keys_of(walk)
            assert sorted(begun + rest) == sorted(raw.contents)
            assert dataset[5].bytes == raw.contents[dataset[5].key]
            held.release()

        in_child(child)
        assert views == expected
        assert sorted(begun + keys_of(walk)) == sorted(raw.contents)
        assert dataset[6].bytes == raw.contents[dataset[6].key]
