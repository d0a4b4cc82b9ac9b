"""larder.Mixture: several datasets in one loop, by weight, and its exact position."""

from __future__ import annotations

import collections
import json
import math
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import larder
import numpy as np
import pytest
from conftest import Daemon
from epochs import datasets_of_sizes, write_files

SIZES = {"many": 120, "few": 18}
WEIGHTS = {"many": 3.0, "few": 1.0}


@pytest.fixture(scope="module")
def names(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The names at the daemon of the two datasets."""
    with datasets_of_sizes(daemon, tmp_path_factory, "mixed-", SIZES) as named:
        yield named


@pytest.fixture
def mix(daemon: Daemon, names: dict[str, str]) -> Iterator[Callable[..., larder.Mixture]]:
    made = []

    def make(**options: Any) -> larder.Mixture:
        weights = {names[kind]: weight for kind, weight in WEIGHTS.items()}
        given: dict[str, Any] = {"batch_size": 8, "seed": 5, "socket": daemon.socket, "memory_budget": "32MiB"}
        made.append(larder.Mixture(weights, **(given | options)))
        return made[-1]

    yield make
    for mixture in made:
        mixture.close()


def ids_of(batch: Any) -> list[tuple[int, int]]:
    """The dataset and the index of each sample, from its content."""
    words = [int.from_bytes(sample.bytes[:4], "little") for sample in batch]
    return [(word >> 16, word & 0xFFFF) for word in words]


def test_each_batch_holds_the_share_of_each_dataset(mix: Callable[..., larder.Mixture], names: dict[str, str]) -> None:
    mixture = mix()
    assert mixture.shares == {names["many"]: 6, names["few"]: 2}
    assert len(mixture) == 20, "until the larger dataset has ended an epoch"
    seen: collections.Counter[tuple[int, int]] = collections.Counter()
    for batch in mixture:
        ids = ids_of(batch)
        assert [dataset for dataset, _ in ids] == [0] * 6 + [1] * 2
        seen.update(ids)
    assert sum(seen.values()) == 20 * 8 and mixture.statistics().samples == 160
    assert {count for (dataset, _), count in seen.items() if dataset == 0} == {1}
    of_few = [seen[1, index] for index in range(18)]
    assert sorted(of_few) == [2] * 14 + [3] * 4, "two epochs, and two batches of the third"
    assert mixture.epochs[names["few"]] == 2


def test_weights_are_rounded_to_whole_samples(daemon: Daemon, names: dict[str, str]) -> None:
    def shares(first: float, second: float, batch_size: int) -> list[int]:
        weights = {names["many"]: first, names["few"]: second}
        with larder.Mixture(weights, batch_size=batch_size, socket=daemon.socket, memory_budget="32MiB") as mixture:
            return list(mixture.shares.values())

    assert shares(0.7, 0.3, 8) == [6, 2]
    assert shares(0.7, 0.3, 10) == [7, 3]
    assert shares(1, 1, 3) == [2, 1]
    with pytest.raises(larder.InvalidArgument, match="no sample in a batch of 4.*batch_size of about 101"):
        shares(100, 1, 4)
    with pytest.raises(larder.InvalidArgument, match='weight of dataset "mixed-few" is 0'):
        shares(1, 0, 4)
    with pytest.raises(larder.InvalidArgument, match="18 samples, fewer than 20 for each of 1 ranks"):
        shares(1, 1, 40)
    with pytest.raises(larder.InvalidArgument, match="at least one dataset"):
        larder.Mixture({}, batch_size=4, socket=daemon.socket)
    with pytest.raises(larder.InvalidArgument, match="weights is .'a', 'b'.; it must be a dict"):
        larder.Mixture(["a", "b"], batch_size=4, socket=daemon.socket)  # type: ignore[arg-type]
    for weight in (-1, math.nan, math.inf, 1e-320, 1e308, 10**400, "1", None):
        with pytest.raises(larder.InvalidArgument, match="must be a number from 1e-30 to 1e\\+30"):
            shares(1, weight, 4)  # type: ignore[arg-type]
    assert shares(np.float32(3), np.int64(1), 8) == [6, 2]  # type: ignore[arg-type]


@pytest.mark.parametrize("taken", [0, 1, 9, 19, 20, 31])
def test_state_resumes_exactly(mix: Callable[..., larder.Mixture], taken: int) -> None:
    def walk(mixture: larder.Mixture) -> Iterator[list[tuple[int, int]]]:
        while True:
            for batch in mixture:
                yield ids_of(batch)

    through = walk(mix())
    expected = [next(through) for _ in range(50)]
    first = mix()
    batches = walk(first)
    assert [next(batches) for _ in range(taken)] == expected[:taken]
    state = json.loads(json.dumps(first.state_dict()))
    second = mix()
    second.load_state_dict(state)
    assert second.state_dict() == state
    rest = walk(second)
    assert [next(rest) for _ in range(50 - taken)] == expected[taken:]


def test_resumed_pass_is_the_rest_of_it(mix: Callable[..., larder.Mixture]) -> None:
    first = mix(batches_per_epoch=10)
    batches = iter(first)
    for _ in range(7):
        next(batches)
    second = mix(batches_per_epoch=10)
    second.load_state_dict(first.state_dict())
    assert (len(second), second.epoch) == (3, 0)
    assert (sum(1 for _ in second), sum(1 for _ in second), second.epoch) == (3, 10, 1)


def test_pass_without_a_batch_does_not_count(mix: Callable[..., larder.Mixture]) -> None:
    first = mix(batches_per_epoch=10)
    iter(first)
    batches = iter(first)
    for _ in range(7):
        next(batches)
    second = mix(batches_per_epoch=10)
    second.load_state_dict(first.state_dict())
    iter(second)
    rest = iter(second)
    assert (len(second), second.epoch) == (3, 0)
    assert (sum(1 for _ in rest), len(second), second.epoch) == (3, 3, 0)
    assert (sum(1 for _ in second), len(second), second.epoch) == (10, 10, 1)


def test_closed_mixture_says_so(mix: Callable[..., larder.Mixture]) -> None:
    mixture = mix()
    mixture.close()
    for ask in (len, iter, larder.Mixture.statistics, larder.Mixture.state_dict, lambda closed: closed.epochs):
        with pytest.raises(ValueError, match="the mixture is closed"):
            ask(mixture)


def test_collate_cannot_end_the_pass(mix: Callable[..., larder.Mixture]) -> None:
    def collate(samples: list[Any]) -> Any:
        return next(iter([]))

    with pytest.raises(RuntimeError, match="collate raised StopIteration"):
        next(iter(mix(collate=collate)))


def test_state_of_three_ranks_is_resumed_by_two(mix: Callable[..., larder.Mixture]) -> None:
    def take(mixtures: list[larder.Mixture], count: int) -> list[tuple[int, int]]:
        return [one for mixture in mixtures for _, batch in zip(range(count), mixture) for one in ids_of(batch)]

    def ranks(world_size: int) -> list[larder.Mixture]:
        return [mix(batch_size=4, rank=rank, world_size=world_size) for rank in range(world_size)]

    before = ranks(3)
    seen = take(before, 5)
    states = [mixture.state_dict() for mixture in before]
    assert states[0] == states[1] == states[2]
    after = ranks(2)
    for mixture in after:
        mixture.load_state_dict(states[0])
    seen += take(after, 12)
    of_many = [index for dataset, index in seen if dataset == 0]
    assert len(of_many) == 3 * (3 * 5 + 2 * 12) == 117 == len(set(of_many)), "the same epoch, no sample twice"


def test_loop_that_is_left_skips_no_sample(mix: Callable[..., larder.Mixture]) -> None:
    whole = [ids_of(batch) for batch in mix()]
    mixture = mix()
    parts = []
    for batch in mixture:
        parts.append(ids_of(batch))
        if len(parts) == 3:
            break
    again = iter(mixture)
    parts += [ids_of(next(again)) for _ in range(17)]
    assert parts == whole
    iter(mixture)
    with pytest.raises(RuntimeError, match="another one began"):
        next(again)


def test_error_in_one_dataset_loses_nothing_of_the_other(mix: Callable[..., larder.Mixture], names: dict[str, str]) -> None:
    expected = [ids_of(batch) for batch in mix()]
    fails = [False]

    def word(sample: larder.Sample) -> tuple[int, int]:
        return ids_of([sample])[0]

    def sometimes(sample: larder.Sample) -> tuple[int, int]:
        if fails[0]:
            raise OSError("no image")
        return word(sample)

    mixture = mix(decode={names["many"]: word, names["few"]: sometimes}, transform=lambda pair: pair, collate=tuple)
    batches = iter(mixture)
    got = [list(next(batches)) for _ in range(4)]
    state = mixture.state_dict()
    fails[0] = True
    for _ in range(2):
        with pytest.raises(larder.DecodeError, match='dataset "mixed-few" cannot be decoded: OSError: no image'):
            next(batches)
        assert mixture.state_dict() == state
    fails[0] = False
    assert got + [list(batch) for batch in batches] == expected
    with pytest.raises(larder.InvalidArgument, match='decode has no function for dataset "mixed-few"'):
        mix(decode={names["many"]: word})


def test_unusable_state_changes_nothing(mix: Callable[..., larder.Mixture], names: dict[str, str]) -> None:
    mixture = mix()
    batches = iter(mixture)
    next(batches)
    older = mixture.state_dict()
    next(batches)
    state = mixture.state_dict()
    for wrong in (
        {},
        {**state, "taken": "x"},
        {**state, "datasets": {}},
        {**state, "datasets": {**older["datasets"], names["few"]: {"state": "AAAA"}}},
    ):
        with pytest.raises((larder.InvalidArgument, larder.Corrupt)):
            mixture.load_state_dict(wrong)
        assert mixture.state_dict() == state


def test_unusable_state_skips_no_sample_of_a_batch_that_failed(
    mix: Callable[..., larder.Mixture], names: dict[str, str]
) -> None:
    fails = [True]

    def sometimes(sample: larder.Sample) -> tuple[int, ...]:
        if fails[0]:
            raise OSError("no image")
        return tuple(sample.bytes[:4])

    mixture = mix(decode=sometimes)
    with pytest.raises(larder.DecodeError):
        next(iter(mixture))
    state = mixture.state_dict()
    wrong = {**state, "datasets": {**state["datasets"], names["few"]: {"state": "AAAA"}}}
    with pytest.raises((larder.InvalidArgument, larder.Corrupt)):
        mixture.load_state_dict(wrong)
    fails[0] = False
    expected = [[tuple(sample.bytes[:4]) for sample in batch] for batch in mix()]
    assert [list(batch) for batch in mixture] == expected


def test_daemon_that_restarts_costs_a_mixture_nothing(
    start_daemon: Callable[..., Daemon], tmp_path: pathlib.Path
) -> None:
    own = start_daemon()
    for generation, kind in enumerate(SIZES):
        own.command("dataset", "add", kind, write_files(tmp_path / kind, SIZES[kind], 64, generation))
    with larder.Mixture(WEIGHTS, batch_size=8, seed=1, socket=own.socket) as mixture:
        expected = [ids_of(batch) for batch in mixture]
    with larder.Mixture(WEIGHTS, batch_size=8, seed=1, socket=own.socket) as mixture:
        got = []
        for batch in mixture:
            got.append(ids_of(batch))
            if len(got) == 5:
                own.end()
                own.start()
        assert got == expected
    own.end()


def test_share_of_the_memory_budget_that_is_too_small_names_its_dataset(
    mix: Callable[..., larder.Mixture], names: dict[str, str]
) -> None:
    says = f'dataset "{names["many"]}" gets 6 of 8 parts of memory_budget, its share of a batch: a memory budget of'
    for budget in (1, "4KiB"):
        with pytest.raises(larder.InvalidArgument, match=says):
            mix(memory_budget=budget)
