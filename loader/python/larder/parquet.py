"""Rows of tables, decoded by pyarrow: `Tables` makes a pyarrow.Table of a batch. Datasets of Parquet have rows, and so
have those of LitData that were written where pyarrow is installed.

    tables = larder.parquet.Tables()
    with larder.Loader("clicks", batch_size=4096, decode_batch=tables) as loader:
        for table in loader:
            ...

A row's bytes are spread over its row group, one chunk for each column. So a row group is decoded as a whole, once, and
kept until all of its rows were taken; Arrow reads its compressed bytes where they are, in memory shared with the
daemon. What it decodes is its own memory: tables outlive their batches. The same holds for the batches of rows of
LitData, which are copied out of shared memory, because Arrow would use them where they are.

pyarrow is imported when the first table is made.
"""

from __future__ import annotations

import functools
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from larder import _larder, options
from larder.errors import Corrupt, InvalidArgument, Unsupported


class _Decoded:
    """A decoded block, and how many of its rows were not taken yet."""

    def __init__(self, table: Any) -> None:
        self.table = table
        self.left = table.num_rows


class Tables:
    """Makes tables of batches: `tables(batch)` has a row for each sample, in the order of the batch.

    Keeps decoded blocks, from the first of their rows to the last, as long as they fit `memory`; the block that is in
    use is kept always. A shuffled loader mixes the rows of `shuffle_window_blocks` blocks, so that many blocks are in
    use at once: where `memory` is less than they take, blocks are decoded again and again. May be pickled, and used
    after a fork: the copy has decoded nothing.

    Args:
        columns: The columns to decode, among those chosen at `larder dataset add`. None: all of these. Rows of LitData
            whose chunk lacks a column have nulls in it; its index.json must name the column.
        memory: Bytes, or a size such as "2GiB", for decoded blocks.
        use_threads: True lets Arrow decode columns on several threads.
    """

    def __init__(
        self, columns: Sequence[str] | None = None, *, memory: int | str = "1GiB", use_threads: bool = True
    ) -> None:
        if isinstance(columns, str):
            raise InvalidArgument(f"columns is {columns!r}; expected a list of names")
        if columns is not None and len(columns) == 0:
            raise InvalidArgument("columns is empty; give at least one name, or None for all columns")
        self._arguments = (None if columns is None else list(columns), memory, use_threads)
        self._columns = self._arguments[0]
        self._memory_bytes = options.size_bytes("memory", memory)
        self._use_threads = use_threads
        self._blocks: OrderedDict[tuple[int, int, int], _Decoded] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self.decoded_blocks = 0
        """Blocks decoded so far. A block that is decoded twice in an epoch shows that `memory` is too small."""

    def __call__(self, batch: _larder.Batch) -> Any:
        """The rows of the batch as a pyarrow.Table."""
        import numpy

        pyarrow = _pyarrow()
        groups = batch.row_groups()
        if not groups:
            return pyarrow.table({})
        parts: list[Any] = []
        places: list[Any] = []
        with self._locked():
            for block, view, rows_bytes, positions_bytes in groups:
                rows = numpy.frombuffer(rows_bytes, numpy.uint32)
                positions = numpy.frombuffer(positions_bytes, numpy.uint32)
                table = self._table(batch, block, view, int(positions[0]), len(rows))
                first = int(rows[0])
                parts.append(table.slice(first, len(rows)) if _is_run(rows) else table.take(pyarrow.array(rows)))
                places.append(positions)
        joined = parts[0] if len(parts) == 1 else _joined(parts)
        order = numpy.concatenate(places)
        if _is_run(order):
            return joined
        back = numpy.empty(len(order), numpy.uint32)
        back[order] = numpy.arange(len(order), dtype=numpy.uint32)
        return joined.take(pyarrow.array(back))

    def row(self, sample: _larder.Sample) -> dict[str, Any]:
        """One row as a dict of its columns, as Python values."""
        place = sample._row
        if place is None:
            raise InvalidArgument("the sample is no row of a table")
        block, row, index, batch = place
        with self._locked():
            table = self._table(batch, block, None, index, 1)
        return {name: column[row].as_py() for name, column in zip(table.column_names, table.columns)}

    def _locked(self) -> threading.Lock:
        if self._pid != os.getpid():  # the lock may have been held by another thread of the parent
            self._pid, self._lock = os.getpid(), threading.Lock()
            self._blocks.clear()
            self._bytes = 0
        return self._lock

    def _table(
        self, batch: _larder.Batch, block: tuple[int, int, int], view: memoryview | None, index: int, taken: int
    ) -> Any:
        """The block's table. `index`: a sample of the batch that is in it; `taken`: rows that are now taken."""
        held = self._blocks.pop(block, None)
        if held is None:
            if view is None:
                view = next(group[1] for group in batch.row_groups() if group[0] == block)
            held = _Decoded(self._decode(batch, view, index))
            self.decoded_blocks += 1
            self._bytes += held.table.nbytes
        held.left -= taken
        if held.left <= 0:
            self._bytes -= held.table.nbytes
            return held.table
        self._blocks[block] = held
        while self._bytes > self._memory_bytes and len(self._blocks) > 1:
            _, oldest = self._blocks.popitem(last=False)
            self._bytes -= oldest.table.nbytes
        return held.table

    def _decode(self, batch: _larder.Batch, view: memoryview, index: int) -> Any:
        pyarrow = _pyarrow()
        file = batch[index].key
        kind, metadata, row_count = batch.row_metadata(index)
        known = batch.row_columns(index)
        decode = _parquet_table if kind == "parquet" else _arrow_table
        try:
            table = decode(view, metadata, known, self._columns, file, self._use_threads).combine_chunks()
        except (pyarrow.ArrowException, OSError, EOFError) as error:
            raise Corrupt(f"{file}: the rows cannot be decoded: {error}") from error
        if table.num_rows != row_count:
            source = "the file's footer" if kind == "parquet" else "its index"
            raise Corrupt(f"{file}: a block has {table.num_rows} rows; {source} says {row_count}")
        return table

    def __reduce__(self) -> tuple[Any, ...]:
        columns, memory, use_threads = self._arguments
        return _remake, (columns, memory, use_threads)


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise Unsupported(f"rows of tables are decoded by the package pyarrow: {error}") from None
    if not _is_safe(pyarrow.__version__):
        raise Unsupported(
            f"pyarrow {pyarrow.__version__} runs code that the schema of a file names (CVE-2023-47248): install "
            "pyarrow 14.0.1 or newer"
        )
    return pyarrow


@functools.lru_cache(maxsize=1)
def _is_safe(version: str) -> bool:
    parts = [int(part) for part in re.findall(r"\d+", version)[:3]]
    return parts >= [14, 0, 1]


def _parquet_table(
    view: memoryview, footer: bytes, known: list[str], columns: list[str] | None, file: str, use_threads: bool
) -> Any:
    pyarrow = _pyarrow()
    metadata = pyarrow.parquet.read_metadata(pyarrow.BufferReader(footer))
    leaves = _leaves(metadata, file)
    source = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(view), metadata=metadata)
    # Columns are named by number: a name with a dot also means what is in a struct of the name's first part.
    wanted = [leaf for name in _chosen(columns, known) for leaf in leaves[name]]
    return source.reader.read_all(column_indices=wanted, use_threads=use_threads)


def _arrow_table(
    view: memoryview, schema_message: bytes, known: list[str], columns: list[str] | None, file: str, use_threads: bool
) -> Any:
    """The rows of the messages in `view`, one after the other. `use_threads` is for Parquet only."""
    pyarrow = _pyarrow()
    schema = pyarrow.ipc.read_schema(pyarrow.py_buffer(schema_message))
    # A copy, as decoded columns are parts of these bytes.
    source = pyarrow.BufferReader(bytes(view))
    batches = []
    while source.tell() < source.size():
        batch = pyarrow.ipc.read_record_batch(pyarrow.ipc.read_message(source), schema)
        batch.validate(full=True)  # whoever wrote the file chose the offsets in it
        batches.append(batch)
    table = pyarrow.Table.from_batches(batches, schema)
    if columns is None:
        return table
    # A chunk has no column for what none of its rows has.
    chosen = _chosen(columns, list(dict.fromkeys(known + table.column_names)))
    missing = pyarrow.nulls(table.num_rows)
    return pyarrow.table({name: table[name] if name in table.column_names else missing for name in chosen})


def _chosen(columns: list[str] | None, known: list[str]) -> list[str]:
    """The names of `columns`, which must be known; all that are known if `columns` is None."""
    for name in columns or []:
        if name not in known:
            raise InvalidArgument(f'the dataset has no column "{name}"; it has {", ".join(known)}')
    return known if columns is None else columns


def _joined(parts: list[Any]) -> Any:
    """The tables, one after the other. Those of LitData have columns as their chunks have."""
    pyarrow = _pyarrow()
    if all(part.schema.equals(parts[0].schema) for part in parts):
        return pyarrow.concat_tables(parts)
    try:
        return pyarrow.concat_tables(parts, promote_options="permissive")
    except pyarrow.ArrowException as error:
        raise Unsupported(f"chunks have types that do not fit one table ({error}); larder.decode gives rows") from error


def _leaves(metadata: Any, file: str) -> dict[str, range]:
    """The numbers of the leaves of each column."""
    leaves: dict[str, range] = {}
    end = 0
    for column in metadata.schema.to_arrow_schema():
        begin, end = end, end + _leaf_count(column.type)
        leaves[column.name] = range(begin, end)
    if end != metadata.num_columns:
        raise Unsupported(f"{file}: pyarrow finds {end} leaves in a schema of {metadata.num_columns}")
    return leaves


def _leaf_count(kind: Any) -> int:
    from pyarrow import types

    if isinstance(kind, _pyarrow().BaseExtensionType):
        return _leaf_count(kind.storage_type)
    if types.is_dictionary(kind):
        return _leaf_count(kind.value_type)
    if types.is_map(kind):
        return _leaf_count(kind.key_type) + _leaf_count(kind.item_type)
    if types.is_struct(kind):
        return sum(_leaf_count(kind.field(i).type) for i in range(kind.num_fields))
    if types.is_nested(kind):  # a list of some kind
        return _leaf_count(kind.value_type)
    return 1


def _is_run(numbers: Any) -> bool:
    """True if each number is the one before it plus 1."""
    return bool((numbers[1:] == numbers[:-1] + 1).all())


def _remake(columns: list[str] | None, memory: int | str, use_threads: bool) -> Tables:
    return Tables(columns, memory=memory, use_threads=use_threads)
