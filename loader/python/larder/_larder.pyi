"""The extension. Batch and Sample are public, as larder.Batch and larder.Sample; the rest is behind larder's classes."""

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, final, overload

import numpy
import numpy.typing

@final
class Sample:
    """One sample of a batch. Views stay valid as long as they are there, and keep the whole batch's memory."""

    @property
    def index(self) -> int:
        """The sample's place in the dataset."""
    @property
    def key(self) -> str:
        """Raw: the file's path in the dataset. WebDataset: the name its members share."""
    @property
    def label(self) -> int | None:
        """The class index: raw, of the directory; WebDataset, the number in field "cls"."""
    @property
    def bytes(self) -> memoryview:
        """The first field's bytes, read-only, no copy."""
    @property
    def fields(self) -> dict[str, memoryview]:
        """Each field's name with its bytes, read-only, no copy. WebDataset: the members' suffixes; raw: the file's."""
    def __getitem__(self, field: str) -> memoryview: ...
    def __contains__(self, field: object) -> bool: ...
    def numpy(self, field: str | None = None) -> numpy.typing.NDArray[numpy.uint8]:
        """The first field's bytes, or the named one's: read-only, dtype uint8, shape (n,), no copy."""

@final
class Batch(Sequence[Sample]):
    """Samples that came together. It holds their memory until it and all views of it are gone, or `release()`."""

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> list[Sample]: ...  # type: ignore[override]
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Sample]: ...
    def samples_bytes(self, field: str | None = None) -> list[memoryview]:
        """The bytes of every sample, of its first field or the named one, in one call."""
    def labels(self) -> list[int | None]:
        """The class index of every sample."""
    def indices(self) -> list[int]:
        """The place of every sample in the dataset."""
    @property
    def nbytes(self) -> int:
        """Bytes of all fields of all samples."""
    @property
    def released(self) -> bool:
        """Whether release() was called."""
    def release(self) -> bool:
        """Gives the memory back to the loader; False if views are left, then it goes back with the last of them."""
    def __enter__(self) -> Batch: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

class Loader:
    def __init__(self, **options: Any) -> None: ...
    def next(self) -> Batch | None: ...
    def state(self) -> bytes: ...
    def state_after(self, rank_batches: int) -> bytes: ...
    def restore(self, state: bytes) -> None: ...
    def start_epoch(self, epoch: int) -> None: ...
    def batches_per_epoch(self) -> int: ...
    def sample_count(self) -> int: ...
    def class_names(self) -> list[str]: ...
    def epoch(self) -> int: ...
    def statistics(self) -> dict[str, Any]: ...

class Dataset:
    def __init__(self, **options: Any) -> None: ...
    def fetch(self, indices: Sequence[int]) -> Batch: ...
    def sample_count(self) -> int: ...
    def total_bytes(self) -> int: ...
    def class_names(self) -> list[str]: ...
    def statistics(self) -> dict[str, Any]: ...

def parse_bytes(text: str) -> int: ...
