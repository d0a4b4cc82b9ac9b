"""`Mixture`: one loop over several datasets, mixed by weight."""

from __future__ import annotations

import dataclasses
import math
import numbers
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypedDict

from larder import _larder, options
from larder import state as job_state
from larder.closing import Closing
from larder.decoder import Decoder, collated
from larder.errors import InvalidArgument
from larder.loader import Loader
from larder.loop_wait import LoopWait
from larder.passes import Pass
from larder.statistics import Statistics


class MixtureState(TypedDict):
    datasets: dict[str, job_state.StateDict]
    """The state of each dataset's loader."""
    taken: int
    """Batches taken in the pass."""
    epoch: int
    """The number of the pass."""


# Sums and quotients of such weights are finite, also as numbers of four bytes.
WEIGHT_LEAST, WEIGHT_MOST = 1e-30, 1e30


def shares_of(weights: Mapping[str, float], batch_size: int) -> dict[str, int]:
    """Divides a batch by weight: whole samples, those with the largest remainders rounded up."""
    if not isinstance(weights, Mapping):
        raise InvalidArgument(f"weights is {weights!r}; it must be a dict from names of datasets to weights")
    if not weights:
        raise InvalidArgument("a mixture needs at least one dataset")
    for name, weight in weights.items():
        if not isinstance(weight, numbers.Real) or not WEIGHT_LEAST <= weight <= WEIGHT_MOST:
            raise InvalidArgument(
                f'the weight of dataset "{name}" is {weight!r}; '
                f"it must be a number from {WEIGHT_LEAST} to {WEIGHT_MOST}"
            )
    weights = {name: float(weight) for name, weight in weights.items()}
    whole = sum(weights.values())
    exact = {name: batch_size * weight / whole for name, weight in weights.items()}
    shares = {name: int(share) for name, share in exact.items()}
    by_remainder = sorted(weights, key=lambda name: shares[name] - exact[name])
    for name in by_remainder[: batch_size - sum(shares.values())]:
        shares[name] += 1
    for name, share in shares.items():
        if share == 0:
            least = math.ceil(whole / weights[name])
            raise InvalidArgument(
                f'dataset "{name}" has no sample in a batch of {batch_size}: '
                f"its weight is {weights[name]:g} of {whole:g}. Give a batch_size of about {least}, or a larger weight"
            )
    return shares


class Mixture(Closing):
    """Iterates over several datasets at once, in batches that hold samples of each in proportion to its weight.

        with larder.Mixture({"web": 0.7, "code": 0.3}, batch_size=256, decode=decode, collate=collate) as mixture:
            for batch in mixture: ...        # 179 samples of web, then 77 of code

    Each batch holds the same number of samples of a dataset (`shares`): weights are rounded to whole samples of a
    batch. Each dataset is read in an order of its own, as by a `Loader` with `drop_last`: over all ranks every sample
    comes at most once in an epoch of its dataset, and only those are left out that fill no whole share on every rank. A
    dataset whose epoch has ended begins the next one at once. So small datasets of large weight are read more often.

    A batch is a list of `Sample`s; see `Loader` for `decode`, `transform` and `collate`, which run in the thread that
    iterates. `decode` and `transform` may be given for each dataset, by its name.

    Each `for` loop, and each `iter(mixture)`, is a pass of `batches_per_epoch` batches. It begins where the batches
    taken before have ended: no pass starts a dataset anew, and a loop that is left early skips no sample. The rest is
    as with `Loader`: a pass cannot continue once another has begun, and after an error the same iterator may be used
    again.

    `state_dict` holds the exact position in every dataset. It may be restored on another number of ranks and with
    another batch size, but not with other datasets.

    Args:
        weights: Weight of each dataset, by the name given to `larder dataset add`. Any numbers above 0.
        batch_size: Samples in a batch, of all datasets together.
        batches_per_epoch: Batches of this rank in a pass. None: enough for every dataset to end an epoch.
        memory_budget: Bytes, or a size, for all datasets together, divided by their shares. None: as with `Loader`, for
            each.
        job, seed, shuffle, shuffle_window_blocks, rank, world_size, skip_failed, deal, reconnect_timeout_s, socket,
            decode_errors: As with `Loader`.
    """

    def __init__(
        self,
        weights: Mapping[str, float],
        *,
        batch_size: int,
        batches_per_epoch: int | None = None,
        job: str | None = None,
        seed: int = 0,
        shuffle: bool = True,
        shuffle_window_blocks: int = 16,
        rank: int = 0,
        world_size: int = 1,
        skip_failed: bool = False,
        deal: str = "automatic",
        memory_budget: int | str | None = None,
        reconnect_timeout_s: float = 30,
        socket: str | None = None,
        decode: Callable[[_larder.Sample], Any] | Mapping[str, Callable[[_larder.Sample], Any]] | None = None,
        transform: Callable[[Any], Any] | Mapping[str, Callable[[Any], Any]] | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        decode_errors: str = "raise",
    ) -> None:
        batch_size = options.whole_number("batch_size", batch_size, 1)
        self.shares = shares_of(weights, batch_size)
        """The number of samples of each dataset in a batch."""
        skip_errors = options.skips_decode_errors(decode_errors)
        budget = None if memory_budget is None else options.size_bytes("memory_budget", memory_budget)
        self._decoders = {
            name: Decoder(
                name, of_dataset(decode, name, "decode"), skip_errors, of_dataset(transform, name, "transform")
            )
            for name in self.shares
        }
        self._is_plain = decode is None and transform is None
        self._collate = collate
        self._wait = LoopWait()
        self._loaders: dict[str, Loader] = {}
        self._streams: dict[str, Iterator[Any]] = {}
        try:
            for name, share in self.shares.items():
                try:
                    self._loaders[name] = Loader(
                        name,
                        job=job,
                        batch_size=share,
                        seed=seed,
                        shuffle=shuffle,
                        shuffle_window_blocks=shuffle_window_blocks,
                        rank=rank,
                        world_size=world_size,
                        drop_last=True,
                        skip_failed=skip_failed,
                        deal=deal,
                        memory_budget=None if budget is None else max(1, budget * share // batch_size),
                        reconnect_timeout_s=reconnect_timeout_s,
                        socket=socket,
                    )
                except InvalidArgument as error:
                    if budget is None or "memory budget" not in str(error):
                        raise
                    raise InvalidArgument(
                        f'dataset "{name}" gets {share} of {batch_size} parts of memory_budget, its share of a batch: '
                        f"{error}"
                    ) from None
                is_first = len(self._loaders) == 1
                self._loaders[name].set_training_loop(self._wait.words if is_first else None)
                if len(self._loaders[name]) == 0:
                    raise InvalidArgument(
                        f'dataset "{name}" has {self._loaders[name].sample_count} samples, fewer than {share} for each '
                        f"of {world_size} ranks: give a smaller batch_size or a smaller weight"
                    )
        except BaseException:
            self.close()
            raise
        if batches_per_epoch is None:
            self._length = max(len(loader) for loader in self._loaders.values())
        else:
            self._length = options.whole_number("batches_per_epoch", batches_per_epoch, 1)
        self._pass: weakref.ref[Pass] | None = None
        self._epoch = 0
        self._taken = 0  # batches of the pass
        self._began_at = 0  # batches of the pass that were taken before the loaded state
        self._counts = False  # the pass has given a batch, or has ended: the next one has the next number
        self._parts: dict[str, _larder.Batch] = {}  # of the next batch, as far as they have come

    def __iter__(self) -> Iterator[Any]:
        self._check_open()
        if self._counts:
            self._epoch += 1
            self._taken = self._began_at = 0
            self._counts = False
        iterator = Pass(self)
        self._pass = weakref.ref(iterator)
        return iterator

    def _check_open(self) -> None:
        if not self._loaders:
            raise ValueError("the mixture is closed")

    def _is_current(self, iterator: Pass) -> bool:
        self._check_open()
        return self._pass is not None and self._pass() is iterator

    def _next(self, iterator: Pass) -> Any:
        made = self._next_batch()
        while made is None:
            made = self._next_batch()
        return made[0]

    def _next_batch(self) -> tuple[Any] | None:
        """The next batch; None if `collate` would get none of its samples."""
        if self._taken >= self._length:
            self._counts = True
            raise StopIteration
        with self._wait.waiting():
            for name in self.shares:
                if name not in self._parts:
                    self._parts[name] = self._next_part(name)
        errors = {name: decoder.errors for name, decoder in self._decoders.items()}
        try:
            batch: Any = []
            for name, part in self._parts.items():
                batch += part if self._is_plain else self._decoders[name].batch(part)
            is_left_out = self._collate is not None and len(batch) == 0
            if self._collate is not None and not is_left_out:
                batch = collated(self._collate, batch)
        except BaseException:
            for name, decoder in self._decoders.items():
                decoder.errors = errors[name]  # the batch comes again
            raise
        parts, self._parts = self._parts, {}
        self._taken += 1
        self._counts = True
        if not self._is_plain or self._collate is not None:
            for part in parts.values():
                part.release()
        return None if is_left_out else (batch,)

    def _next_part(self, name: str) -> _larder.Batch:
        loader = self._loaders[name]
        while True:
            if name not in self._streams:
                self._streams[name] = iter(loader)
            try:
                part: _larder.Batch = next(self._streams[name])
                return part
            except StopIteration:
                del self._streams[name]

    def __len__(self) -> int:
        """The number of this rank's batches in the pass: of a whole one, or left by a state."""
        self._check_open()
        return self._length - self._began_at

    @property
    def epoch(self) -> int:
        """The number of the current pass."""
        return self._epoch

    @property
    def epochs(self) -> dict[str, int]:
        """The epoch in which each dataset is."""
        self._check_open()
        return {name: loader.epoch for name, loader in self._loaders.items()}

    def state_dict(self) -> MixtureState:
        """The whole job's position when every rank has taken as many batches as this one. Small, fit for JSON."""
        self._check_open()
        datasets = {
            # A part of a batch that is not whole yet does not count.
            name: loader._state_after(loader._taken - (name in self._parts))
            for name, loader in self._loaders.items()
        }
        return {"datasets": datasets, "taken": self._taken, "epoch": self._epoch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Ends the current pass. The next one is the rest of the pass in which the state was taken.

        The state may come from any number of ranks. Datasets, seed and shuffle must be the same.
        """
        self._check_open()
        try:
            datasets, taken, epoch = dict(state["datasets"]), state["taken"], state["epoch"]
        except (KeyError, TypeError, ValueError):
            raise InvalidArgument(f"{state!r} is not a state from Mixture.state_dict()") from None
        taken = options.whole_number("taken", taken, 0, 2**63 - 1)
        epoch = options.whole_number("epoch", epoch, 0, 2**63 - 1)
        if set(datasets) != set(self._loaders):
            raise InvalidArgument(
                f"the state is of the datasets {', '.join(sorted(datasets))}; this mixture has "
                f"{', '.join(sorted(self._loaders))}"
            )
        before = self.state_dict()["datasets"]
        try:
            for name, loader in self._loaders.items():
                loader.load_state_dict(datasets[name])
        except BaseException:
            for name, loader in self._loaders.items():
                loader.load_state_dict(before[name])
            raise
        finally:
            self._parts = {}
            self._streams = {}
            self._pass = None
        self._taken = self._began_at = min(taken, self._length)
        self._epoch = epoch
        self._counts = False

    def statistics(self) -> Statistics:
        """Running totals of all datasets since the mixture was opened."""
        self._check_open()
        total = Statistics(decode_errors=sum(decoder.errors for decoder in self._decoders.values()))
        for loader in self._loaders.values():
            total += loader.statistics()
        return dataclasses.replace(total, stall_s=self._wait.waited_ns / 1e9)

    def close(self) -> None:
        """Ends the sessions. Samples that are held stay valid."""
        for loader in self._loaders.values():
            loader.close()
        self._loaders = {}
        self._streams = {}
        self._parts = {}
        self._pass = None


def of_dataset(given: Any, name: str, what: str) -> Any:
    """The function for a dataset, of one for all or of one for each."""
    if not isinstance(given, Mapping):
        return given
    if name not in given:
        raise InvalidArgument(f'{what} has no function for dataset "{name}"')
    return given[name]
