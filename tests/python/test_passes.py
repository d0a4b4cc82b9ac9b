"""Passes over a larder.Loader: where each pass begins and ends, as with torch's DataLoader."""

from __future__ import annotations

import collections
import random
from collections.abc import Callable
from typing import Any

import larder.torch
import pytest
from epochs import keys_of, take

BATCHES = 14  # batches of 16 in an epoch of 210 samples


@pytest.fixture(scope="module")
def orders(raw: Any) -> list[list[str]]:
    """The order of each of the first epochs, in batches of 16."""

    def order(epoch: int) -> list[str]:
        with larder.Loader(**raw.options(batch_size=16, first_epoch=epoch)) as loader:
            return keys_of(loader)

    return [order(epoch) for epoch in range(4)]


@pytest.mark.parametrize("left_after", [1, 5, BATCHES])
def test_loop_left_early_ends_its_epoch(raw: Any, orders: list[list[str]], left_after: int) -> None:
    with larder.Loader(**raw.options(batch_size=16)) as loader:
        for epoch in (0, 1):
            for count, batch in enumerate(loader, start=1):
                assert keys_of([batch]) == orders[epoch][16 * (count - 1) : 16 * count]
                if count == left_after:
                    break
            assert loader.epoch == epoch and count == left_after
        assert keys_of(loader) == orders[2]
        assert loader.epoch == 3


def test_each_pass_has_its_own_iterator_which_stays_exhausted(raw: Any, orders: list[list[str]]) -> None:
    with larder.Loader(**raw.options(batch_size=16)) as loader:
        first = iter(loader)
        assert first is not loader and iter(first) is first
        assert keys_of(first) == orders[0]
        assert [next(first, None) for _ in range(3)] == [None] * 3
        second = iter(loader)
        assert second is not first
        assert take(second, 2) == orders[1][:32]
        assert next(first, None) is None
        assert keys_of(second) == orders[1][32:]
        assert next(first, None) is None and next(second, None) is None


def test_iterator_continues_until_another_pass_begins(raw: Any, orders: list[list[str]]) -> None:
    with larder.Loader(**raw.options(batch_size=16)) as loader:
        kept = iter(loader)
        begun = []
        for batch in kept:
            begun += keys_of([batch])
            if len(begun) == 48:
                break
        assert begun + keys_of(kept) == orders[0]
        endings: list[Callable[[], object]] = [
            lambda: iter(loader),
            lambda: loader.start_epoch(1),
            lambda: loader.load_state_dict(loader.state_dict()),
        ]
        for end in endings:
            older = iter(loader)
            next(older)
            end()
            for _ in range(2):
                with pytest.raises(RuntimeError, match="this pass is over: another one began"):
                    next(older)


def test_pass_without_a_batch_does_not_count(raw: Any, orders: list[list[str]]) -> None:
    with larder.Loader(**raw.options(batch_size=16)) as loader:
        iter(loader)
        begun = take(iter(loader), 3)
        assert begun == orders[0][:48]
        loader.load_state_dict(loader.state_dict())
        iter(loader)
        assert begun + keys_of(loader) == orders[0]
        assert keys_of(loader) == orders[1]


def test_iterators_of_all_ranks_end_together(raw: Any) -> None:
    for world_size in (2, 3):
        ranks = [raw.options(batch_size=16, rank=rank, world_size=world_size) for rank in range(world_size)]
        loaders = [larder.Loader(**options) for options in ranks]
        for epoch in range(2):
            seen = collections.Counter()
            walks = [iter(loader) for loader in loaders]
            while batches := [batch for walk in walks if (batch := next(walk, None)) is not None]:
                seen.update(keys_of(batches))
            assert seen == dict.fromkeys(raw.contents, 1)
            assert [loader.epoch for loader in loaders] == [epoch + 1] * world_size
        for loader in loaders:
            loader.close()


@pytest.mark.parametrize("taken", [0, 1, 7, BATCHES - 1, BATCHES])
def test_pass_after_a_resumed_one_is_the_next_epoch(raw: Any, orders: list[list[str]], taken: int) -> None:
    with larder.Loader(**raw.options(batch_size=16, first_epoch=1)) as loader:
        begun = take(iter(loader), taken)
        state = loader.state_dict()
    with larder.Loader(**raw.options(batch_size=16)) as loader:
        loader.load_state_dict(state)
        assert loader.epoch == 1 and len(loader) == BATCHES - taken
        assert begun + keys_of(loader) == orders[1]
        assert len(loader) == BATCHES
        assert keys_of(loader) == orders[2]
        loader.load_state_dict(state)
        for _ in loader:
            break
        assert keys_of(loader) == orders[2]


class Model:
    """The expected position of a loader: its epoch, the next batch (`at`) and the first batch of the pass (`began`)."""

    def __init__(self, orders: list[list[str]]) -> None:
        self.orders = orders
        self.move(0, 0)

    def move(self, epoch: int, at: int) -> None:
        self.epoch, self.began, self.at = epoch, at, at
        self.current: object = None

    def begin(self, walk: object) -> None:
        if self.at > self.began:
            self.move(self.epoch + 1, 0)
        self.current = walk

    def next_batch(self) -> list[str]:
        batch = self.orders[self.epoch % len(self.orders)][16 * self.at : 16 * (self.at + 1)]
        self.at += 1
        if not batch:
            self.move(self.epoch + 1, 0)
        return batch


@pytest.mark.parametrize("kind", ["Loader", "torch", "torch with workers"])
@pytest.mark.parametrize("seed", range(4))
def test_any_sequence_of_passes_and_states_reads_whole_epochs(
    raw: Any, orders: list[list[str]], kind: str, seed: int
) -> None:
    draw = random.Random(seed)
    options = raw.options(batch_size=16, memory_budget="4MiB")

    def make() -> Any:
        if kind == "Loader":
            return larder.Loader(**options, decode=lambda sample: sample.key)
        dataset = larder.torch.IterableDataset(**options, decode=lambda sample: sample.key)
        return larder.torch.DataLoader(dataset, num_workers=2 if kind == "torch with workers" else 0)

    loader, model = make(), Model(orders)
    walks: list[tuple[Any, list[bool]]] = []  # each with a list that is empty until the iterator has ended
    saved = (loader.state_dict(), (0, 0))
    for _ in range(40 if kind == "torch with workers" else 150):
        act = draw.choice(["next"] * 6 + ["iter", "iter", "save", "load", "resume", "start"])
        if act == "iter" and model.epoch + 1 < len(orders):
            walk = iter(loader)
            model.begin(walk)
            walks.append((walk, []))
        elif act == "next" and walks:
            walk, ended = draw.choice(walks[-3:])
            for _ in range(draw.choice([1, 2, 9])):
                if ended:
                    assert next(walk, None) is None
                elif walk is not model.current:
                    with pytest.raises(RuntimeError, match="this pass is over"):
                        next(walk)
                elif batch := model.next_batch():
                    assert list(next(walk)) == batch
                else:
                    assert next(walk, None) is None
                    ended.append(True)
        elif act == "save":
            saved = (loader.state_dict(), (model.epoch, model.at))
        elif act == "load":
            loader.load_state_dict(saved[0])
            model.move(*saved[1])
        elif act == "resume":
            state, place = loader.state_dict(), (model.epoch, model.at)
            loader.close()
            loader, walks = make(), []
            loader.load_state_dict(state)
            model.move(*place)
        elif act == "start":
            epoch = draw.randrange(2)
            loader.start_epoch(epoch)
            model.move(epoch, 0)
        assert loader.epoch == model.epoch
    loader.close()
