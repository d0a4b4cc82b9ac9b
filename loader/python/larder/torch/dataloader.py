"""`DataLoader`: torch's own, plus epochs, an exact state, and the training loop's waiting time."""

from __future__ import annotations

import contextlib
import dataclasses
import time
import weakref
from collections.abc import Generator, Iterator, Mapping
from typing import Any

import torch.utils.data

from larder import _larder
from larder import state as job_state
from larder.closing import Closing
from larder.errors import InvalidArgument
from larder.statistics import Statistics
from larder.torch.iterable import IterableDataset


class DataLoader(torch.utils.data.DataLoader[Any], Closing):
    """torch.utils.data.DataLoader over an `IterableDataset` of this module.

    Each `for` loop walks an epoch; one that is left early is taken up by the next loop where the training loop left it:
    what workers had prepared beyond that is made again, so that every sample is trained on exactly once. It counts the
    batches it hands out, so `state_dict()` is exact at any moment, whatever the workers are ahead, and a state may be
    loaded with another number of workers or ranks.

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
        self._pass = 0
        self._stall_ns = 0
        self._walking: weakref.ref[Generator[Any, None, None]] | None = None  # a loop that is left ends its workers
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
        self._pass += 1
        planner = self._planner()
        self._move_to(planner.state_after(self._received))
        self.dataset.beginning = planner.state()
        with self._waiting():  # workers start, or end what they loaded ahead
            iterator = super().__iter__()
        walking = self._walk(iterator, self._pass)
        self._walking = weakref.ref(walking)
        return walking

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

    def _walk(self, iterator: Iterator[Any], this_pass: int) -> Generator[Any, None, None]:
        while True:
            if this_pass != self._pass:
                raise RuntimeError("another loop over this DataLoader, or load_state_dict, came in between")
            try:
                with self._waiting():
                    batch = next(iterator)
            except StopIteration:
                planner = self._planner()
                planner.start_epoch(planner.epoch() + 1)
                self._received = 0
                return
            except Exception as error:
                if self.num_workers == 0:
                    raise
                # Torch re-raises a worker's exception in a cycle with its traceback. Whatever hangs on that would be
                # freed by the garbage collector only, which makes torch wait 5 s for each worker. The worker's own
                # traceback is in the message.
                raise error.with_traceback(None)
            self._received += 1
            if batch is not None:
                yield batch

    def _move_to(self, state: bytes) -> None:
        self._planner().restore(state)
        self._received = 0

    def __len__(self) -> int:
        """This rank's batches, from where this epoch's first loop or the loaded state began."""
        return self._planner().batches_per_epoch()

    @property
    def epoch(self) -> int:
        """The epoch the next batch is of."""
        return self._planner().epoch()

    @property
    def stall_s(self) -> float:
        """Seconds the training loop has waited in all for its next batch."""
        return self._stall_ns / 1e9

    def start_epoch(self, epoch: int) -> None:
        """The next loop walks this epoch, from its start."""
        self._pass += 1
        self._planner().start_epoch(epoch)
        self._received = 0

    def state_dict(self) -> job_state.StateDict:
        """Where the whole job stands, when every rank has received as many batches as this one. JSON-able, small."""
        return job_state.to_dict(self.dataset.name, self._planner().state_after(self._received))

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """The next loop goes on from this state."""
        self._pass += 1
        self._move_to(job_state.to_bytes(state))

    def close(self) -> None:
        """Ends the loop that is open, the workers and their sessions. The next loop starts them again, where it was."""
        self._pass += 1
        if (walking := self._walking and self._walking()) is not None:
            walking.close()
        self._iterator = None  # torch's, of workers that are persistent
        self.dataset.close()

    def statistics(self) -> Statistics:
        """Running totals of all workers, also of what they loaded ahead; `stall_s` is what the training loop saw."""
        return dataclasses.replace(self.dataset.statistics(), stall_s=self.stall_s)
