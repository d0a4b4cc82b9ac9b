"""A loop that keeps random batches, samples and views for random times never lacks memory within its budget."""

from __future__ import annotations

import collections
import random
import re
from collections.abc import Callable, Iterable
from typing import Any

import larder.torch
import pytest
from larder import _larder

SLOT_PAGE = 4096
SLOT_HEADER = 64


class Kept:
    """Keeps at most `batches_max` views, samples or batches. Drops them in random order, and checks their bytes."""

    def __init__(self, contents: dict[str, bytes], seed: int, batches_max: int) -> None:
        self._contents = contents
        self._draw = random.Random(seed)
        self._batches_max = batches_max
        self._things: list[tuple[str, Any]] = []

    def keep(self, sample: larder.Sample, *holders: Any) -> None:
        """Keeps, at random, a view of the sample or an object that holds its memory."""
        if self._batches_max == 0 or self._draw.randrange(8) > 0:
            return
        while len(self._things) == self._batches_max:
            self.drop()
        self._things.append((sample.key, self._draw.choice([sample.bytes, sample.bytes[:], sample.numpy(), *holders])))
        while self._things and self._draw.randrange(3) == 0:
            self.drop()

    def drop(self) -> None:
        # The oldest object often stays.
        takes_first = len(self._things) == 1 or self._draw.randrange(4) == 0
        index = 0 if takes_first else self._draw.randrange(1, len(self._things))
        key, thing = self._things.pop(index)
        if isinstance(thing, larder.Batch):
            thing = next(sample for sample in thing if sample.key == key)
        if isinstance(thing, larder.Sample):
            thing = thing.bytes
        assert bytes(thing) == self._contents[key]

    def decode(self, sample: larder.Sample) -> tuple[str, bytes]:
        """A `decode` for a loader. The loader releases its batches, so only views may be kept."""
        self.keep(sample)
        return sample.key, bytes(sample.bytes)


def least_budget(options: dict[str, Any]) -> int:
    """The budget that the error names when a loader is opened with too little."""
    with pytest.raises(larder.InvalidArgument) as refused:
        larder.Loader(**{**options, "memory_budget": 1})
    return _larder.parse_bytes(re.search(r"blocks need ([\d.]+ \w+) with blocks", str(refused.value))[1])


def expect_whole(seen: Iterable[tuple[str, bytes]], contents: dict[str, bytes]) -> None:
    seen = list(seen)
    assert collections.Counter(key for key, _ in seen) == dict.fromkeys(contents, 1)
    assert dict(seen) == contents


@pytest.fixture(scope="module", params=["files", "shards"])
def data(
    request: pytest.FixtureRequest, daemon: Any, make_raw: Callable[..., Any], make_shards: Callable[..., Any]
) -> Any:
    """About half of the dataset comes from memory and disk, the rest from the remote."""
    made = make_raw(daemon) if request.param == "files" else make_shards(daemon, "16KiB")
    daemon.command("quota", "set", made.name, "--memory", "512KiB", "--disk", "512KiB")
    return made


def draw_options(draw: random.Random, data: Any, kept_max: int) -> dict[str, Any]:
    options = data.options(
        batch_size=draw.choice([1, 2, 5, 10, 24]),
        seed=draw.randrange(1000),
        shuffle=draw.randrange(4) > 0,
        shuffle_window_blocks=draw.choice([1, 3, 8]),
    )
    block = max(map(len, data.contents.values())) if data.classes else 32_000
    slot = -(-(block + SLOT_HEADER) // SLOT_PAGE) * SLOT_PAGE
    held = kept_max + 1  # plus the loop variable's batch
    enough = slot * ((held + 1) * options["batch_size"] + (0 if data.classes else options["shuffle_window_blocks"]))
    return {**options, "memory_budget": max(least_budget(options), enough)}


@pytest.mark.parametrize("seed", range(8))
def test_loop_may_keep_batches_within_its_budget(data: Any, seed: int) -> None:
    draw = random.Random(seed)
    kept_max = draw.randrange(4)
    kept = Kept(data.contents, seed, kept_max)
    with larder.Loader(**draw_options(draw, data, kept_max)) as loader:
        for _ in range(6):
            seen: list[tuple[str, bytes]] = []
            stops_early = draw.randrange(4) == 0
            for batch in loader:
                for sample in batch:
                    seen.append((sample.key, bytes(sample.bytes)))
                    kept.keep(sample, sample, batch)
                if stops_early and draw.randrange(8) == 0:
                    break
            else:
                expect_whole(seen, data.contents)


@pytest.mark.parametrize("persistent", [True, False], ids=["persistent", "new"])
@pytest.mark.parametrize("seed", range(4))
def test_workers_may_keep_batches_within_their_budget(data: Any, seed: int, persistent: bool) -> None:
    draw = random.Random(seed)
    kept_max = draw.randrange(1, 4)
    kept = Kept(data.contents, seed, kept_max)  # a copy in each worker
    dataset = larder.torch.IterableDataset(
        **draw_options(draw, data, kept_max), decode=kept.decode, collate=lambda samples: samples
    )
    with larder.torch.DataLoader(dataset, num_workers=2, persistent_workers=persistent) as loader:
        for _ in range(4):
            seen: list[tuple[str, bytes]] = []
            stops_after = draw.choice([1, 4, 1000, 1000])
            for count, batch in enumerate(loader, start=1):
                seen += batch
                if count == stops_after:
                    break
            else:
                expect_whole(seen, data.contents)


def test_budget_named_by_the_error_suffices_for_a_loop(data: Any) -> None:
    for batch_size in (1, 3, 16, 50):
        options = data.options(batch_size=batch_size)
        with larder.Loader(**{**options, "memory_budget": least_budget(options)}) as loader:
            for _ in range(3):
                expect_whole([(s.key, bytes(s.bytes)) for batch in loader for s in batch], data.contents)
