"""torchdata's StatefulDataLoader, which reads the state of a larder.torch.IterableDataset inside workers."""

from __future__ import annotations

import collections
import json
from collections.abc import Callable
from typing import Any

import larder.torch
import pytest
import torch
from epochs import keys_of, take
from larder.torch.shared import Board
from torchdata.stateful_dataloader import StatefulDataLoader

BATCHES = 27  # batches of 8 in an epoch of 210 samples
WORKERS = [(0, False), (2, False), (2, True)]


@pytest.fixture(scope="module")
def orders(raw: Any) -> list[list[str]]:
    """The order of each of the first epochs."""

    def order(epoch: int) -> list[str]:
        with larder.Loader(**raw.options(batch_size=8, seed=4, first_epoch=epoch)) as loader:
            return [sample.key for batch in loader for sample in batch]

    return [order(epoch) for epoch in range(4)]


def make_loader(raw: Any, workers: tuple[int, bool], **options: Any) -> StatefulDataLoader:
    dataset = larder.torch.IterableDataset(**raw.options(batch_size=8, seed=4, memory_budget="4MiB"))
    num_workers, persistent = workers
    return StatefulDataLoader(
        dataset, batch_size=None, num_workers=num_workers, persistent_workers=persistent, **options
    )


def through_json(state: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(state))


@pytest.mark.parametrize("workers", WORKERS)
def test_each_pass_is_an_epoch(raw: Any, orders: list[list[str]], workers: tuple[int, bool]) -> None:
    loader = make_loader(raw, workers)
    assert len(loader) == BATCHES
    for order in orders[:3]:
        assert keys_of(loader) == order
    for _ in loader:
        break
    loader.dataset.set_epoch(1)
    assert keys_of(loader) == orders[1]


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize(("first", "second"), [(5, 9), (0, 1), (13, BATCHES - 13)])
def test_resuming_twice_in_a_row_is_exact(
    raw: Any, orders: list[list[str]], workers: tuple[int, bool], first: int, second: int
) -> None:
    loader = make_loader(raw, workers)
    assert keys_of(loader) == orders[0]  # reads an epoch, so that the states belong to a later one
    seen = take(iter(loader), first)
    states = [through_json(loader.state_dict())]
    loader = make_loader(raw, workers)
    loader.load_state_dict(states[0])
    seen += take(iter(loader), second)
    states.append(through_json(loader.state_dict()))
    loader = make_loader(raw, workers)
    loader.load_state_dict(states[1])
    assert seen + keys_of(loader) == orders[1]
    assert keys_of(loader) == orders[2]
    assert keys_of(loader) == orders[3]
    loader.load_state_dict(states[0])  # a position that this loader has already left
    rest = keys_of(loader)
    assert collections.Counter(seen[: 8 * first] + rest) == dict.fromkeys(raw.contents, 1)
    assert keys_of(loader) == orders[2]


@pytest.mark.parametrize("workers", WORKERS)
def test_state_of_an_ended_pass_resumes_with_the_next_epoch(
    raw: Any, orders: list[list[str]], workers: tuple[int, bool]
) -> None:
    loader = make_loader(raw, workers)
    assert keys_of(loader) == orders[0]
    state = through_json(loader.state_dict())
    for _ in range(2):
        loader = make_loader(raw, workers)
        loader.load_state_dict(state)
        assert keys_of(loader) == orders[1]
        assert keys_of(loader) == orders[2]


def test_workers_agree_on_the_pass_in_any_order_of_loading() -> None:
    for first, second in ((0, 1), (1, 0)):
        board = Board()
        board.begin_pass(2, key=5)  # for a loader with more workers
        for worker in (first, second):
            board.load_state(worker, 2, b"state")
            assert board.begin_pass(worker, key=7, number=0) == 0
        assert board.state == b"state" and board.passes == 1
        assert [board.begin_pass(worker, key=7) for worker in (second, first)] == [1, 1]
        assert [board.begin_pass(worker, key=8) for worker in (second, first)] == [2, 2]


def test_snapshots_taken_every_few_steps_are_exact(raw: Any, orders: list[list[str]]) -> None:
    loader = make_loader(raw, (2, False), snapshot_every_n_steps=4)
    seen = take(iter(loader), 10)
    state = loader.state_dict()
    loader = make_loader(raw, (2, False), snapshot_every_n_steps=4)
    loader.load_state_dict(state)
    assert seen + keys_of(loader) == orders[0]


def test_spawned_workers_resume(raw: Any, orders: list[list[str]]) -> None:
    loader = make_loader(raw, (1, False), multiprocessing_context="spawn")
    seen = take(iter(loader), 6)
    state = loader.state_dict()
    loader = make_loader(raw, (1, True), multiprocessing_context="spawn")
    loader.load_state_dict(state)
    assert seen + keys_of(loader) == orders[0]
    assert keys_of(loader) == orders[1]


def test_shards_and_ranks_resume(shards: Any) -> None:
    seen: collections.Counter[str] = collections.Counter()

    def make(rank: int) -> StatefulDataLoader:
        dataset = larder.torch.IterableDataset(
            **shards.options(batch_size=5, memory_budget="8MiB", rank=rank, world_size=2)
        )
        return StatefulDataLoader(dataset, batch_size=None, num_workers=2)

    for rank in range(2):
        loader = make(rank)
        seen.update(take(iter(loader), 7))
        state = loader.state_dict()
        loader = make(rank)
        loader.load_state_dict(state)
        seen.update(keys_of(loader))
    assert seen == dict.fromkeys(shards.contents, 1)


def test_state_of_one_worker_is_refused_elsewhere(raw: Any) -> None:
    loader = make_loader(raw, (2, False))
    next(iter(loader))
    workers = loader.state_dict()["_snapshot"]["_worker_snapshots"]
    state = workers["worker_1"]["dataset_state"]
    with pytest.raises(larder.InvalidArgument, match="worker 1 of 2"):
        larder.torch.IterableDataset(**raw.options(batch_size=8, seed=4)).load_state_dict(state)


def test_passes_are_told_apart_under_equal_torch_seeds(
    raw: Any, orders: list[list[str]]
) -> None:
    loader = make_loader(raw, (2, False))
    for order in orders[:3]:
        torch.manual_seed(1)  # torch draws the workers' seed from this one
        assert keys_of(loader) == order


def expect(seen: list[str], expected: list[str]) -> None:
    assert seen == expected


def test_forked_process_reads_on_its_own(
    raw: Any, orders: list[list[str]], in_child: Callable[[Callable[[], None]], None]
) -> None:
    loader = make_loader(raw, (0, False))
    walk = iter(loader)
    begun = take(walk, 3)
    in_child(lambda: expect(begun + keys_of(walk), orders[0]))
    assert begun + keys_of(walk) == orders[0]


@pytest.mark.parametrize("workers", WORKERS)
def test_state_before_the_first_pass_resumes_at_its_beginning(
    raw: Any, orders: list[list[str]], workers: tuple[int, bool]
) -> None:
    loader = make_loader(raw, workers)
    state = through_json(loader.state_dict())
    assert keys_of(loader) == orders[0]
    loader = make_loader(raw, workers)
    loader.load_state_dict(state)
    for order in orders[:2]:
        for batch in loader:
            assert keys_of([batch]) == order[:8]
            break
    assert keys_of(loader) == orders[2]
