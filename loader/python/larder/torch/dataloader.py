"""`DataLoader`: torch's own, plus epochs, an exact state, and the training loop's waiting time."""

from __future__ import annotations

import contextlib
import dataclasses
import time
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch.utils.data

from larder import _larder, options
from larder import state as job_state
from larder.closing import Closing
from larder.errors import InvalidArgument
from larder.passes import Pass
from larder.statistics import Statistics
from larder.torch.iterable import IterableDataset


class _WorkersPass(Pass):
    """A pass that goes, and ends its workers, with the loop that walks it."""

    batches: Iterator[Any] | None = None  # torch's


class DataLoader(torch.utils.data.DataLoader[Any], Closing):
    """torch.utils.data.DataLoader over an `IterableDataset` of this module.

    Each `for` loop, and each `iter(loader)`, is a pass: the first walks the first epoch, or what is left of it after
    `load_state_dict`; each later one walks the next epoch, whole, also when a loop was left early (`break`). A pass
    from which no batch was taken does not count. To go on with a loop that was left, keep its iterator or its state.

    The loader counts the batches that it hands out, so `state_dict()` is exact at any moment, however far workers are
    ahead, and may be loaded with another number of workers or ranks. An iterator that has ended stays at its end; one
    that has not raises RuntimeError as soon as another pass began. After any other error it may be asked again: workers
    start anew at the batch that failed.

    Args:
        dataset: What to load. The loader works on a copy, so that several loaders may be made of one.
        num_workers: Processes that load and decode; 0: this one. They may be `persistent_workers`.
        **arguments: torch's; batch size, sampling, collating and `drop_last` are the dataset's.
    """

    def __init__(self, dataset: IterableDataset, *, num_workers: int = 0, **arguments: Any) -> None:
        if not isinstance(dataset, IterableDataset):
            raise InvalidArgument(
                f"dataset is {dataset!r}; it must be a larder.torch.IterableDataset (torch's DataLoader takes others)"
            )
        for name in ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "collate_fn"):
            if arguments.pop(name, None) is not None:
                raise InvalidArgument(f"{name} is the dataset's: see larder.torch.IterableDataset")
        super().__init__(dataset.detached(), batch_size=None, num_workers=num_workers, **arguments)
        self._position: _larder.Loader | None = None
        self._received = 0  # batches since `_position` began
        self._pass: weakref.ref[_WorkersPass] | None = None
        self._stall_ns = 0
        self.dataset.end_wait(0)

    dataset: IterableDataset

    def _planner(self) -> _larder.Loader:
        if self._position is None:
            dataset = self.dataset
            self._position = dataset.planner(max(1, self.num_workers))
            if state := dataset.beginning:
                self._position.restore(state)
        return self._position

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        planner = self._planner()
        if self._received > 0:
            planner.start_epoch(planner.epoch() + 1)
        self._end_pass()
        self._received = 0
        walk = _WorkersPass(self)
        self._open_batches(walk)
        self._pass = weakref.ref(walk)
        return walk

    def _end_pass(self) -> None:
        if self._pass is not None and (walk := self._pass()) is not None:
            walk.batches = None
        self._pass = None

    def _is_current(self, walk: Pass) -> bool:
        return self._pass is not None and self._pass() is walk

    def _open_batches(self, walk: _WorkersPass) -> None:
        self.dataset.beginning = self._planner().state_after(self._received)
        with self._waiting():  # workers start, or end what they loaded ahead
            walk.batches = super().__iter__()

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        """The training loop has to wait for what the block does: it counts in `stall_s`, and the daemon is told."""
        began_ns = time.monotonic_ns()
        self.dataset.begin_wait(began_ns)
        try:
            yield
        finally:
            self._stall_ns += time.monotonic_ns() - began_ns
            self.dataset.end_wait(self._stall_ns)

    def _next(self, walk: _WorkersPass) -> Any:
        batch = self._next_batch(walk)
        while batch is None:  # all its samples were left out
            batch = self._next_batch(walk)
        return batch

    def _next_batch(self, walk: _WorkersPass) -> Any:
        if walk.batches is None:  # an error came: the batch it came for is asked for again
            self._open_batches(walk)
        assert walk.batches is not None
        try:
            with self._waiting():
                batch = next(walk.batches)
        except StopIteration:
            planner = self._planner()
            planner.start_epoch(planner.epoch() + 1)
            self._received = 0
            walk.batches = None
            raise
        except Exception as error:
            # Workers are ahead by other batches than the one that failed, or dead.
            walk.batches = self._iterator = None
            if self.num_workers == 0:
                raise
            # Torch re-raises a worker's exception in a cycle with its traceback. Whatever hangs on that would be
            # freed by the garbage collector only, which makes torch wait 5 s for each worker. The worker's own
            # traceback is in the message.
            raise error.with_traceback(None)
        self._received += 1
        return batch

    def __len__(self) -> int:
        """This rank's batches in the pass: of a whole epoch, or of what the loaded state left."""
        return self._planner().batches_per_epoch()

    @property
    def epoch(self) -> int:
        """The epoch of the pass that is under way or was left, and once one has ended, of the next."""
        return self._planner().epoch()

    @property
    def stall_s(self) -> float:
        """Seconds the training loop has waited in all for its next batch."""
        return self._stall_ns / 1e9

    def start_epoch(self, epoch: int) -> None:
        """Ends the pass that is under way; the next one walks this epoch, from its start."""
        self._planner().start_epoch(options.whole("epoch", epoch, 0, 2**63 - 1))
        self._end_pass()
        self._received = 0

    def state_dict(self) -> job_state.StateDict:
        """Where the whole job stands, when every rank has received as many batches as this one. JSON-able, small."""
        return job_state.to_dict(self.dataset.name, self._planner().state_after(self._received))

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Ends the pass that is under way. The next one goes on from this state, and then the next epoch follows."""
        self._planner().restore(job_state.to_bytes(state))
        self._end_pass()
        self._received = 0

    def close(self) -> None:
        """Ends the pass that is under way, the workers and their sessions. The next pass starts them again."""
        self._end_pass()
        self._iterator = None  # torch's, of workers that are persistent
        self.dataset.close()

    def statistics(self) -> Statistics:
        """Running totals of all workers, also of what they loaded ahead; `stall_s` is what the training loop saw."""
        return dataclasses.replace(self.dataset.statistics(), stall_s=self.stall_s)
