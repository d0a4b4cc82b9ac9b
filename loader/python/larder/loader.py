"""`Loader`: the plain loop over a dataset's epochs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from larder import _larder, options
from larder import state as job_state
from larder.closing import Closing
from larder.statistics import Statistics


class Loader(Closing):
    """Iterates over a dataset, one epoch per `for` loop, in batches of `batch_size` samples.

    Over all ranks and workers of the job, every sample comes exactly once per epoch, in an order that is a function of
    (seed, epoch, dataset version) alone. A loop that is left early is taken up where it was by the next loop; at the
    end of an epoch the next loop walks the next epoch.

    Yields `Batch`es: sequences of `Sample`s whose bytes lie in memory shared with the daemon. With `decode`, yields
    `[decode(sample) for sample in batch]` and gives the batch back; what `decode` returns should not hold views.

    Args:
        dataset: The name it was added with (`larder dataset add`).
        job: Sessions of one job share its rate limit and its count of what is still unread. Default: $LARDER_JOB, which
            submitted jobs have, else "default".
        batch_size: Samples in a batch; only an epoch's last one may have fewer.
        seed: Of the shuffle.
        shuffle: False gives the dataset's own order.
        shuffle_window_blocks: Where blocks hold many samples: blocks are shuffled globally, samples within so many
            blocks.
        rank, world_size: This process among those that train together.
        worker, worker_count: This process among those that load for one rank.
        drop_last: Only whole batches, and the same number for every rank.
        skip_failed: Leave out samples whose object changed or cannot be read, and count them (`statistics`).
        deal: How the order is dealt to ranks. "interleaved": batch by batch. "contiguous": each takes one stretch, so
            that a block of many samples is read by one rank only. "automatic": by the dataset's blocks.
        memory_budget: Bytes, or a size such as "256MiB", for prefetched batches and those the caller holds. None: twice
            what two batches and the shuffle window need, 256 MiB to 1 GiB.
        reconnect_timeout_s: For how long a daemon that is away is waited for before `Unavailable` is raised.
        first_epoch: The number of the first epoch.
        socket: The daemon's socket; None: $LARDER_SOCKET, else where `larder up` puts it.
        decode: See above.

    Raises:
        larder.Error: In opening and in iterating; its subclasses say what. After an error the loop may be entered
            again: nothing is lost.
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
        rank: int = 0,
        world_size: int = 1,
        worker: int = 0,
        worker_count: int = 1,
        drop_last: bool = False,
        skip_failed: bool = False,
        deal: str = "automatic",
        memory_budget: int | str | None = None,
        reconnect_timeout_s: float = 30,
        first_epoch: int = 0,
        socket: str | None = None,
        decode: Callable[[_larder.Sample], Any] | None = None,
    ) -> None:
        self._dataset = dataset
        self._decode = decode
        self._core: _larder.Loader | None = _larder.Loader(
            **options.connection(dataset, job, socket, memory_budget, reconnect_timeout_s),
            **options.sampling(
                batch_size=batch_size,
                seed=seed,
                shuffle=shuffle,
                shuffle_window_blocks=shuffle_window_blocks,
                rank=rank,
                world_size=world_size,
                worker=worker,
                worker_count=worker_count,
                drop_last=drop_last,
                skip_failed=skip_failed,
                deal=deal,
                first_epoch=first_epoch,
            ),
            plan_only=False,
        )

    def _open_core(self) -> _larder.Loader:
        if self._core is None:
            raise ValueError("the loader is closed")
        return self._core

    def __iter__(self) -> Loader:
        return self

    def __next__(self) -> Any:
        batch = self._open_core().next()
        if batch is None:
            raise StopIteration
        if self._decode is None:
            return batch
        with batch:
            return [self._decode(sample) for sample in batch]

    def __len__(self) -> int:
        """This rank's batches, over all its workers, from where the epoch or the restored state began."""
        return self._open_core().batches_per_epoch()

    @property
    def epoch(self) -> int:
        """The epoch the next batch is of."""
        return self._open_core().epoch()

    @property
    def sample_count(self) -> int:
        """Samples in the dataset."""
        return self._open_core().sample_count()

    @property
    def class_names(self) -> list[str]:
        """Names of the classes; `sample.label` is a place in this list."""
        return self._open_core().class_names()

    def start_epoch(self, epoch: int) -> None:
        """Goes to the start of an epoch."""
        self._open_core().start_epoch(options.whole("epoch", epoch, 0, 2**63 - 1))

    def state_dict(self) -> job_state.StateDict:
        """Where the whole job stands, when every rank has taken as many batches as this one. JSON-able, small."""
        return job_state.to_dict(self._dataset, self._open_core().state())

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Goes on from a state, of any number of ranks and workers. Dataset, seed and shuffle must be the same."""
        self._open_core().restore(job_state.to_bytes(state))

    def statistics(self) -> Statistics:
        """Running totals since the loader was opened."""
        return Statistics(**self._open_core().statistics())

    def close(self) -> None:
        """Ends the session. Batches that are held stay valid."""
        self._core = None
