"""`Dataset`: samples by index."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from larder import _larder, options
from larder.closing import Closing
from larder.decoder import Decoder
from larder.statistics import Statistics

if TYPE_CHECKING:  # `import larder` imports no NumPy
    import numpy as np
    import numpy.typing as npt


class Dataset(Closing):
    """Reads any samples of a dataset by index. Reading many at once (`fetch`) is much faster than one by one.

    `dataset[i]` is a `Sample`; `dataset[a:b]` and `fetch([...])` are `Batch`es. With `decode`, they are a decoded
    sample and lists of decoded samples. A Dataset may be pickled: the copy opens a session of its own.

    Args:
        dataset: The name given to `larder dataset add`.
        job: Sessions of one job share its rate limit. Default: $LARDER_JOB, which submitted jobs have, else "default".
        memory_budget: Bytes, or a size such as "256MiB", for requested samples and those that the caller holds. None:
            256 MiB.
        reconnect_timeout_s: How long opening and reading wait for a daemon that is away before they raise
            `Unavailable`.
        socket: The daemon's socket; None: $LARDER_SOCKET, else that of your `larder up`, else the service's.
        decode: Called with each sample; its result should not hold views. If it raises, the caller gets a
            `DecodeError` that names the sample.
    """

    def __init__(
        self,
        dataset: str,
        *,
        job: str | None = None,
        memory_budget: int | str | None = None,
        reconnect_timeout_s: float = 30,
        socket: str | None = None,
        decode: Callable[[_larder.Sample], Any] | None = None,
    ) -> None:
        self._arguments = {
            "dataset": dataset,
            "job": job,
            "memory_budget": memory_budget,
            "reconnect_timeout_s": reconnect_timeout_s,
            "socket": socket,
            "decode": decode,
        }
        self._decoder = None if decode is None else Decoder(dataset, decode)
        self._core: _larder.Dataset | None = _larder.Dataset(
            **options.connection(dataset, job, socket, memory_budget, reconnect_timeout_s)
        )
        self._count = self._core.sample_count()

    def _open_core(self) -> _larder.Dataset:
        if self._core is None:
            raise ValueError("the dataset is closed")
        return self._core

    def __len__(self) -> int:
        return self._count

    def _checked_index(self, index: int) -> int:
        position = index + self._count if index < 0 else index
        if not 0 <= position < self._count:
            raise IndexError(f"sample {index} is not among the {self._count} of dataset {self._arguments['dataset']!r}")
        return position

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return self.fetch(range(*index.indices(self._count)))
        batch = self._open_core().fetch([self._checked_index(index)])
        if self._decoder is None:
            return batch[0]
        with batch:
            return self._decoder.sample(batch[0])

    def fetch(self, indices: Iterable[int]) -> Any:
        """The samples of these indices, in this order, as one batch."""
        batch = self._open_core().fetch([self._checked_index(int(index)) for index in indices])
        if self._decoder is None:
            return batch
        with batch:
            return self._decoder.batch(batch)

    @property
    def total_bytes(self) -> int:
        """Bytes of all samples, as stored in the remote."""
        return self._open_core().total_bytes()

    @property
    def class_names(self) -> list[str]:
        """Names of the classes; `sample.label` is an index into this list."""
        return self._open_core().class_names()

    def set_training_loop(self, wait: npt.NDArray[np.int64] | None) -> None:
        """Tells the dataset that its samples go to a training loop in another process, which shares how long it waits.

        `wait` is int64 of shape (2,), in shared memory, written by the loop: the nanoseconds of its finished waits, and
        the `time.monotonic_ns()` at which the current wait began, or 0 if it does not wait. Give `wait`
        to one of the loop's workers and None to the others, or None to all if the waits are unknown. The `DataLoader`
        of `larder.torch` shares the times of single waits, too, in a longer array.
        """
        self._open_core().set_training_loop(wait)

    def statistics(self) -> Statistics:
        """Running totals since the dataset was opened."""
        return Statistics(**self._open_core().statistics())

    def close(self) -> None:
        """Ends the session. Samples that are held stay valid."""
        self._core = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self._arguments,)


def _reopen(arguments: dict[str, Any]) -> Dataset:
    return Dataset(**arguments)
