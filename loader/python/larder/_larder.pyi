"""The extension. Batch and Sample are public (larder.Batch, larder.Sample); larder's classes wrap the rest."""

import builtins
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, final, overload

import numpy
import numpy.typing

__version__: str

@final
class Sample:
    """One sample of a batch. Its views stay valid as long as they exist, and keep the whole batch's memory."""

    @property
    def index(self) -> int:
        """The sample's index in the dataset."""
    @property
    def key(self) -> str:
        """WebDataset: the name that its members share. Else the path of its file in the dataset."""
    @property
    def label(self) -> int | None:
        """The class index. Raw: that of the directory. WebDataset: the number in field "cls"."""
    @property
    def bytes(self) -> memoryview:
        """The first field's bytes, read-only, no copy."""
    @property
    def fields(self) -> dict[str, memoryview]:
        """Each field's name with its bytes, read-only, no copy. WebDataset: the members' suffixes; raw: the file's."""
    @property
    def encodings(self) -> dict[str, str]:
        """Each field's name with its encoding, as the format spells it ("int", "ndarray:int32"); "" for plain bytes."""
    @property
    def structure(self) -> str | None:
        """LitData: the tree whose leaves are the fields, as in its index.json. Else None."""
    @property
    def _row(self) -> tuple[tuple[int, int, int], int, int, Batch] | None: ...
    def __getitem__(self, field: str) -> memoryview: ...
    def __contains__(self, field: object) -> bool: ...
    def numpy(self, field: str | None = None) -> numpy.typing.NDArray[Any]:
        """The first field, or the named one, no copy: read-only, shape (n,), dtype of its numbers or else uint8."""

@final
class Batch(Sequence[Sample]):
    """Samples delivered together. A batch holds their memory until it and all views of it are gone, or `release()`."""

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> list[Sample]: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Sample]: ...
    def samples_bytes(self, field: str | None = None) -> list[memoryview]:
        """The bytes of every sample, of its first field or the named one, in one call."""
    def labels(self) -> list[int | None]:
        """The class index of every sample."""
    def indices(self) -> list[int]:
        """The index of every sample in the dataset."""
    def row_groups(self) -> list[tuple[tuple[int, int, int], memoryview, builtins.bytes, builtins.bytes]]:
        """Rows of tables: the rows by block. See larder.parquet."""
    def row_columns(self, index: int) -> list[str]:
        """Rows of tables: names of the dataset's columns. Rows of LitData may have others."""
    def row_metadata(self, index: int) -> tuple[str, builtins.bytes, int]:
        """Rows of tables: what Arrow needs to decode the block of this sample of the batch, and its number of rows:
        ("parquet", a file that is only a footer, rows) or ("arrow", the message with the schema, rows)."""
    @property
    def nbytes(self) -> int:
        """Bytes of all fields of all samples."""
    @property
    def released(self) -> bool:
        """True if release() was called."""
    def release(self) -> bool:
        """Gives the memory back to the loader. False if views are left: it then goes back with the last of them."""
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
    def set_training_loop(self, wait: numpy.typing.NDArray[numpy.int64] | None) -> None: ...
    def statistics(self) -> dict[str, Any]: ...

def merge_states(states: list[bytes]) -> bytes: ...

class Dataset:
    def __init__(self, **options: Any) -> None: ...
    def fetch(self, indices: Sequence[int]) -> Batch: ...
    def sample_count(self) -> int: ...
    def total_bytes(self) -> int: ...
    def class_names(self) -> list[str]: ...
    def set_training_loop(self, wait: numpy.typing.NDArray[numpy.int64] | None) -> None: ...
    def statistics(self) -> dict[str, Any]: ...

LOOP_WORDS: int  # of a training loop's shared waits

def begin_wait(wait: numpy.typing.NDArray[numpy.int64], now_ns: int) -> None: ...
def end_wait(wait: numpy.typing.NDArray[numpy.int64], waited_ns: int) -> None: ...
def parse_bytes(text: str) -> int: ...
