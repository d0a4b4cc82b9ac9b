"""`DataLoader`: torch's own, plus epochs, an exact state, and the time that the training loop waits."""

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
    """A pass whose workers end when the loop that walks the pass drops it."""

    batches: Iterator[Any] | None = None  # torch's iterator


class DataLoader(torch.utils.data.DataLoader[Any], Closing):
    """torch.utils.data.DataLoader over an `IterableDataset` of this module.

    Each `for` loop, and each `iter(loader)`, is a pass. The first pass walks the first epoch, or what is left of it
    after `load_state_dict`. Each later pass walks the whole next epoch, even if the loop before was left early
    (`break`). A pass from which no batch was taken does not count. To resume a loop that was left, keep its iterator or
    its state.

    The loader counts the batches that it hands out, so `state_dict()` is exact at any moment, however far ahead workers
    are. The state may be loaded with another number of workers or ranks. An iterator that has ended stays at its end.
    One that has not ended raises RuntimeError once another pass has begun. After any other error the iterator may be
    used again: workers restart at the batch that failed.

    Args:
        dataset: The dataset to load. The loader works on a copy, so one dataset may serve several loaders.
        num_workers: Processes that load and decode; 0: this one. They may be `persistent_workers`.
        **arguments: torch's other arguments. The dataset sets batch size, sampling, collating and `drop_last`.
    """

    def __init__(self, dataset: IterableDataset, *, num_workers: int = 0, **arguments: Any) -> None:
        if not isinstance(dataset, IterableDataset):
            raise InvalidArgument(
                f"dataset is {dataset!r}; it must be a larder.torch.IterableDataset (torch's DataLoader takes others)"
            )
        for name in ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "collate_fn"):
            if arguments.pop(name, None) is not None:
                raise InvalidArgument(f"{name} is set by the dataset: see larder.torch.IterableDataset")
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
        iterator = _WorkersPass(self)
        self._open_batches(iterator)
        self._pass = weakref.ref(iterator)
        return iterator

    def _end_pass(self) -> None:
        if self._pass is not None and (iterator := self._pass()) is not None:
            iterator.batches = None
        self._pass = None

    def _is_current(self, iterator: Pass) -> bool:
        return self._pass is not None and self._pass() is iterator

    def _open_batches(self, iterator: _WorkersPass) -> None:
        self.dataset.beginning = self._planner().state_after(self._received)
        with self._waiting():  # workers start, or finish what they load ahead
            iterator.batches = super().__iter__()

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        """Counts the `with` block as a wait of the training loop, in `stall_s`, and tells the daemon."""
        began_ns = time.monotonic_ns()
        self.dataset.begin_wait(began_ns)
        try:
            yield
        finally:
            self._stall_ns += time.monotonic_ns() - began_ns
            self.dataset.end_wait(self._stall_ns)

    def _next(self, iterator: _WorkersPass) -> Any:
        batch = self._next_batch(iterator)
        while batch is None:  # all its samples were left out
            batch = self._next_batch(iterator)
        return batch

    def _next_batch(self, iterator: _WorkersPass) -> Any:
        if iterator.batches is None:  # after an error: the failed batch is requested again
            self._open_batches(iterator)
        assert iterator.batches is not None
        try:
            with self._waiting():
                batch = next(iterator.batches)
        except StopIteration:
            planner = self._planner()
            planner.start_epoch(planner.epoch() + 1)
            self._received = 0
            iterator.batches = None
            raise
        except Exception as error:
            # The workers are already past the failed batch, or dead.
            iterator.batches = self._iterator = None
            if self.num_workers == 0:
                raise
            # Torch re-raises a worker's exception in a reference cycle with its traceback. Only the garbage collector
            # would free the objects in the traceback, and torch would then wait 5 s for each worker. The message has
            # the worker's own traceback.
            raise error.with_traceback(None)
        self._received += 1
        return batch

    def __len__(self) -> int:
        """The number of this rank's batches in the pass: of a whole epoch, or left by a state."""
        return self._planner().batches_per_epoch()

    @property
    def epoch(self) -> int:
        """The epoch of the current pass, also if its loop was left. Once the pass has ended, the next epoch."""
        return self._planner().epoch()

    @property
    def stall_s(self) -> float:
        """Seconds in all that the training loop has waited for batches."""
        return self._stall_ns / 1e9

    def start_epoch(self, epoch: int) -> None:
        """Ends the current pass. The next one walks this epoch from its start."""
        self._planner().start_epoch(options.whole_number("epoch", epoch, 0, 2**63 - 1))
        self._end_pass()
        self._received = 0

    def state_dict(self) -> job_state.StateDict:
        """The whole job's position when every rank has received as many batches as this one. Small, fit for JSON."""
        return job_state.to_dict(self.dataset.name, self._planner().state_after(self._received))

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Ends the current pass. The next one resumes from this state, and the one after it walks the next epoch."""
        self._planner().restore(job_state.to_bytes(state))
        self._end_pass()
        self._received = 0

    def close(self) -> None:
        """Ends the current pass, the workers and their sessions. The next pass starts them again."""
        self._end_pass()
        self._iterator = None  # torch's, of persistent workers
        self.dataset.close()

    def statistics(self) -> Statistics:
        """Running totals of all workers, including what they loaded ahead. `stall_s` is the training loop's wait."""
        return dataclasses.replace(self.dataset.statistics(), stall_s=self.stall_s)
