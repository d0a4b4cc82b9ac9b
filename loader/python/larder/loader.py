"""`Loader`: the plain loop over a dataset's epochs."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from larder import _larder, options
from larder import state as job_state
from larder.closing import Closing
from larder.decoder import Decoder, collated, decoded_batch
from larder.passes import Pass
from larder.statistics import Statistics


class Loader(Closing):
    """Iterates over a dataset, one epoch per `for` loop, in batches of `batch_size` samples.

    Over all ranks and workers of the job, every sample comes exactly once per epoch, in an order that is a function of
    (seed, epoch, dataset version) alone, unless `order` says otherwise.

    Each `for` loop, and each `iter(loader)`, is a pass, as with torch's DataLoader. The first pass walks the first
    epoch, or what is left of it after `load_state_dict`. Each later pass walks the whole next epoch, even if the loop
    before was left early (`break`). A pass from which no batch was taken does not count. To resume a loop that was
    left, keep its iterator (`batches = iter(loader)`) or its state (`state_dict`). An iterator that has ended stays at
    its end. One that has not ended raises RuntimeError once another pass has begun.

    Yields `Batch`es: sequences of `Sample`s whose bytes lie in memory shared with the daemon. With `decode`,
    `transform` or `collate`, yields `collate([transform(decode(sample)) for sample in batch])`, without those that are
    not given, and gives the batch back; the result should not hold views. If `decode` or `transform` raises, the loop
    gets a `DecodeError` that names the sample, or continues without it (`decode_errors`). An error of `collate` comes
    as it is. A batch of which no sample is left is left out where there is a `collate`.

    With `decode_batch`, yields `decode_batch(batch)` instead: `decode_batch=larder.parquet.Tables()` makes a
    pyarrow.Table of each batch of a Parquet dataset. Its error comes as it is, and the batch comes again.

    All run in the thread that iterates, when it asks for the batch; the daemon fetches ahead meanwhile. To run
    them in other processes, use `larder.torch.DataLoader`.

    Args:
        dataset: The name given to `larder dataset add`.
        job: Sessions of one job share its rate limit and its count of unread bytes. Default: $LARDER_JOB, which
            submitted jobs have, else "default".
        batch_size: Samples in a batch; only an epoch's last batch may have fewer.
        seed: The seed of the shuffle.
        shuffle: False gives the dataset's own order.
        shuffle_window_blocks: If blocks hold many samples, blocks are shuffled globally, and samples within this many
            blocks.
        rank, world_size: This process's place among those that train together, and their number.
        worker, worker_count: This process's place among those that load for one rank, and their number.
        drop_last: Only whole batches, and the same number for every rank.
        skip_failed: Leaves out samples whose object changed or cannot be read, and counts them (`statistics`).
        deal: How the order is dealt to ranks. "interleaved": batch by batch. "contiguous": each rank takes one stretch,
            so that a block of many samples is read by one rank only. "automatic": depends on the dataset's blocks.
        order: "seeded": a function of (seed, epoch, dataset version). "shared": the daemon chooses the next block, so that
            jobs that read the dataset at a time on one node share each fetch. The order is another each time; the state
            of a job of several ranks or workers is `larder.merge_states` of theirs.
        memory_budget: Bytes, or a size such as "256MiB", for prefetched batches and those that the caller holds. None:
            twice what two batches and the shuffle window need, 256 MiB to 1 GiB.
        reconnect_timeout_s: How long opening and iterating wait for a daemon that is away before they raise
            `Unavailable`.
        first_epoch: The number of the first epoch.
        socket: The daemon's socket; None: $LARDER_SOCKET, else that of your `larder up`, else the service's.
        decode: Makes a value of a `Sample`; see above.
        transform: Changes the value of one sample, as the transform of a torch dataset; gets the `Sample` if there is
            no `decode`.
        collate: Makes a batch of the list of its values, as DataLoader's `collate_fn`.
        decode_batch: Makes a value of a whole `Batch`; then none of the three may be given, nor decode_errors="skip".
        decode_errors: "raise", or "skip", which leaves out samples on which `decode` or `transform` raises, and counts
            them (`statistics`).

    Raises:
        larder.Error: Opening or iterating failed; the subclass says why. After an error the same iterator may be used
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
        order: str = "seeded",
        memory_budget: int | str | None = None,
        reconnect_timeout_s: float = 30,
        first_epoch: int = 0,
        socket: str | None = None,
        decode: Callable[[_larder.Sample], Any] | None = None,
        transform: Callable[[Any], Any] | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        decode_batch: Callable[[_larder.Batch], Any] | None = None,
        decode_errors: str = "raise",
    ) -> None:
        self._dataset = dataset
        skip_errors = options.skips_decode_errors(decode_errors)
        plain = decode is None and transform is None and collate is None
        self._decoder = None if plain else Decoder(dataset, decode, skip_errors, transform)
        self._collate = collate
        self._decode_batch = options.alone(
            decode_batch, skip_errors=skip_errors, decode=decode, transform=transform, collate=collate
        )
        self._worker_count = worker_count
        self._pass: weakref.ref[Pass] | None = None
        self._taken = 0  # batches, since the epoch or the loaded state began
        self._undecoded: _larder.Batch | None = None  # the next batch, whose decoding failed
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
                order=order,
                first_epoch=first_epoch,
            ),
            plan_only=False,
        )

    def _open_core(self) -> _larder.Loader:
        if self._core is None:
            raise ValueError("the loader is closed")
        return self._core

    def __iter__(self) -> Iterator[Any]:
        core = self._open_core()
        if self._taken > 0:
            self.start_epoch(core.epoch() + 1)
        elif self._undecoded is not None:
            core.restore(core.state_after(0))
        iterator = Pass(self)
        self._begin(iterator)
        return iterator

    def _begin(self, iterator: Pass | None) -> None:
        self._pass = None if iterator is None else weakref.ref(iterator)
        self._taken = 0
        self._undecoded = None

    def _is_current(self, iterator: Pass) -> bool:
        self._open_core()
        return self._pass is not None and self._pass() is iterator

    def _next(self, iterator: Pass) -> Any:
        made = self._next_batch()
        while made is None:
            made = self._next_batch()
        return made[0]

    def _next_batch(self) -> tuple[Any] | None:
        """The next batch; None if `collate` would get none of its samples."""
        batch = self._undecoded
        if batch is None:
            batch = self._open_core().next()
        if batch is None:
            self._taken = 0
            raise StopIteration
        if self._decode_batch is not None:
            self._undecoded = batch
            made = decoded_batch(self._decode_batch, batch)
            self._undecoded = None
            self._taken += 1
            batch.release()
            return (made,)
        if self._decoder is None:
            self._taken += 1
            return (batch,)
        self._undecoded = batch
        errors = self._decoder.errors
        decoded: Any = self._decoder.batch(batch)
        is_left_out = self._collate is not None and len(decoded) == 0
        if self._collate is not None and not is_left_out:
            try:
                decoded = collated(self._collate, decoded)
            except BaseException:
                self._decoder.errors = errors  # the batch comes again
                raise
        self._undecoded = None
        self._taken += 1
        batch.release()
        return None if is_left_out else (decoded,)

    def __len__(self) -> int:
        """The number of this rank's batches in the pass, over all its workers: of a whole epoch, or left by a state."""
        return self._open_core().batches_per_epoch()

    @property
    def epoch(self) -> int:
        """The epoch of the current pass, also if its loop was left. Once the pass has ended, the next epoch."""
        return self._open_core().epoch()

    @property
    def sample_count(self) -> int:
        """Samples in the dataset."""
        return self._open_core().sample_count()

    @property
    def class_names(self) -> list[str]:
        """Names of the classes; `sample.label` is an index into this list."""
        return self._open_core().class_names()

    def start_epoch(self, epoch: int) -> None:
        """Ends the current pass. The next one walks this epoch from its start."""
        self._open_core().start_epoch(options.whole_number("epoch", epoch, 0, 2**63 - 1))
        self._begin(None)

    def state_dict(self) -> job_state.StateDict:
        """The whole job's position when every rank has taken as many batches as this one. Fit for JSON.

        It is small, but with order="shared" has a bit or less for each block, and what this loader delivered only: give
        those of all ranks and workers to `larder.merge_states`.
        """
        return self._state_after(self._taken)

    def _state_after(self, taken: int) -> job_state.StateDict:
        return job_state.to_dict(self._dataset, self._open_core().state_after(taken * self._worker_count))

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Ends the current pass. The next one resumes from this state, and the one after it walks the next epoch.

        The state may come from any number of ranks and workers. Dataset, seed and shuffle must be the same. If the
        epoch's last batch was taken before the state, the pass that resumes from it has no batches.
        """
        self._open_core().restore(job_state.to_bytes(state))
        self._begin(None)

    def set_training_loop(self, wait: Any) -> None:
        """Reports these waits (`larder.loop_wait`), or no loop, to the daemon instead of those of this loader."""
        self._open_core().set_training_loop(wait)

    def statistics(self) -> Statistics:
        """Running totals since the loader was opened."""
        errors = 0 if self._decoder is None else self._decoder.errors
        return Statistics(**self._open_core().statistics(), decode_errors=errors)

    def close(self) -> None:
        """Ends the session. Batches that are held stay valid."""
        self._core = None
        self._begin(None)
