"""larder.torch.Mixture: several datasets in DataLoader workers, by weight, and the exact position of all."""

from __future__ import annotations

import collections
import itertools
import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import larder
import pytest
from allocator_process import Allocator
from conftest import Daemon
from epochs import datasets_of_sizes, wait_until, write_files

torch = pytest.importorskip("torch")
import larder.torch  # noqa: E402

SIZES = {"many": 125, "few": 23}
WEIGHTS = {"many": 3.0, "few": 1.0}


@pytest.fixture(scope="module")
def names(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The names at the daemon of the two datasets."""
    with datasets_of_sizes(daemon, tmp_path_factory, "torch-mixed-", SIZES) as named:
        yield named


def decode(sample: larder.Sample) -> int:
    """The number of the dataset, times 65536, and the index of the sample, from its content."""
    return int.from_bytes(sample.bytes[:4], "little")


def as_list(samples: list[Any]) -> list[Any]:
    return samples


@pytest.fixture
def mix(daemon: Daemon, names: dict[str, str]) -> Callable[..., larder.torch.DataLoader]:
    def make(num_workers: int = 0, persistent: bool = False, **options: Any) -> larder.torch.DataLoader:
        given: dict[str, Any] = {"batch_size": 8, "seed": 5, "socket": daemon.socket, "memory_budget": "8MiB"}
        given |= {"weights": {names[kind]: weight for kind, weight in WEIGHTS.items()}}
        dataset = larder.torch.Mixture(**(given | {"decode": decode, "collate": as_list} | options))
        return larder.torch.DataLoader(dataset, num_workers=num_workers, persistent_workers=persistent)

    return make


def passes(loader: larder.torch.DataLoader, count: int) -> list[list[Any]]:
    return [list(loader) for _ in range(count)]


Mix = Callable[..., larder.torch.DataLoader]


def test_batches_are_those_of_the_mixture_without_torch(mix: Mix, daemon: Daemon, names: dict[str, str]) -> None:
    loader = mix()
    weights = {names[kind]: weight for kind, weight in WEIGHTS.items()}
    plain = larder.Mixture(
        weights, batch_size=8, seed=5, socket=daemon.socket, memory_budget="32MiB", decode=decode, collate=as_list
    )
    with plain as mixture:
        assert loader.dataset.shares == mixture.shares and len(loader) == len(mixture) == 20
        assert passes(loader, 3) == [list(mixture) for _ in range(3)]
    assert loader.epoch == 3 and loader.statistics().samples == 3 * 20 * 8
    assert loader.dataset.sample_count == 148 and loader.dataset.class_names == []


@pytest.mark.parametrize(("num_workers", "persistent"), [(1, False), (2, False), (3, False), (3, True)])
def test_workers_read_each_sample_once_in_an_epoch(mix: Mix, num_workers: int, persistent: bool) -> None:
    batches = [batch for walked in passes(mix(num_workers, persistent, batches_per_epoch=13), 4) for batch in walked]
    assert len(batches) == 52
    for number, (share, count) in enumerate(((6, 125), (2, 23))):
        samples = [sample for batch in batches for sample in batch if sample >> 16 == number]
        assert len(samples) == 52 * share
        # Fewer are left out of an epoch than all workers take in a turn, and those of every pass that began in it.
        epoch = [sample for sample in samples[: count - 2 * share * num_workers]]
        assert len(epoch) == len(set(epoch)) > 0
        seen = collections.Counter(samples).values()
        assert max(seen) - min(seen) <= max(2, 52 * share // count), "no sample is left out for long"


@pytest.mark.parametrize("num_workers", [0, 2, 3])
@pytest.mark.parametrize("taken", [0, 1, 5, 12, 13, 14, 24])
def test_state_resumes_exactly(mix: Mix, num_workers: int, taken: int) -> None:
    def walk(loader: larder.torch.DataLoader) -> Iterator[Any]:
        while True:
            yield from loader

    through = walk(mix(num_workers, batches_per_epoch=13))
    expected = [next(through) for _ in range(30)]
    first = mix(num_workers, batches_per_epoch=13)
    batches = walk(first)
    assert [next(batches) for _ in range(taken)] == expected[:taken]
    state = json.loads(json.dumps(first.state_dict()))
    second = mix(num_workers, batches_per_epoch=13)
    second.load_state_dict(state)
    assert second.state_dict() == state
    rest = walk(second)
    assert [next(rest) for _ in range(30 - taken)] == expected[taken:]


@pytest.mark.parametrize(("before", "after"), [(3, 0), (0, 3), (2, 3)])
def test_state_is_resumed_by_other_workers_and_ranks(mix: Mix, before: int, after: int) -> None:
    first = [mix(before, rank=rank, world_size=2) for rank in range(2)]
    taken: list[Any] = []
    for loader in first:
        batches = iter(loader)
        taken += [next(batches) for _ in range(4)]
        state = loader.state_dict()
    assert state == first[0].state_dict()
    loader = mix(after)
    loader.load_state_dict(state)
    rest = list(loader)
    many = [sample for batch in taken + rest for sample in batch if sample >> 16 == 0]
    assert len(many[:108]) == len(set(many[:108])), "in the epoch no sample comes twice"


@pytest.mark.parametrize("num_workers", [0, 3])
def test_stateful_dataloader_resumes_exactly(mix: Mix, num_workers: int) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    def load() -> Any:
        return stateful(mix(batches_per_epoch=13).dataset, batch_size=None, num_workers=num_workers)

    loader = load()
    expected = [batch for _ in range(2) for batch in loader]
    first = load()
    batches = iter(first)
    assert [next(batches) for _ in range(7)] == expected[:7]
    second = load()
    second.load_state_dict(first.state_dict())
    assert [batch for _ in range(2) for batch in second] == expected[7:]


def test_pass_walks_its_own_epoch(mix: Mix) -> None:
    whole = passes(mix(2, batches_per_epoch=6), 4)
    loader = mix(2, batches_per_epoch=6)
    next(iter(loader))
    assert list(loader) == whole[1], "leaving a pass ends it"
    loader.start_epoch(3)
    assert list(loader) == whole[3]
    loader.start_epoch(0)
    assert list(loader) == whole[0]
    dataset = loader.dataset
    assert isinstance(dataset, larder.torch.Mixture)
    assert list(mix(2, batches_per_epoch=6, first_epoch=2)) == whole[2]


def test_each_dataset_may_have_its_decode(mix: Mix, names: dict[str, str]) -> None:
    def fails(sample: larder.Sample) -> str:
        raise OSError("broken")

    by_name = {names["many"]: decode, names["few"]: fails}
    with pytest.raises(larder.DecodeError, match=f'of dataset "{names["few"]}" cannot be decoded: OSError: broken'):
        list(mix(2, decode=by_name))
    skipping = mix(2, decode=by_name, decode_errors="skip")
    assert [len(batch) for batch in skipping] == [6] * 20 and skipping.statistics().decode_errors == 40
    undecoded = next(iter(mix(2, decode=None, collate=None)))
    assert [set(sample) for sample in undecoded] == [{"__key__", "__index__", "__label__", "bin"}] * 8


def test_refusals_name_what_is_wrong(mix: Mix, names: dict[str, str]) -> None:
    with pytest.raises(larder.InvalidArgument, match="fewer than 2 for each of 12 workers of 1 ranks"):
        list(mix(12))
    with pytest.raises(larder.InvalidArgument, match=f'decode has no function for dataset "{names["few"]}"'):
        mix(decode={names["many"]: decode})
    other = mix().state_dict()
    for state in ({**other, "state": ""}, {**other, "state": "e30="}):
        with pytest.raises(larder.InvalidArgument, match="not one of a larder.torch.Mixture"):
            mix().load_state_dict(state)


def test_state_of_many_datasets_reaches_the_workers(mix: Mix, daemon: Daemon, tmp_path: pathlib.Path) -> None:
    directory = write_files(tmp_path / "files", 8, size=64)
    names = [f"torch-mixed-{number}-{'long' * 10}" for number in range(24)]
    for name in names:
        daemon.command("dataset", "add", name, directory, "--quota-memory", "1MiB")
    try:
        loader = mix(2, weights=dict.fromkeys(names, 1), batch_size=24)
        batches = iter(loader)
        taken = [next(batches)]
        resumed = mix(2, weights=dict.fromkeys(names, 1), batch_size=24)
        resumed.load_state_dict(loader.state_dict())
        assert taken + list(resumed) == list(mix(2, weights=dict.fromkeys(names, 1), batch_size=24))
    finally:
        for name in names:
            daemon.command("dataset", "rm", name)


@pytest.mark.parametrize("workers", [None, 0, 2], ids=["without torch", "no workers", "workers"])
def test_the_job_has_one_training_loop(
    start_daemon: Callable[..., Daemon],
    larder_bin: pathlib.Path,
    tmp_path: pathlib.Path,
    workers: int | None,
) -> None:
    allocator = Allocator(larder_bin, tmp_path)
    node = start_daemon("--allocator.endpoint", str(allocator.socket), "--allocator.node", "node")
    try:
        for name in ("many", "few"):
            node.command("dataset", "add", name, write_files(tmp_path / name, 64, size=64))
        options: dict[str, Any] = {"batch_size": 8, "job": "train", "socket": node.socket, "memory_budget": "8MiB"}
        if workers is None:
            loader: Any = larder.Mixture(WEIGHTS, **options)
        else:
            dataset = larder.torch.Mixture(WEIGHTS, **options)
            loader = larder.torch.DataLoader(dataset, num_workers=workers, persistent_workers=workers > 0)
        with loader:
            batches = itertools.chain.from_iterable(itertools.repeat(loader))

            def has_ranks() -> bool:
                next(batches)
                return [job["ranks"] for job in allocator.ask("GET", "/v1/jobs").json()["jobs"]] not in ([], [0])

            for _ in range(5):
                next(batches)
            wait_until(has_ranks)
            (job,) = allocator.ask("GET", "/v1/jobs").json()["jobs"]
            assert job["ranks"] == 1
    finally:
        node.end()
        assert allocator.end() == 0, allocator.log.read_text()
