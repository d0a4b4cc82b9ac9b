"""Parquet tables written by pyarrow, as Spark writes them, and by DuckDB, read through a real daemon: every row comes
once, with the values and types that pyarrow reads from the files themselves."""

from __future__ import annotations

import collections
import datetime
import itertools
import os
import pathlib
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import duckdb
import larder
import larder.parquet
import larder.torch
import numpy
import pyarrow
import pyarrow.parquet
import pytest
from conftest import Daemon

ROWS = 1000


def make_table(first: int = 0, count: int = ROWS) -> pyarrow.Table:
    """Columns of many types, with nulls. `id` says which row it is."""
    ids = range(first, first + count)
    kinds = pyarrow.array([f"kind {i % 5}" for i in ids]).dictionary_encode()
    berlin = pyarrow.timestamp("us", "Europe/Berlin")
    begin = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
    return pyarrow.table(
        {
            "id": pyarrow.array(ids, pyarrow.int64()),
            "text": pyarrow.array([None if i % 11 == 0 else f"row {i} " + "x" * (i % 40) for i in ids]),
            "image": pyarrow.array([bytes([i % 256]) * (50 + i % 100) for i in ids], pyarrow.binary()),
            "score": pyarrow.array([i / 7 for i in ids], pyarrow.float32()),
            "kind": kinds,
            "when": pyarrow.array([begin + datetime.timedelta(seconds=i) for i in ids], berlin),
            "tags": pyarrow.array([[f"t{j}" for j in range(i % 4)] for i in ids], pyarrow.list_(pyarrow.string())),
            "meta": pyarrow.array([{"width": i, "ok": i % 2 == 0} for i in ids]),
        }
    )


def write_pyarrow(directory: pathlib.Path, **options: Any) -> pyarrow.Table:
    directory.mkdir()
    table = make_table()
    pyarrow.parquet.write_table(table, directory / "t.parquet", row_group_size=150, **options)
    return table


def write_like_spark(directory: pathlib.Path) -> pyarrow.Table:
    """Many small files of snappy pages in version 1, no Arrow schema, checksums and markers beside them."""
    directory.mkdir()
    table = make_table()
    for i in range(8):
        name = f"part-{i:05}-7f0c-c000.snappy.parquet"
        part = table.slice(i * 125, 125)
        pyarrow.parquet.write_table(
            part, directory / name, compression="snappy", version="1.0", data_page_version="1.0", store_schema=False,
            use_deprecated_int96_timestamps=True,
        )  # fmt: skip
        (directory / f".{name}.crc").write_bytes(b"crc")
    (directory / "_SUCCESS").write_bytes(b"")
    (directory / "_metadata").write_bytes(b"not a table")
    return pyarrow.parquet.read_table(sorted(directory.glob("part-*.parquet"))[0].parent)


def write_duckdb(directory: pathlib.Path) -> pyarrow.Table:
    directory.mkdir()
    path = directory / "t.parquet"
    with duckdb.connect() as connection:
        connection.execute(
            "COPY (SELECT i AS id, 'row ' || i AS text, i / 7 AS score, [i, i + 1] AS tags, {'w': i} AS meta, "
            "CAST('2026-01-01' AS DATE) + CAST(i AS INTEGER) AS day, CAST(i AS DECIMAL(18, 2)) AS price "
            f"FROM range(10000) t(i)) TO '{path}' (FORMAT parquet, CODEC zstd, ROW_GROUP_SIZE 2048)"
        )
    return pyarrow.parquet.read_table(path)


WRITERS: dict[str, Callable[[pathlib.Path], pyarrow.Table]] = {
    "pyarrow": write_pyarrow,
    "pyarrow-zstd": lambda directory: write_pyarrow(directory, compression="zstd", data_page_version="2.0"),
    "pyarrow-plain": lambda directory: write_pyarrow(directory, compression="none", use_dictionary=False),
    "spark": write_like_spark,
    "duckdb": write_duckdb,
}

Tables = larder.parquet.Tables


def read(daemon: Daemon, name: str, tables: Tables | None = None, **options: Any) -> list[pyarrow.Table]:
    given = {"batch_size": 64, "decode_batch": tables or Tables(), "socket": daemon.socket} | options
    with larder.Loader(name, **given) as loader:
        return list(loader)


@pytest.mark.parametrize("writer", WRITERS)
def test_rows_are_those_that_pyarrow_reads(
    daemon: Daemon, add: Callable[..., str], tmp_path: pathlib.Path, writer: str
) -> None:
    expected = WRITERS[writer](tmp_path / "data")
    name = add(tmp_path / "data")
    assert ["format", "parquet"] in [line.split() for line in daemon.command("dataset", "info", name).splitlines()]
    in_order = read(daemon, name, shuffle=False)
    assert [len(table) for table in in_order[:-1]] == [64] * (len(in_order) - 1)
    assert pyarrow.concat_tables(in_order).combine_chunks().equals(expected.combine_chunks())
    shuffled = pyarrow.concat_tables(read(daemon, name, seed=3)).combine_chunks()
    assert shuffled["id"] != expected["id"]
    assert shuffled.sort_by("id").equals(expected.combine_chunks())


@pytest.mark.parametrize("block", ["sample", "64KiB", "object"])
def test_chosen_columns_alone_are_read(
    daemon: Daemon, add: Callable[..., str], tmp_path: pathlib.Path, block: str
) -> None:
    expected = write_pyarrow(tmp_path / "data")
    name = add(tmp_path / "data", "--columns", "image,score", "--block", block)
    assert "parquet, columns image,score" in daemon.command("dataset", "info", name)
    got = pyarrow.concat_tables(read(daemon, name, shuffle=False)).combine_chunks()
    assert got.equals(expected.select(["image", "score"]).combine_chunks())
    only = pyarrow.concat_tables(read(daemon, name, Tables(["score"]), shuffle=False)).combine_chunks()
    assert only.equals(expected.select(["score"]).combine_chunks())
    with pytest.raises(larder.InvalidArgument, match='no column "text"; it has image, score'):
        read(daemon, name, Tables(["text"]))
    with larder.Dataset(name, socket=daemon.socket) as dataset:
        file = pyarrow.parquet.read_metadata(tmp_path / "data" / "t.parquet")
        groups = [file.row_group(i) for i in range(file.num_row_groups)]
        chosen = sum(group.column(i).total_compressed_size for group in groups for i in (2, 3))
        if block == "object":
            assert dataset.total_bytes > chosen
        else:
            assert dataset.total_bytes == chosen, "nothing but the columns, which lie side by side"


def test_one_column_of_a_table_is_fetched_without_the_others(
    daemon: Daemon, add: Callable[..., str], tmp_path: pathlib.Path
) -> None:
    expected = write_like_spark(tmp_path / "data")
    name = add(tmp_path / "data", "--columns", "tags")
    assert pyarrow.concat_tables(read(daemon, name, shuffle=False)).combine_chunks().equals(
        expected.select(["tags"]).combine_chunks()
    )
    wrong = daemon.try_command("dataset", "add", "wrong", tmp_path / "data", "--columns", "tag")
    assert wrong.returncode != 0 and 'it has no column "tag"; its columns are id, text, image' in wrong.stderr


def test_row_is_a_dict_with_decode(daemon: Daemon, add: Callable[..., str], tmp_path: pathlib.Path) -> None:
    rows = write_pyarrow(tmp_path / "data").to_pylist()
    name = add(tmp_path / "data")
    with larder.Loader(name, batch_size=7, decode=larder.decode, socket=daemon.socket) as loader:
        for _ in range(2):
            seen = [row for batch in loader for row in batch]
            assert sorted(row["id"] for row in seen) == list(range(ROWS))
            assert all(row == rows[row["id"]] for row in seen)
    with larder.Dataset(name, decode=larder.decode, socket=daemon.socket) as dataset:
        assert len(dataset) == ROWS
        assert dataset.fetch([999, 0, 500, 0]) == [rows[999], rows[0], rows[500], rows[0]]
    with larder.Dataset(name, socket=daemon.socket) as plain:
        sample = plain[3]
        assert sample.key == "t.parquet" and sample.fields == {}
        with pytest.raises(KeyError, match="row of a table: larder.decode gives its columns"):
            sample["text"]
        assert Tables(["id"])(plain.fetch([999, 3, 500, 3]))["id"].to_pylist() == [999, 3, 500, 3]


def test_resumed_loader_gives_the_rows_that_are_left(
    daemon: Daemon, add: Callable[..., str], tmp_path: pathlib.Path
) -> None:
    write_pyarrow(tmp_path / "data")
    name = add(tmp_path / "data")

    def loader(rank: int = 0, world_size: int = 1) -> larder.Loader:
        return larder.Loader(
            name, batch_size=30, seed=9, shuffle_window_blocks=3, decode_batch=Tables(["id"]), rank=rank,
            world_size=world_size, socket=daemon.socket,
        )  # fmt: skip

    with loader() as whole:
        expected = [table["id"].to_pylist() for table in whole]
    with loader() as first:
        before = [table["id"].to_pylist() for table in itertools.islice(first, 11)]
        state = first.state_dict()
    with loader() as second:
        second.load_state_dict(state)
        after = [table["id"].to_pylist() for table in second]
    assert before + after == expected
    left: collections.Counter[int] = collections.Counter()
    for rank in range(2):
        with loader(rank, 2) as other:
            other.load_state_dict(state)
            left.update(i for table in other for i in table["id"].to_pylist())
    assert left == collections.Counter(itertools.chain.from_iterable(after))


def test_block_is_decoded_once_an_epoch(daemon: Daemon, add: Callable[..., str], tmp_path: pathlib.Path) -> None:
    write_pyarrow(tmp_path / "data")  # 7 row groups
    name = add(tmp_path / "data")
    tables = Tables()
    read(daemon, name, tables)
    assert tables.decoded_blocks == 7
    read(daemon, name, tables)
    assert tables.decoded_blocks == 14, "what all rows were taken of is not kept"
    small = Tables(memory=1)
    read(daemon, name, small)
    assert small.decoded_blocks > 7
    copy = pickle.loads(pickle.dumps(Tables(["id"], memory="2MiB")))
    assert copy.__reduce__()[1] == (["id"], "2MiB", True)


def test_torch_workers_make_tables(daemon: Daemon, add: Callable[..., str], tmp_path: pathlib.Path) -> None:
    write_pyarrow(tmp_path / "data")
    name = add(tmp_path / "data")

    def ids(table: Any) -> Any:
        return table["id"].to_numpy()

    tables = Tables(["id"])
    dataset = larder.torch.IterableDataset(
        name, batch_size=50, shuffle_window_blocks=2, decode_batch=lambda b: ids(tables(b)), socket=daemon.socket
    )
    loader = larder.torch.DataLoader(dataset, num_workers=2)
    for _ in range(2):
        assert sorted(numpy.concatenate(list(loader)).tolist()) == list(range(ROWS))
    rows = larder.torch.MapDataset(name, decode=larder.decode, socket=daemon.socket)
    assert [row["id"] for row in rows[[5, 999]]] == [5, 999]


def test_damaged_page_is_an_error_that_names_the_file(
    daemon: Daemon, add: Callable[..., str], tmp_path: pathlib.Path
) -> None:
    write_pyarrow(tmp_path / "data", compression="zstd")
    path = tmp_path / "data" / "t.parquet"
    data = bytearray(path.read_bytes())
    data[4:200] = b"\xff" * 196
    path.write_bytes(data)
    name = add(tmp_path / "data")
    with pytest.raises(larder.Corrupt, match="t.parquet: the rows cannot be decoded: "):
        read(daemon, name, shuffle=False)


def counted(rows: int) -> bytes:
    """A number of rows as it is in Parquet's footer: the head of an i64, and a varint of two bytes."""
    zigzag = 2 * rows
    return bytes([0x16, zigzag & 127 | 128, zigzag >> 7])


def test_footer_that_claims_other_rows_is_an_error(
    daemon: Daemon, add: Callable[..., str], tmp_path: pathlib.Path
) -> None:
    table = pyarrow.table({"id": pyarrow.array(range(7777), pyarrow.int64())})
    pyarrow.parquet.write_table(table, tmp_path / "t", use_dictionary=False, write_statistics=False, store_schema=False)
    data = (tmp_path / "t").read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    places = [found.start() for found in re.finditer(re.escape(counted(7777)), data)]
    of_file, *of_group = [place for place in places if place > footer]
    assert len(of_group) == 2, "the values of the column, and the rows"

    def claim(name: str, rows: int, places: list[int]) -> pathlib.Path:
        (tmp_path / name).mkdir()
        lie = bytearray(data)
        for place in places:
            lie[place : place + 3] = counted(rows)
        (tmp_path / name / "t.parquet").write_bytes(lie)
        return tmp_path / name

    for i, place in enumerate(of_group):
        wrong = daemon.try_command("dataset", "add", f"lie-{i}", claim(f"lie-{i}", 7770, [place]))
        assert wrong.returncode != 0 and "t.parquet: row group 0: " in wrong.stderr and "a column has " in wrong.stderr
    name = add(claim("more", 7790, [of_file, *of_group]))
    with pytest.raises(larder.Corrupt, match="t.parquet: a block has 7777 rows; the file's footer says 7790"):
        read(daemon, name, shuffle=False)


def test_files_that_arrow_types_differently_are_refused(
    daemon: Daemon, add: Callable[..., str], tmp_path: pathlib.Path
) -> None:
    numbers = range(50)

    def write(directory: str, name: str, kind: pyarrow.DataType, metadata: dict[str, str] | None = None) -> None:
        (tmp_path / directory).mkdir(exist_ok=True)
        table = pyarrow.table({"id": pyarrow.array(numbers), "took": pyarrow.array(numbers, kind)})
        pyarrow.parquet.write_table(table.replace_schema_metadata(metadata), tmp_path / directory / f"{name}.parquet")

    write("units", "a", pyarrow.duration("s"))
    write("units", "b", pyarrow.duration("ms"))
    wrong = daemon.try_command("dataset", "add", "units", tmp_path / "units")
    assert wrong.returncode != 0
    assert "b.parquet has another schema than a.parquet in Arrow's types, such as durations" in wrong.stderr
    # pandas says how many rows a file has.
    for name, metadata in (("a", {"pandas": "{" + "x" * 77 + "}"}), ("b", {"pandas": "{}"}), ("c", None)):
        write("pandas", name, pyarrow.duration("ms"), metadata)
    got = pyarrow.concat_tables(read(daemon, add(tmp_path / "pandas"), shuffle=False))
    assert got["took"].type == pyarrow.duration("ms") and len(got) == 150


def test_columns_with_dots_are_read_by_place(
    daemon: Daemon, add: Callable[..., str], tmp_path: pathlib.Path
) -> None:
    (tmp_path / "data").mkdir()
    struct = pyarrow.array([{"b": i, "c": {"d": [i, i]}} for i in range(100)])
    pairs = pyarrow.array([[(str(i), i)] for i in range(100)], pyarrow.map_(pyarrow.string(), pyarrow.int64()))
    kinds = pyarrow.array([f"kind {i % 5}" for i in range(100)]).dictionary_encode()
    table = pyarrow.table(
        {"m": pairs, "a": struct, "a.b": pyarrow.array(range(1000, 1100)), "k": kinds, "a.c.d": [2.5] * 100}
    )
    pyarrow.parquet.write_table(table, tmp_path / "data" / "t.parquet")
    whole = add(tmp_path / "data")
    for columns in (["a"], ["a.b"], ["a.c.d", "m"], ["k", "a"]):
        got = pyarrow.concat_tables(read(daemon, whole, Tables(columns), shuffle=False)).combine_chunks()
        assert got.equals(table.select(columns))
    chosen = add(tmp_path / "data", "--columns", "a")
    assert pyarrow.concat_tables(read(daemon, chosen, shuffle=False)).combine_chunks().equals(table.select(["a"]))


def test_columns_that_cannot_be_named_are_refused(daemon: Daemon, tmp_path: pathlib.Path) -> None:
    (tmp_path / "data").mkdir()
    numbers = pyarrow.array(range(9))
    twice = pyarrow.Table.from_arrays([numbers, numbers, numbers], names=["a", "b", "a"])
    pyarrow.parquet.write_table(twice, tmp_path / "data" / "t.parquet")
    wrong = daemon.try_command("dataset", "add", "twice", tmp_path / "data")
    assert wrong.returncode != 0 and 't.parquet: it has more than one column "a"' in wrong.stderr
    daemon.command("dataset", "add", "once", tmp_path / "data", "--columns", "b", "--quota-memory", "16MiB")
    try:
        assert sum(len(table) for table in read(daemon, "once")) == 9
    finally:
        daemon.command("dataset", "rm", "once")
    with pytest.raises(larder.InvalidArgument, match="columns is empty"):
        Tables([])


def test_commands_that_need_bytes_of_samples_say_why_not(
    daemon: Daemon, add: Callable[..., str], tmp_path: pathlib.Path
) -> None:
    write_pyarrow(tmp_path / "data")
    name = add(tmp_path / "data")
    cat = daemon.try_command("cat", name, "0")
    assert cat.returncode != 0 and "rows of tables, which have no bytes of their own" in cat.stderr
    pack = daemon.try_command("dataset", "pack", tmp_path / "data", tmp_path / "packed", "--format", "larder")
    assert pack.returncode != 0 and "rows of tables, which are not packed" in pack.stderr
    assert "t.parquet" in daemon.command("dataset", "ls-samples", name, "--count", "2")


def test_page_of_the_docs_runs(
    daemon: Daemon, add: Callable[..., str], tmp_path: pathlib.Path, repository: pathlib.Path, larder_bin: pathlib.Path
) -> None:
    numbers = {"price": numpy.arange(9000, dtype="float32"), "clicks": numpy.arange(9000)}
    pictures = {"image": [b"png"] * 9, "label": range(9), "url": ["http://a"] * 9}
    for name, columns in (("clicks", numbers), ("pictures", pictures)):
        (tmp_path / name).mkdir()
        pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / name / "0.parquet")
    shutil.copytree(repository / "tests" / "data" / "formats" / "litdata_rows", tmp_path / "reviews-litdata")
    text = (repository / "docs" / "parquet.md").read_text()
    commands = re.findall(r"^    (larder .*)$", text, re.MULTILINE)
    assert len(commands) == 3
    environment = os.environ | {
        "PATH": f"{larder_bin}:{os.environ['PATH']}", "LARDER_ADMIN_SOCKET": str(daemon.state / "admin.sock"),
        "LARDER_SOCKET": daemon.socket,
    }  # fmt: skip
    try:
        for command in commands:
            local = command.replace("/data/", f"{tmp_path}/").replace("256MiB", "16MiB")
            subprocess.run(local, shell=True, env=environment, check=True)
        examples = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        assert len(examples) == 2
        check = 'assert sum(len(batch["price"]) for batch in loader) == 9000'
        program = "\n".join([*examples, check])
        ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
    finally:
        for name in ("clicks", "pictures", "reviews"):
            daemon.try_command("dataset", "rm", name)


def test_decode_batch_stands_alone(daemon: Daemon, add: Callable[..., str], tmp_path: pathlib.Path) -> None:
    write_pyarrow(tmp_path / "data")
    name = add(tmp_path / "data")
    with pytest.raises(larder.InvalidArgument, match="give decode_batch or transform, not both"):
        larder.Loader(name, decode_batch=len, transform=len, socket=daemon.socket)
    for kind in (larder.Loader, larder.torch.IterableDataset):
        with pytest.raises(larder.InvalidArgument, match='give decode_batch or decode_errors="skip", not both'):
            kind(name, decode_batch=len, decode_errors="skip", socket=daemon.socket)
    assert read(daemon, name, batch_size=300, decode_batch=len) == [300, 300, 300, 100]


def test_decode_batch_cannot_end_the_epoch(daemon: Daemon, add: Callable[..., str], tmp_path: pathlib.Path) -> None:
    write_pyarrow(tmp_path / "data")
    name = add(tmp_path / "data")

    def decode_batch(batch: larder.Batch) -> Any:
        return next(iter([]))

    with larder.Loader(name, decode_batch=decode_batch, socket=daemon.socket) as loader:
        batches = iter(loader)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="decode_batch raised StopIteration"):
                next(batches)
    dataset = larder.torch.IterableDataset(name, decode_batch=decode_batch, socket=daemon.socket)
    with pytest.raises(RuntimeError, match="decode_batch raised StopIteration"):
        list(larder.torch.DataLoader(dataset))
