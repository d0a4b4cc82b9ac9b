"""LitData's rows of tables, which its optimize() writes if pyarrow is installed, read through a real daemon: every row
comes once, as LitData reads it. The files are in tests/data/formats."""

from __future__ import annotations

import collections
import functools
import json
import pathlib
import shutil
import struct
from collections.abc import Callable
from typing import Any

import larder
import larder.parquet
import larder.torch
import pyarrow
import pytest
from format_cases import BLOCKS, DATA, MODES, generate, same
from larder import parquet

CASES = ["litdata_rows", "litdata_rows_zstd"]


@functools.cache
def chunk_keys(case: str) -> dict[str, list[str]]:
    """The columns of each chunk: LitData gives a row all of those that any row of its chunk has."""
    columns = {}
    first = 0
    for chunk in json.loads((DATA / case / "index.json").read_text())["chunks"]:
        rows = [generate.table_row(i) for i in range(first, first + chunk["chunk_size"])]
        columns[chunk["filename"]] = list(dict.fromkeys(key for row in rows for key in row))
        first += chunk["chunk_size"]
    return columns


def with_chunk(sample: Any) -> tuple[str, dict[str, Any]]:
    return sample.key, larder.decode(sample)


def check_row(chunk: str, row: dict[str, Any], case: str) -> int:
    written = generate.table_row(row["id"])
    expected = {key: written.get(key) for key in chunk_keys(case)[chunk]}
    assert same(row, expected), f"{row} instead of {expected}"
    return row["id"]


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("case", CASES)
def test_rows_are_those_that_litdata_reads(daemon: Any, add: Callable[..., str], case: str, block: str) -> None:
    assert ["late" in keys for keys in chunk_keys(case).values()][:2] == [False, True]
    name = add(DATA / case, "--block", block)
    assert ["format", "litdata"] in [line.split() for line in daemon.command("dataset", "info", name).splitlines()]
    for mode in MODES:
        with larder.Loader(name, socket=daemon.socket, batch_size=7, decode=with_chunk, **mode) as loader:
            for _ in range(2):  # from the remote, then from the cache
                seen = [check_row(*row, case) for batch in loader for row in batch]
                assert collections.Counter(seen) == dict.fromkeys(range(generate.ROWS), 1)
                assert mode["shuffle"] or seen == sorted(seen)


@pytest.mark.parametrize(("block", "blocks"), [("sample", 4), ("1MiB", 3), ("object", 3)])
def test_blocks_are_batches_of_rows(daemon: Any, add: Callable[..., str], block: str, blocks: int) -> None:
    name = add(DATA / "litdata_rows", "--block", block)
    info = [line.split() for line in daemon.command("dataset", "info", name).splitlines()]
    assert next(line[1] for line in info if line[:1] == ["blocks"]) == str(blocks)


def test_batches_become_tables(daemon: Any, add: Callable[..., str]) -> None:
    name = add(DATA / "litdata_rows")
    tables = larder.parquet.Tables()
    with larder.Loader(name, socket=daemon.socket, batch_size=100, seed=1, decode_batch=tables) as loader:
        rows = [row for table in loader for row in table.to_pylist()]
    assert tables.decoded_blocks == 4
    assert sorted(row["id"] for row in rows) == list(range(generate.ROWS))
    for row in rows:
        written = generate.table_row(row["id"])
        assert row.pop("late", None) == written.pop("late", None)
        assert row == written


def test_chosen_columns_are_null_where_a_chunk_lacks_them(daemon: Any, add: Callable[..., str]) -> None:
    name = add(DATA / "litdata_rows")
    options: dict[str, Any] = {"socket": daemon.socket, "shuffle": False, "batch_size": generate.ROWS}
    with larder.Loader(name, decode_batch=larder.parquet.Tables(["late", "id"]), **options) as loader:
        with pytest.raises(larder.InvalidArgument, match='no column "late"'):  # the first chunk and the index lack it
            next(iter(loader))
    with larder.Loader(name, decode_batch=larder.parquet.Tables(["text", "id"]), **options) as loader:
        table = next(iter(loader))
    assert table.column_names == ["text", "id"]
    assert table["id"].to_pylist() == list(range(generate.ROWS))


def test_rows_are_read_by_index_and_in_workers(daemon: Any, add: Callable[..., str]) -> None:
    name = add(DATA / "litdata_rows_zstd")
    with larder.Dataset(name, socket=daemon.socket, decode=larder.decode) as dataset:
        assert [row["id"] for row in dataset.fetch([639, 0, 300])] == [639, 0, 300]
        assert same(dataset[639], generate.table_row(639))
    with larder.Dataset(name, socket=daemon.socket) as dataset:
        with pytest.raises(KeyError, match="row of a table: larder.decode gives its columns"):
            dataset[0]["text"]
    dataset = larder.torch.IterableDataset(name, socket=daemon.socket, batch_size=50, decode=larder.decode)
    loader = larder.torch.DataLoader(dataset, num_workers=2)
    assert sorted(row["id"] for batch in loader for row in batch) == list(range(generate.ROWS))


def test_rows_are_neither_printed_nor_packed(daemon: Any, add: Callable[..., str], tmp_path: pathlib.Path) -> None:
    name = add(DATA / "litdata_rows")
    says = daemon.try_command("cat", name, "0").stderr
    assert "has rows of tables" in says and "larder.decode" in says
    packed = daemon.try_command("dataset", "pack", DATA / "litdata_rows", tmp_path / "out", "--format", "larder")
    assert "rows of tables, which are not packed" in packed.stderr


def refused(daemon: Any, root: pathlib.Path) -> str:
    added = daemon.try_command("dataset", "add", "refused", f"file://{root}")
    assert added.returncode != 0
    return added.stderr


def test_damaged_chunks_are_refused_with_their_name(daemon: Any, tmp_path: pathlib.Path) -> None:
    root = tmp_path / "data"
    shutil.copytree(DATA / "litdata_rows", root)
    victim = root / "chunk-0-1.bin"
    good = victim.read_bytes()
    begin = len(good) - 12 - struct.unpack("<I", good[-12:-8])[0]
    footer_bytes = struct.unpack("<i", good[-22:-18])[0]

    def says(bad: bytes) -> str:
        victim.write_bytes(bad)
        return refused(daemon, root)

    assert "chunk-0-1.bin: it does not end in an Arrow table" in says(good[:-1])
    assert "chunk-0-1.bin: at offset 0: it holds 201 samples, but its index says 200" in says(b"\xc9" + good[1:])
    for lying in (len(good), 5):
        bad = good[:-12] + struct.pack("<I", lying) + good[-8:]
        assert f"chunk-0-1.bin: at offset {len(good) - 12}: a chunk of {len(good)} bytes" in says(bad)
    in_table = f"chunk-0-1.bin: its Arrow file, which begins at {begin}: at offset"
    assert in_table in says(good[:-13] + b"\0" + good[-12:])  # the magic
    assert in_table in says(good[:-22] + struct.pack("<i", footer_bytes + len(good)) + good[-18:])
    assert in_table in says(good[:begin] + good[begin:].replace(b"\xff\xff\xff\xff", b"\0\0\0\0", 1))  # the schema
    first_batch = 16 + struct.unpack("<i", good[begin + 12 : begin + 16])[0]
    place = good.index(struct.pack("<Q", first_batch), len(good) - 22 - footer_bytes)
    for offset in (0, first_batch + 1, len(good) // 8 * 8, 1 << 63):
        assert in_table in says(good[:place] + struct.pack("<Q", offset) + good[place + 8 :])


def test_batch_that_arrow_refuses_names_its_file(daemon: Any, add: Callable[..., str], tmp_path: pathlib.Path) -> None:
    root = tmp_path / "data"
    shutil.copytree(DATA / "litdata_rows", root)
    victim = root / "chunk-0-1.bin"
    data = bytearray(victim.read_bytes())
    text = data.index("sample 331: ".encode())
    ends = data.rindex(struct.pack("<II", 0, len(generate.table_row(331)["text"].encode())), 0, text)
    data[ends + 4 : ends + 8] = struct.pack("<I", 1 << 30)  # the first text ends far outside
    victim.write_bytes(data)
    name = add(root)
    with larder.Loader(name, socket=daemon.socket, batch_size=10, shuffle=False, decode=larder.decode) as loader:
        with pytest.raises(larder.DecodeError, match="Corrupt: chunk-0-1.bin: the rows cannot be decoded"):
            for _ in loader:
                pass


def test_chunk_with_fewer_rows_than_its_index_says_is_refused(
    daemon: Any, add: Callable[..., str], tmp_path: pathlib.Path
) -> None:
    root = tmp_path / "data"
    shutil.copytree(DATA / "litdata_rows", root)
    index = root / "index.json"
    index.write_text(index.read_text().replace('"chunk_size": 200', '"chunk_size": 199'))
    chunk = root / "chunk-0-1.bin"
    chunk.write_bytes(struct.pack("<I", 199) + chunk.read_bytes()[4:])
    name = add(root)
    with larder.Dataset(name, socket=daemon.socket, decode=larder.decode) as dataset:
        assert len(dataset) == 639 and dataset[330]["id"] == 330
        with pytest.raises(larder.DecodeError, match="chunk-0-1.bin: a block has 200 rows; its index says 199"):
            dataset[331]


@pytest.mark.parametrize(("version", "safe"), [("14.0.0", False), ("9.0.0", False), ("14.0.1", True), ("26.0.1", True)])
def test_pyarrow_that_runs_code_of_files_is_refused(version: str, safe: bool) -> None:
    assert parquet._is_safe(version) is safe
    assert parquet._is_safe(pyarrow.__version__)
