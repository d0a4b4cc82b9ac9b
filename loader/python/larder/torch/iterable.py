"""`IterableDataset`: the batches of `larder.Loader`, made in DataLoader workers."""

from __future__ import annotations

import copy
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch.distributed
import torch.utils.data

import larder
from larder import _larder, options
from larder import state as job_state
from larder.closing import Closing
from larder.decoder import Decoder, collated, decoded_batch
from larder.errors import InvalidArgument
from larder.passes import Pass
from larder.statistics import Statistics
from larder.torch.collate import collate
from larder.torch.samples import copy_sample
from larder.torch.shared import WORKERS_MAX, Board


class IterableDataset(torch.utils.data.IterableDataset[Any], Closing):
    """Yields whole batches: for `larder.torch.DataLoader`, or with `batch_size=None` for torch's own `DataLoader` and
    torchdata's `StatefulDataLoader`.

    Each process that iterates opens a session of its own, after the fork. Torch tells the process its place among the
    DataLoader's workers. Rank and world size, if not given, come from torch.distributed if that is initialised.

    A batch is `collate([decode(sample), ...])`, made in the worker. `decode` gets a `larder.Sample` whose views are
    valid only during the call: decode or copy. Without `decode`, a sample becomes `copy_sample(sample)`, a dict with
    the bytes of each field, and a batch is a list of these dicts. With `decode`, the default of `collate` is
    `larder.torch.collate`. With `decode_batch`, a batch is `decode_batch(batch)`, called with a `larder.Batch`:
    `larder.parquet.Tables` makes a pyarrow.Table of it. All three must be picklable if workers are not forked. An error
    of `decode` names the sample, in workers too; `decode_errors="skip"` leaves failing samples out and counts them.

    Each pass, with any of the three loaders or without one, walks an epoch. The first pass begins where `set_epoch` or
    `load_state_dict` said; each later pass walks the whole next epoch. An older pass of this process cannot continue.

    The other arguments are those of `larder.Loader`; `memory_budget` is that of each worker.
    """

    def __init__(
        self,
        dataset: str,
        *,
        job: str | None = None,
        batch_size: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        shuffle_window_blocks: int = 16,
        rank: int | None = None,
        world_size: int | None = None,
        drop_last: bool = False,
        skip_failed: bool = False,
        deal: str = "automatic",
        memory_budget: int | str | None = None,
        reconnect_timeout_s: float = 30,
        first_epoch: int = 0,
        socket: str | None = None,
        decode: Callable[[larder.Sample], Any] | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        decode_batch: Callable[[larder.Batch], Any] | None = None,
        decode_errors: str = "raise",
    ) -> None:
        if (rank is None) != (world_size is None):
            raise InvalidArgument("give both rank and world_size, or neither")
        self._connection = options.connection(dataset, job, socket, memory_budget, reconnect_timeout_s)
        self._sampling: dict[str, Any] = dict(
            batch_size=batch_size,
            seed=seed,
            shuffle=shuffle,
            shuffle_window_blocks=shuffle_window_blocks,
            drop_last=drop_last,
            skip_failed=skip_failed,
            deal=deal,
            first_epoch=first_epoch,
        )
        self._ranks = None if rank is None or world_size is None else (rank, world_size)
        options.sampling(**self._sampling, rank=rank or 0, world_size=world_size or 1, worker=0, worker_count=1)
        skip_errors = options.skips_decode_errors(decode_errors)
        self._decoder = None if decode is None else Decoder(dataset, decode, skip_errors)
        self._collate = collate
        self._decode_batch = options.alone(
            decode_batch, skip_errors=skip_errors, decode=decode, collate=collate
        )
        self._board = Board()
        self._yields_empty = False
        self._core: _larder.Loader | None = None
        self._core_place: tuple[int, ...] = ()
        self._reported = Statistics()
        self._loaded: bytes | None = None  # in a worker: the state at which its next pass begins
        # The pass of this process:
        self._pass: weakref.ref[Pass] | None = None
        self._number = 0  # of the pass, since the beginning was set
        self._taken = 0
        self._began_at = self._ended_at = b""
        self._left_at = b""  # the state at close()
        self._undecoded: larder.Batch | None = None  # the next batch, until it is made

    # --- called by the main process

    def __len__(self) -> int:
        """This rank's batches, over all workers, in the pass begun last, or in the first pass if none has begun."""
        planner = self.planner(1)
        state = self._board.state
        if state and self._board.passes <= 1:
            planner.restore(state)
        return planner.batches_per_epoch()

    @property
    def sample_count(self) -> int:
        """Samples in the dataset."""
        return self.planner(1).sample_count()

    @property
    def class_names(self) -> list[str]:
        """Names of the classes; `sample.label` is an index into this list."""
        return self.planner(1).class_names()

    def set_epoch(self, epoch: int) -> None:
        """Makes the next pass walk this epoch from its start. Later passes walk the epochs after it."""
        planner = self.planner(1)
        planner.start_epoch(options.whole_number("epoch", epoch, 0, 2**63 - 1))
        self.beginning = planner.state()

    def state_dict(self) -> job_state.StateDict:
        """The position of the whole job when every rank has received as many batches as this process.

        Available if this process iterates itself, and before a pass begins. With workers of a DataLoader, the training
        loop has received fewer batches than they have made: use the exact `larder.torch.DataLoader.state_dict` or
        torchdata's `StatefulDataLoader.state_dict`. The latter stores the state of each worker, which only
        the worker of the same index among as many workers can load.

        Raises:
            RuntimeError: Workers have begun a pass.
        """
        info = torch.utils.data.get_worker_info()
        own_state = self._own_state()
        if info is None and not own_state and self._board.passes > 0:
            raise RuntimeError(
                "workers of a DataLoader have begun a pass, and are ahead of the training loop: "
                "use larder.torch.DataLoader or torchdata's StatefulDataLoader, whose state_dict() is exact"
            )
        state = job_state.to_dict(self.name, own_state or self._loaded or self.beginning or self.planner(1).state())
        if info is not None:
            state.update(worker=info.id, worker_count=info.num_workers)
        return state

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Makes the next pass resume from this state. The pass after it walks the whole next epoch."""
        decoded = job_state.to_bytes(state)
        info = torch.utils.data.get_worker_info()
        this_worker = {} if info is None else {"worker": info.id, "worker_count": info.num_workers}
        state_worker = {name: state[name] for name in ("worker", "worker_count") if name in state}
        if state_worker and state_worker != this_worker:
            raise InvalidArgument(
                f"the state belongs to worker {state_worker.get('worker')} of {state_worker.get('worker_count')}: "
                "only a StatefulDataLoader with as many workers can resume from it"
            )
        if info is None:
            self.planner(1).restore(decoded)
            self.beginning = decoded
        else:
            self._begin(None)
            self._loaded = decoded
            self._board.load_state(info.id, info.num_workers, decoded)

    def statistics(self) -> Statistics:
        """Running totals of all workers. `stall_s` is the wait of the workers, not of the training loop."""
        return self._board.total()

    def close(self) -> None:
        """Ends this process's pass and session; the next pass opens another. Workers' sessions end with the workers."""
        left_at = self._own_state()
        self._begin(None)
        self._core = None
        self._left_at = left_at

    def planner(self, worker_count: int) -> _larder.Loader:
        """A loader of this rank's order, without a session."""
        return self._open(worker=0, worker_count=worker_count, plan_only=True)

    # --- called by DataLoader

    def detached(self) -> IterableDataset:
        """A copy that shares nothing with this dataset, for a loader that counts every batch, even empty ones."""
        other = copy.copy(self)
        other._ranks = self._ranks
        other._board = Board()
        other._board.state = self._board.state
        other._decoder = copy.copy(self._decoder)
        other._yields_empty = True
        other._begin(None)
        return other

    def begin_wait(self, now_ns: int) -> None:
        """The training loop waits for a batch from `now_ns` (`time.monotonic_ns()`) on. The daemon will be told."""
        self._board.begin_wait(now_ns)

    def end_wait(self, waited_ns: int) -> None:
        """The training loop has its batch, and has waited `waited_ns` in all."""
        self._board.end_wait(waited_ns)

    @property
    def name(self) -> str:
        return str(self._connection["dataset"])

    @property
    def beginning(self) -> bytes:
        """The state from which the first pass from now resumes; empty: the start of the first epoch."""
        return self._board.state

    @beginning.setter
    def beginning(self, state: bytes) -> None:
        self._board.state = state
        self._begin(None)

    # --- in the process that iterates

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        worker, worker_count = (0, 1) if info is None else (info.id, info.num_workers)
        core = self._session(worker, worker_count)
        state, self._loaded = self._loaded, None
        if info is None:
            number = self._board.passes
        else:
            # Torch gives the same seed to the workers of one pass, and only to them.
            number = self._board.begin_pass(worker, info.seed - info.id, None if state is None else 0)
        state = state or self._board.state
        if state:
            core.restore(state)
        else:
            core.start_epoch(self._sampling["first_epoch"])
        if number > 0:
            core.start_epoch(core.epoch() + number)
        iterator = Pass(self)
        self._begin(iterator)
        self._number = number
        self._began_at = core.state()
        return iterator

    def _begin(self, iterator: Pass | None) -> None:
        self._pass = None if iterator is None else weakref.ref(iterator)
        self._taken = 0
        self._ended_at = b""
        self._left_at = b""
        self._undecoded = None

    def _is_current(self, iterator: Pass) -> bool:
        return self._pass is not None and self._pass() is iterator

    def _next(self, iterator: Pass) -> Any:
        result = self._next_batch()
        while result is None and not self._yields_empty:
            result = self._next_batch()
        return result

    def _next_batch(self) -> Any:
        """The next batch; None if all its samples were left out."""
        core, (_, worker, worker_count, *_) = self._core, self._core_place
        assert core is not None, "without a session no pass is current"
        in_worker = torch.utils.data.get_worker_info() is not None
        if self._undecoded is None:
            if in_worker:
                # The loop's first worker tells the daemon. Without larder's DataLoader nobody knows the waits.
                core.set_training_loop(self._board.wait if worker == 0 and self._board.wait_is_known else None)
            self._undecoded = core.next()
            self._report(worker, core)
        result = None if self._undecoded is None else self._make_batch(self._undecoded)
        if not in_worker and self._taken == 0:
            self._board.begin_pass(0, 0, self._number)  # the pass counts from here on
        if self._undecoded is None:
            if in_worker:
                # A state of the next epoch would not show that this pass has begun.
                core.restore(self._began_at)
                self._ended_at = core.state_after(self._taken * worker_count)
            self._taken = 0
            raise StopIteration
        self._undecoded.release()
        self._undecoded = None
        self._taken += 1
        self._report(worker, core)
        return result

    def _make_batch(self, batch: larder.Batch) -> Any:
        if self._decode_batch is not None:
            return decoded_batch(self._decode_batch, batch) if len(batch) > 0 else None
        errors = self._decode_errors()
        samples = [copy_sample(sample) for sample in batch] if self._decoder is None else self._decoder.batch(batch)
        if len(samples) == 0:
            return None
        try:
            if self._collate is None:
                return samples if self._decoder is None else collate(samples)
            return collated(self._collate, samples)
        except BaseException:
            if self._decoder is not None:
                self._decoder.errors = errors  # the batch comes again
            raise

    def _own_state(self) -> bytes:
        """The state of this process's pass, or at its close; empty if the newest pass is another process's."""
        if torch.utils.data.get_worker_info() is not None:
            if self._pass is None or self._core_place[0] != os.getpid():
                return b""  # the pass belongs to the process that forked this one
        elif self._board.passes > self._number + 1:
            return b""  # workers have begun a pass since
        if self._core is None:
            return self._left_at
        if self._pass is None:
            return b""
        return self._ended_at or self._core.state_after(self._taken * self._core_place[2])

    def _session(self, worker: int, worker_count: int) -> _larder.Loader:
        place = (os.getpid(), worker, worker_count, *self._rank_and_world())
        if self._core is None or self._core_place != place:
            if worker >= WORKERS_MAX:
                raise InvalidArgument(f"num_workers is {worker_count}; it must be at most {WORKERS_MAX}")
            self._core = self._open(worker=worker, worker_count=worker_count, plan_only=False)
            self._core_place = place
            self._reported = Statistics(decode_errors=self._decode_errors())
        return self._core

    def _decode_errors(self) -> int:
        return 0 if self._decoder is None else self._decoder.errors

    def _report(self, worker: int, core: _larder.Loader) -> None:
        now = Statistics(**core.statistics(), decode_errors=self._decode_errors())
        if now != self._reported:
            self._board.add(worker, now - self._reported)
            self._reported = now

    def _rank_and_world(self) -> tuple[int, int]:
        if self._ranks is not None:
            return self._ranks
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_rank(), torch.distributed.get_world_size()
        return 0, 1

    def _open(self, worker: int, worker_count: int, plan_only: bool) -> _larder.Loader:
        rank, world_size = self._rank_and_world()
        sampling = options.sampling(
            **self._sampling, rank=rank, world_size=world_size, worker=worker, worker_count=worker_count
        )
        return _larder.Loader(**self._connection, **sampling, plan_only=plan_only)

    def __getstate__(self) -> dict[str, Any]:
        # A worker that is not forked has no torch.distributed, so it gets the present rank.
        reset = dict(_core=None, _core_place=(), _pass=None, _undecoded=None, _left_at=b"", _reported=Statistics())
        return {**self.__dict__, **reset, "_ranks": self._rank_and_world()}
