#!/usr/bin/env python3
"""parquet.py [--rows N] [--json]: rows per second of a Parquet table through Larder, beside pyarrow and beside Hugging
Face's `datasets`.

All read the same local files, which are in the page cache; Larder has all blocks in its memory tier. Each reads all
columns of all rows as Arrow tables of 1024 rows: pyarrow in the files' order, a row group at a time and by
iter_batches; Larder in the files' order and shuffled (larder.parquet.Tables); datasets by streaming in the files' order
(with_format("arrow")), and shuffled with a buffer of 10,000 rows, which it does row by row: of this the first 32,768
rows are read. One after the other, several times; the medians are printed. Needs the packages larder, pyarrow and, for
its rows, datasets, and the programs larder and larderd in PATH.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import larder
import larder.parquet
import numpy
import pyarrow
import pyarrow.parquet

BATCH = 1024
ROW_GROUP = 16384
FILES = 4
SHUFFLED_MOST = 32768

Reader = Callable[[], Iterator[int]]  # yields the rows of each batch


def write(directory: pathlib.Path, rows: int) -> None:
    """Numbers and short texts, as in a table of clicks."""
    directory.mkdir()
    draw = numpy.random.default_rng(1)
    for i in range(FILES):
        count = rows // FILES
        table = pyarrow.table(
            {
                "user": draw.integers(0, 1 << 40, count),
                "price": draw.random(count, "float32"),
                "clicks": draw.integers(0, 100, count, "int32"),
                "query": [f"query {number:x} of a user" for number in draw.integers(0, 1 << 30, count)],
            }
        )
        pyarrow.parquet.write_table(table, directory / f"part-{i}.parquet", row_group_size=ROW_GROUP)


def read_row_groups(directory: pathlib.Path) -> Iterator[int]:
    for path in sorted(directory.glob("*.parquet")):
        file = pyarrow.parquet.ParquetFile(path)
        for i in range(file.num_row_groups):
            for batch in file.read_row_group(i).to_batches(BATCH):
                yield batch.num_rows


def read_pyarrow(directory: pathlib.Path) -> Iterator[int]:
    for path in sorted(directory.glob("*.parquet")):
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches(BATCH):
            yield batch.num_rows


def read_larder(socket: str, **options: Any) -> Iterator[int]:
    tables = larder.parquet.Tables()
    with larder.Loader("table", batch_size=BATCH, decode_batch=tables, socket=socket, **options) as loader:
        for table in loader:
            yield table.num_rows


def read_datasets(directory: pathlib.Path, shuffle: bool) -> Iterator[int]:
    import datasets

    files = [str(path) for path in sorted(directory.glob("*.parquet"))]
    stream = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
    if shuffle:
        stream = stream.shuffle(seed=1, buffer_size=10_000)
    for table in stream.with_format("arrow").iter(BATCH):
        yield table.num_rows


def rate(reader: Reader, rows: int) -> float:
    begin = time.perf_counter()
    read = 0
    for count in reader():
        read += count
        if read >= rows:
            break
    elapsed = time.perf_counter() - begin
    if read != rows:
        raise RuntimeError(f"{read} rows were read of {rows}")
    return rows / elapsed


def readers(directory: pathlib.Path, socket: str) -> dict[str, Reader]:
    found: dict[str, Reader] = {
        "pyarrow, row groups": lambda: read_row_groups(directory),
        "pyarrow, iter_batches": lambda: read_pyarrow(directory),
        "Larder, in order": lambda: read_larder(socket, shuffle=False),
        "Larder, shuffled": lambda: read_larder(socket, seed=1),
    }
    try:
        import datasets  # noqa: F401
    except ImportError as error:
        print(f"datasets is left out: {error}")
        return found
    found["datasets, streaming"] = lambda: read_datasets(directory, False)
    found["datasets, shuffled"] = lambda: read_datasets(directory, True)
    return found


def main() -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0].split(": ", 1)[1])
    parser.add_argument("--rows", type=int, default=1 << 20, help="rows of the table")
    parser.add_argument("--runs", type=int, default=5, help="runs of each reader, of which the median is printed")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    rows = given.rows // FILES * FILES
    with tempfile.TemporaryDirectory(prefix="larder-parquet-") as name:
        directory = pathlib.Path(name)
        write(directory / "table", rows)
        state = directory / "state"
        environment = os.environ | {"LARDER_ADMIN_SOCKET": str(state / "admin.sock")}

        def command(*words: object) -> None:
            subprocess.run(["larder", *map(str, words)], env=environment, check=True, stdout=subprocess.DEVNULL)

        command("up", "--detach", "--state", state, "--memory", "2GB", "--disk", "0")
        try:
            command("dataset", "add", "table", directory / "table", "--quota-memory", "1GB")
            command("dataset", "warm", "table")
            rates: dict[str, list[float]] = {}
            compared = readers(directory / "table", str(state / "larderd.sock"))
            for run in range(given.runs + 1):
                for reader, read in compared.items():
                    most = SHUFFLED_MOST if reader == "datasets, shuffled" else rows
                    measured = rate(read, min(rows, most))
                    if run > 0:  # the first run warms up
                        rates.setdefault(reader, []).append(measured)
        finally:
            command("down", "--state", state)
    medians = {reader: statistics.median(of) for reader, of in rates.items()}
    if given.json:
        print(json.dumps({"rows": rows, "batch": BATCH, "rows_per_second": medians, "load": os.getloadavg()}))
        return
    print(f"{rows:,} rows of 4 columns, batches of {BATCH}, load average {os.getloadavg()[0]:.1f}")
    for reader, median in medians.items():
        print(f"{reader:24} {median:12,.0f} rows/s  {median / medians['pyarrow, row groups']:5.2f} of pyarrow")


if __name__ == "__main__":
    main()
