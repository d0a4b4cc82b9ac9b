"""`Mixture`: the batches of several datasets, mixed by weight, made in DataLoader workers."""

from __future__ import annotations

import base64
import copy
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import larder
from larder import _larder, options
from larder.decoder import Decoder
from larder.errors import InvalidArgument
from larder.loop_wait import LoopWait
from larder.mixture import of_dataset, shares_of
from larder.torch.iterable import IterableDataset


class Mixture(IterableDataset):
    """Yields whole batches of several datasets, mixed by weight: an `IterableDataset` for the same loaders.

        dataset = larder.torch.Mixture({"web": 0.7, "code": 0.3}, batch_size=256, decode=decode)
        loader = larder.torch.DataLoader(dataset, num_workers=4)

    Each batch holds the same number of samples of a dataset (`shares`), as a batch of `larder.Mixture`. Each dataset is
    read in an order of its own, epoch after epoch. Over all ranks and workers every sample comes at most once in an
    epoch of its dataset, and only those are left out that fill no whole share for every worker of every rank.

    An epoch of the mixture, which one pass walks, is `batches_per_epoch` batches. It begins where the one before ends:
    no pass starts a dataset anew. As with `IterableDataset`, a pass that was left early is not walked to its end by the
    next one.

    States are exact. They may be loaded with other numbers of ranks and workers, and with another batch size: the
    epochs of datasets may then end a few batches earlier or later. Datasets, seed and shuffle must be the same.

    Args:
        weights: Weight of each dataset, by the name given to `larder dataset add`. Any numbers above 0.
        batch_size: Samples in a batch, of all datasets together.
        batches_per_epoch: Batches of a rank in an epoch of the mixture. None: enough for every dataset to end an epoch.
        memory_budget: Bytes, or a size, of each worker for all datasets together, divided by their shares.
        decode: As with `IterableDataset`, or one for each dataset, by its name.
        job, seed, shuffle, shuffle_window_blocks, rank, world_size, skip_failed, deal, reconnect_timeout_s,
            first_epoch, socket, collate, decode_errors: As with `IterableDataset`.
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
        rank: int | None = None,
        world_size: int | None = None,
        skip_failed: bool = False,
        deal: str = "automatic",
        memory_budget: int | str | None = None,
        reconnect_timeout_s: float = 30,
        first_epoch: int = 0,
        socket: str | None = None,
        decode: Callable[[larder.Sample], Any] | Mapping[str, Callable[[larder.Sample], Any]] | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        decode_errors: str = "raise",
    ) -> None:
        batch_size = options.whole_number("batch_size", batch_size, 1)
        self.shares = shares_of(weights, batch_size)
        """The number of samples of each dataset in a batch."""
        super().__init__(
            ", ".join(self.shares),
            job=job,
            batch_size=batch_size,
            seed=seed,
            shuffle=shuffle,
            shuffle_window_blocks=shuffle_window_blocks,
            rank=rank,
            world_size=world_size,
            drop_last=True,
            skip_failed=skip_failed,
            deal=deal,
            memory_budget=memory_budget,
            reconnect_timeout_s=reconnect_timeout_s,
            first_epoch=first_epoch,
            socket=socket,
            collate=collate,
            decode_errors=decode_errors,
        )
        self._length = None
        if batches_per_epoch is not None:
            self._length = options.whole_number("batches_per_epoch", batches_per_epoch, 1)
        if decode is not None:
            skip_errors = options.skips_decode_errors(decode_errors)
            decoders = {name: Decoder(name, of_dataset(decode, name, "decode"), skip_errors) for name in self.shares}
            self._decoder = _Decoders(decoders)  # type: ignore[assignment]

    def _open(self, worker: int, worker_count: int, plan_only: bool) -> Any:
        rank, world_size = self._rank_and_world()
        budget = self._connection["memory_budget_bytes"]
        given = {**self._sampling, "rank": rank, "world_size": world_size, "first_epoch": 0}
        streams = {}
        for name, share in self.shares.items():
            connection = {**self._connection, "dataset": name}
            if budget > 0:
                connection["memory_budget_bytes"] = max(1, budget * share // self._sampling["batch_size"])
            sampling = {**given, "batch_size": share, "worker_count": worker_count}

            def open_loader(
                place: int, plan_only: bool, connection: Any = connection, sampling: Any = sampling
            ) -> _larder.Loader:
                return _larder.Loader(
                    **connection, **options.sampling(**sampling, worker=place), plan_only=plan_only
                )

            planner = open_loader(0, True)
            if planner.batches_per_epoch() < worker_count:
                raise InvalidArgument(
                    f'dataset "{name}" has {planner.sample_count()} samples, fewer than {share} for each of '
                    f"{worker_count} workers of {world_size} ranks: give a smaller batch_size or a smaller weight, or "
                    "use fewer workers"
                )
            streams[name] = _Stream(planner, open_loader, worker_count)
        layout = [worker_count, world_size, *self.shares.values()]
        walk = _Walk(streams, self._length, worker, worker_count, layout)
        walk.start_epoch(self._sampling["first_epoch"])
        return walk


class _Decoders:
    """The decoder of a mixture's batches: one for each dataset."""

    def __init__(self, decoders: dict[str, Decoder]) -> None:
        self._decoders = decoders

    def __copy__(self) -> _Decoders:
        return _Decoders({name: copy.copy(decoder) for name, decoder in self._decoders.items()})

    @property
    def errors(self) -> int:
        return sum(decoder.errors for decoder in self._decoders.values())

    def batch(self, batch: _MixedBatch) -> list[Any]:
        return [value for name, part in batch.parts.items() for value in self._decoders[name].batch(part)]


class _MixedBatch:
    def __init__(self, parts: dict[str, larder.Batch]) -> None:
        self.parts = parts

    def __iter__(self) -> Iterator[larder.Sample]:
        for part in self.parts.values():
            yield from part

    def release(self) -> None:
        for part in self.parts.values():
            part.release()


@dataclasses.dataclass(frozen=True)
class _Place:
    """A place in a dataset's epochs, in the order of one rank."""

    epoch: int | None
    """None: the epoch that the loaded state is in, whose batches count from that state."""
    taken: int
    """Batches taken of the epoch."""


class _Stream:
    """One dataset of a mixture, epoch after epoch.

    Batches are dealt to workers in turn. An epoch ends where every worker has as many of its batches, so all workers
    begin the next one together, and the number of batches that the loop has received tells the place of each dataset.
    """

    def __init__(
        self, planner: _larder.Loader, open_loader: Callable[[int, bool], _larder.Loader], worker_count: int
    ) -> None:
        self._planner = planner
        self._open_loader = open_loader
        self._reader: _larder.Loader | None = None
        self._reader_worker = -1
        self._ended: dict[str, Any] = {}  # the statistics of earlier readers
        self._wait: Any = None
        self._worker_count = worker_count
        self._whole = planner.batches_per_epoch()
        self._loaded = b""
        self._left = 0  # batches of the loaded state's epoch
        self._loaded_epoch = 0
        self._unread = 0  # batches of this worker up to the end of the epoch

    @property
    def whole(self) -> int:
        return self._whole

    def load(self, state: bytes) -> None:
        self._planner.restore(state)
        self._loaded, self._left, self._loaded_epoch = state, self._planner.batches_per_epoch(), self._planner.epoch()

    def check(self, state: bytes) -> None:
        """Raises an error if the state cannot be loaded."""
        self._planner.restore(state)

    def _in_turns(self, batches: int) -> int:
        return batches // self._worker_count * self._worker_count

    def unread_at(self, place: _Place) -> int:
        return self._in_turns((self._left if place.epoch is None else self._whole) - place.taken)

    def advance(self, place: _Place, batches: int) -> _Place:
        left = self.unread_at(place)
        if batches < left:
            return _Place(place.epoch, place.taken + batches)
        epochs, taken = divmod(batches - left, self._in_turns(self._whole))
        epoch = self._loaded_epoch if place.epoch is None else place.epoch
        return _Place(epoch + 1 + epochs, taken)

    def state_at(self, place: _Place) -> bytes:
        if place.epoch is None:
            self._planner.restore(self._loaded)
        else:
            self._planner.start_epoch(place.epoch)
        return self._planner.state_after(place.taken)

    def begin(self, place: _Place, worker: int) -> None:
        """Reads from a place on as a worker: batch 0 there is worker 0's."""
        if self._reader is None or self._reader_worker != worker:
            reader = self._open_loader(worker, False)
            reader.set_training_loop(self._wait)
            self._ended = self.statistics()
            self._reader, self._reader_worker = reader, worker
        self._reader.restore(self.state_at(place))
        self._unread = self.unread_at(place) // self._worker_count

    def next(self) -> larder.Batch:
        assert self._reader is not None
        if self._unread == 0:
            self._reader.start_epoch(self._reader.epoch() + 1)
            self._unread = self._whole // self._worker_count
        batch = self._reader.next()
        assert batch is not None, "a batch of the epoch is left"
        self._unread -= 1
        return batch

    @property
    def planner(self) -> _larder.Loader:
        return self._planner

    def set_training_loop(self, wait: Any) -> None:
        self._wait = wait
        if self._reader is not None:
            self._reader.set_training_loop(wait)

    def statistics(self) -> dict[str, Any]:
        return _sums([self._ended, {} if self._reader is None else self._reader.statistics()])


def _sums(each: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: sum(one.get(name, 0) for one in each) for name in {name: None for one in each for name in one}}


class _Walk:
    """Walks a mixture in epochs of `length` batches. Has the methods of the extension's Loader that loaders call.

    Batches are dealt to workers in turn from `_places` on, at the start of an epoch, or where a state was loaded. A
    state inside a turn also has the places where that turn began, and how many batches of the turn were taken. So
    workers of as many processes go on with the same turns.
    """

    def __init__(
        self, streams: dict[str, _Stream], length: int | None, worker: int, worker_count: int, layout: list[int]
    ) -> None:
        self._streams = streams
        self._length = length or max(stream.whole for stream in streams.values())
        self._worker = worker
        self._worker_count = worker_count
        self._layout = layout
        self._wait = LoopWait()
        self.set_training_loop(self._wait.words)
        self._parts: dict[str, larder.Batch] = {}  # of the next batch, as far as they have come
        self._begin(0, 0, self._first_places())

    def _first_places(self) -> dict[str, _Place]:
        return {name: _Place(0, 0) for name in self._streams}

    def _begin(self, epoch: int, taken: int, places: dict[str, _Place], of_turn: int = 0) -> None:
        self._epoch = epoch
        self._taken = taken  # batches of the epoch before this walk began
        self._places = places
        self._of_turn = of_turn  # batches between `_places` and where this walk began
        # In torch, worker 0 gives the first batch of a walk.
        self._turn_worker = (self._worker + of_turn) % self._worker_count
        self._next_batch = self._turn_worker  # of this worker; counted from `_places`
        self._is_reading = False
        self._parts = {}

    def _advanced(self, places: dict[str, _Place], batches: int) -> dict[str, _Place]:
        return {name: self._streams[name].advance(place, batches) for name, place in places.items()}

    def next(self) -> _MixedBatch | None:
        with self._wait.waiting():
            return self._next_of_epoch()

    def _next_of_epoch(self) -> _MixedBatch | None:
        if not self._is_reading:
            for name, stream in self._streams.items():
                stream.begin(self._places[name], self._turn_worker)
            self._is_reading = True
        if self._next_batch < self._of_turn:
            self._read().release()  # taken before the state was saved
        if self._next_batch - self._of_turn >= self.batches_per_epoch():
            self.start_epoch(self._epoch + 1)
            return None
        return self._read()

    def _read(self) -> _MixedBatch:
        for name, stream in self._streams.items():
            if name not in self._parts:
                self._parts[name] = stream.next()
        parts, self._parts = self._parts, {}
        self._next_batch += self._worker_count
        return _MixedBatch(parts)

    def start_epoch(self, epoch: int) -> None:
        """Begins an epoch. One before the current place is counted from the first epoch of every dataset."""
        if epoch > self._epoch:
            places = self._advanced(self._places, self._of_turn + self._length - self._taken)
            walked = self._epoch + 1
        elif epoch == self._epoch and self._taken == 0 and self._of_turn == 0:
            places, walked = self._places, epoch
        else:
            places, walked = self._first_places(), 0
        for _ in range(epoch - walked):
            places = self._advanced(places, self._length)
        self._begin(epoch, 0, places)

    def state(self) -> bytes:
        return self.state_after(0)

    def state_after(self, rank_batches: int) -> bytes:
        rank_batches = min(rank_batches, self.batches_per_epoch())
        batches = self._of_turn + rank_batches
        state: dict[str, Any] = {"epoch": self._epoch, "taken": self._taken + rank_batches}
        state["datasets"] = self._states_after(batches)
        if of_turn := batches % self._worker_count:
            began = self._states_after(batches - of_turn)
            state["turn"] = {"layout": self._layout, "taken": of_turn, "datasets": began}
        return json.dumps(state, separators=(",", ":")).encode()

    def _states_after(self, batches: int) -> dict[str, str]:
        places = self._advanced(self._places, batches)
        return {name: base64.b64encode(self._streams[name].state_at(place)).decode() for name, place in places.items()}

    def restore(self, state: bytes) -> None:
        try:
            held = json.loads(state)
            turn = held.get("turn")
            is_in_turn = turn is not None and turn["layout"] == self._layout
            of_turn = options.whole_number("taken", turn["taken"], 0, self._worker_count - 1) if is_in_turn else 0
            from_where = turn if is_in_turn else held
            states = {name: base64.b64decode(text, validate=True) for name, text in from_where["datasets"].items()}
            taken = options.whole_number("taken", held["taken"], 0, 2**63 - 1)
            epoch = options.whole_number("epoch", held["epoch"], 0, 2**63 - 1)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise InvalidArgument("the state is not one of a larder.torch.Mixture") from None
        if set(states) != set(self._streams):
            raise InvalidArgument(
                f"the state is of the datasets {', '.join(sorted(states))}; this mixture has "
                f"{', '.join(sorted(self._streams))}"
            )
        for name, stream in self._streams.items():
            stream.check(states[name])
        for name, stream in self._streams.items():
            stream.load(states[name])
        places = {name: _Place(None, 0) for name in self._streams}
        self._begin(epoch, min(taken, self._length), places, of_turn)

    def epoch(self) -> int:
        return self._epoch

    def batches_per_epoch(self) -> int:
        return self._length - self._taken

    def sample_count(self) -> int:
        return sum(stream.planner.sample_count() for stream in self._streams.values())

    def class_names(self) -> list[str]:
        names = [stream.planner.class_names() for stream in self._streams.values()]
        if any(other != names[0] for other in names):
            raise InvalidArgument("the datasets of the mixture have different classes")
        return names[0]

    def set_training_loop(self, wait: Any) -> None:
        for number, stream in enumerate(self._streams.values()):
            stream.set_training_loop(wait if number == 0 else None)

    def statistics(self) -> dict[str, Any]:
        sums = _sums([stream.statistics() for stream in self._streams.values()])
        return {**sums, "stall_s": self._wait.waited_ns / 1e9}
