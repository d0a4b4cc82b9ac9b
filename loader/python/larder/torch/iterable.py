"""`IterableDataset`: the batches of `larder.Loader`, made in DataLoader workers."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch.distributed
import torch.utils.data

import larder
from larder import _larder, options
from larder import state as job_state
from larder.closing import Closing
from larder.errors import InvalidArgument
from larder.statistics import Statistics
from larder.torch.samples import copy_sample
from larder.torch.shared import WORKERS_MAX, Board


class IterableDataset(torch.utils.data.IterableDataset[Any], Closing):
    """Yields whole batches: give it to `larder.torch.DataLoader`, or to torch's own with `batch_size=None`.

    Each process that iterates opens a session of its own, after the fork. Its place among the DataLoader's workers is
    taken from torch, and rank and world size, if not given, from torch.distributed where that is initialised.

    A batch is `collate([decode(sample), ...])`, made in the worker. `decode` gets a `larder.Sample` whose views are
    there for the call: decode or copy. Without `decode`, a sample becomes `copy_sample(sample)`, a dict with the bytes
    of each field, and a batch is a list of those. `collate` is, unless given, torch's default_collate for what
    `decode` returns. Both must be picklable where workers are not forked.

    With torch's own DataLoader each pass begins where `set_epoch` or `load_state_dict` said: call `set_epoch` before
    each pass, as with torch's DistributedSampler. `larder.torch.DataLoader` does that itself.

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
    ) -> None:
        if (rank is None) != (world_size is None):
            raise InvalidArgument("rank and world_size are given together, or neither")
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
        self._decode = decode
        self._collate = collate
        self._board = Board()
        self._keep_empty = False
        self._core: _larder.Loader | None = None
        self._core_place: tuple[int, ...] = ()
        self._iterates = False  # since the beginning was set, in this process
        self._samples_at_beginning = 0
        self._reported = Statistics()

    # --- what the main process asks

    def __len__(self) -> int:
        """This rank's batches in a pass, over all workers."""
        planner = self.planner(1)
        state = self._board.state
        if state:
            planner.restore(state)
        return planner.batches_per_epoch()

    @property
    def sample_count(self) -> int:
        """Samples in the dataset."""
        return self.planner(1).sample_count()

    @property
    def class_names(self) -> list[str]:
        """Names of the classes; `sample.label` is a place in this list."""
        return self.planner(1).class_names()

    def set_epoch(self, epoch: int) -> None:
        """The next pass walks this epoch, from its start."""
        planner = self.planner(1)
        planner.start_epoch(options.whole("epoch", epoch, 0, 2**63 - 1))
        self.beginning = planner.state()

    def state_dict(self) -> job_state.StateDict:
        """Where the whole job stands, when every rank has received as many batches as this process has.

        Known where this process iterates itself, and before a pass begins. What workers of a DataLoader have made and
        what the training loop has received of it differ: `larder.torch.DataLoader.state_dict` knows.

        Raises:
            RuntimeError: Workers have begun a pass.
        """
        if self._iterates and self._core is not None:
            return job_state.to_dict(self.name, self._core.state())
        if self._board.total().samples > self._samples_at_beginning:
            raise RuntimeError(
                "workers of a DataLoader have begun a pass, and are ahead of the training loop: "
                "use larder.torch.DataLoader, whose state_dict() is exact"
            )
        return job_state.to_dict(self.name, self.beginning or self.planner(1).state())

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """The next pass goes on from here. A pass that has ended does not move this on: see `set_epoch`."""
        decoded = job_state.to_bytes(state)
        self.planner(1).restore(decoded)
        self.beginning = decoded

    def statistics(self) -> Statistics:
        """Running totals of all workers; `stall_s` is how long workers waited, not the training loop."""
        return self._board.total()

    def close(self) -> None:
        """Ends this process's session; the next pass opens another. Workers' sessions end with the workers."""
        self._core = None

    def planner(self, worker_count: int) -> _larder.Loader:
        """A loader of this rank's order, without a session."""
        return self._open(worker=0, worker_count=worker_count, plan_only=True)

    # --- what DataLoader asks

    def detached(self) -> IterableDataset:
        """A copy that shares nothing with this one, for a loader that counts every batch, also empty ones."""
        other = copy.copy(self)
        other._ranks = self._ranks
        other._board = Board()
        other._board.state = self._board.state
        other._keep_empty = True
        other._iterates = False
        other._samples_at_beginning = 0
        other._reported = Statistics()
        return other

    def begin_wait(self, now_ns: int) -> None:
        """The training loop waits for a batch since `now_ns` (`time.monotonic_ns()`): the daemon is told."""
        self._board.begin_wait(now_ns)

    def end_wait(self, waited_ns: int) -> None:
        """The training loop has its batch, and has now waited `waited_ns` in all."""
        self._board.end_wait(waited_ns)

    @property
    def name(self) -> str:
        return str(self._connection["dataset"])

    @property
    def beginning(self) -> bytes:
        """The state the next pass goes on from; empty: the start of the first epoch."""
        return self._board.state

    @beginning.setter
    def beginning(self, state: bytes) -> None:
        self._board.state = state
        self._iterates = False
        self._samples_at_beginning = self._board.total().samples

    # --- what happens in the worker

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        worker, worker_count = (0, 1) if info is None else (info.id, info.num_workers)
        core = self._session(worker, worker_count)
        self._iterates = info is None
        state = self._board.state
        if state:
            core.restore(state)
        else:
            core.start_epoch(self._sampling["first_epoch"])
        while True:
            if info is not None:
                # Of all the loop's workers the first tells the daemon; without a larder DataLoader nobody knows.
                core.set_training_loop(self._board.wait if worker == 0 and self._board.wait_is_known else None)
            batch = core.next()
            self._report(worker, core)
            if batch is None:
                return
            with batch:
                if len(batch) == 0:
                    made = None  # all its samples were skipped
                elif self._decode is not None:
                    made = (self._collate or torch.utils.data.default_collate)([self._decode(s) for s in batch])
                else:
                    copies = [copy_sample(sample) for sample in batch]
                    made = copies if self._collate is None else self._collate(copies)
            if made is not None or self._keep_empty:
                yield made

    def _session(self, worker: int, worker_count: int) -> _larder.Loader:
        place = (os.getpid(), worker, worker_count, *self._rank_and_world())
        if self._core is None or self._core_place != place:
            if worker >= WORKERS_MAX:
                raise InvalidArgument(f"num_workers is {worker_count}; at most {WORKERS_MAX} are possible")
            self._core = self._open(worker=worker, worker_count=worker_count, plan_only=False)
            self._core_place = place
            self._reported = Statistics()
        return self._core

    def _report(self, worker: int, core: _larder.Loader) -> None:
        now = Statistics(**core.statistics())
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
        # A worker that is not forked knows no torch.distributed: it gets the rank as it is now.
        return {**self.__dict__, "_core": None, "_core_place": (), "_ranks": self._rank_and_world()}
