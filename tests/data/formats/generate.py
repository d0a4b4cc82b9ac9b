#!/usr/bin/python3
"""generate.py DIRECTORY [NAME...]: how the fixtures beside this file were made, each by its format's own writer.

Run it once, in a virtual environment with these packages. Install them with --no-deps if they would bring others (torch
is Debian's python3-torch):

    mosaicml-streaming 0.13.0, litdata 0.2.40, tfrecord 1.14.6, megatron-core 0.16.1,
    lightning_utilities 0.15.3, zstd, zstandard, protobuf, crc32c, tqdm, xxhash, psutil, filelock, Pillow, NumPy

litdata 0.2.76 wrote litdata_new, litdata_new_zstd, litdata_new_frames, litdata_json, litdata_arrow, litdata_rows and
litdata_rows_zstd. pyarrow was installed for the last three (17.0.0, then 26.0.1), which changes what is written. The
last two need torch 2, boto3 and obstore, since litdata.optimize() wrote them (StandIns cannot be imported by its
workers). array_record 0.8.6 wrote array_record, array_record_groups, array_record_plain and
array_record_brotli. The tests need none of these packages. Modules that the
writers' packages import and these fixtures do not use are replaced by empty modules. TFRecords are written twice: by
the package tfrecord, and by TensorFlow (tensorflow-cpu 2.21.0), which defines the format and is too large for the tests
to install. WebDataset's writer is so small that the tests run it themselves (tests/python/test_webdataset_writer.py).
The functions that make a sample define what was written; the tests compare with them.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import pathlib
import sys
import types
import unittest.mock
from typing import Any

import numpy

SAMPLES = 60


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Provides empty modules for these packages if they are not installed: cloud clients, model zoos, codecs."""

    NAMES = (
        "alipcs", "azure", "boto3", "botocore", "brotli", "datasets", "google", "lightning_sdk", "multistorageclient",
        "obstore", "oci", "paramiko", "pytorch_lightning", "snappy", "tifffile", "torchvision", "transformers",
    )  # fmt: skip

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name.split(".")[0] not in self.NAMES:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return unittest.mock.MagicMock(name=spec.name, spec_set=None)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def skip_init(*names: str) -> None:
    """Lets packages be imported without their __init__, which imports far more than their writer needs."""
    for name in names:
        spec = importlib.machinery.PathFinder.find_spec(
            name.rpartition(".")[2], sys.modules[name.rpartition(".")[0]].__path__ if "." in name else None
        )
        assert spec is not None and spec.submodule_search_locations, name
        package = types.ModuleType(name)
        package.__path__ = list(spec.submodule_search_locations)
        sys.modules[name] = package


def text_of(i: int) -> str:
    return f"sample {i}: " + "é∂ß"[: i % 4] + "x" * (i * 7 % 50)


def draw(i: int) -> numpy.random.Generator:
    return numpy.random.default_rng(i)


# --- MDS

MDS_COLUMNS = {
    "id": "int", "text": "str", "raw": "bytes", "meta": "json", "small": "uint16", "half": "float16",
    "exact": "str_decimal", "big": "str_int", "any": "ndarray", "typed": "ndarray:float32",
    "fixed": "ndarray:int32:2,3", "image": "pil", "photo": "png",
}  # fmt: skip


def mds_sample(i: int) -> dict[str, Any]:
    import decimal

    import PIL.Image

    random = draw(i)
    pixels = random.integers(0, 256, (4, 3 + i % 3, 3), "uint8")
    return {
        "id": i * 1_000_003 - 5,
        "text": text_of(i),
        "raw": random.bytes(i * 13 % 300),
        "meta": {"i": i, "tags": ["a", None, 1.5]},
        "small": numpy.uint16(i * 1000 % 65536),
        "half": numpy.float16(i / 7),
        "exact": decimal.Decimal(f"{i}.25"),
        "big": 10**30 + i,
        "any": random.integers(-9, 9, (1 + i % 2, 300 if i == 3 else 2), "int64"),
        "typed": random.random((2, 1 + i % 4), "float32"),
        "fixed": random.integers(-100, 100, (2, 3), "int32"),
        "image": PIL.Image.fromarray(pixels),
        "photo": PIL.Image.fromarray(pixels),
    }


def write_mds(out: pathlib.Path, samples: range, **options: Any) -> None:
    if "streaming" not in sys.modules:
        skip_init("streaming", "streaming.base", "streaming.base.format")
    from streaming.base.format.mds.writer import MDSWriter

    with MDSWriter(out=str(out), columns=MDS_COLUMNS, size_limit=8192, **options) as writer:
        for i in samples:
            writer.write(mds_sample(i))


# --- LitData


def litdata_sample(i: int) -> dict[str, Any]:
    import torch

    random = draw(i)
    return {
        "id": i - 7,
        "score": i / 3,
        "good": i % 3 == 0,
        "name": text_of(i),
        "raw": random.bytes(i * 11 % 200),
        "pair": (i, [f"{i}", 2.5]),
        "vector": torch.arange(i % 5 + 1),
        "matrix": torch.ones(2, i % 3 + 1) * i,
        "row": random.integers(0, 99, i % 4 + 1, "uint16"),
        "table": random.random((2, 2)),
    }


def litdata_writer(out: pathlib.Path, **options: Any) -> Any:
    from litdata.streaming.writer import BinaryWriter

    out.mkdir(parents=True)
    return BinaryWriter(str(out), **options)


def write_litdata(out: pathlib.Path, **options: Any) -> None:
    writer = litdata_writer(out, chunk_bytes=6000, **options)
    for i in range(SAMPLES):
        writer[i] = litdata_sample(i)
    writer.done()
    writer.merge()


def json_sample(i: int) -> dict[str, Any]:
    """Lists of each kind that LitData's compact form has, and lists that LitData writes as JSON."""
    lists: list[list[Any]] = [
        [None], [i, -i], [i / 7, 0.5], [i % 2 == 0, True], [text_of(i), "a"], [], [1, "mixed", None], [{"k": {"n": [i]}}],
        [{"a": i, "b": "x", "c": None}, {"a": 1.5, "b": True, "c": "y"}],
    ]  # fmt: skip
    return {"id": i, "value": lists[i % len(lists)], "more": lists[(i + 4) % len(lists)]}


def write_litdata_json(out: pathlib.Path) -> None:
    writer = litdata_writer(out, chunk_bytes=6000)
    for i in range(SAMPLES):
        writer[i] = json_sample(i)
    writer.done()
    writer.merge()


def write_litdata_rows(out: pathlib.Path) -> None:
    """Leaves the layout to the writer. It depends on whether pyarrow is installed."""
    writer = litdata_writer(out, chunk_bytes=6000)
    for i in range(SAMPLES):
        writer[i] = {"id": i, "text": text_of(i)}
    writer.done()
    writer.merge()


ROWS = 640  # more than the 256 of a batch in one chunk, and several chunks


def table_row(i: int) -> dict[str, Any]:
    """Rows of which some lack what others have: LitData infers a schema for each chunk."""
    row: dict[str, Any] = {
        "id": i,
        "text": text_of(i)[:20],
        "score": None if i % 7 == 0 else i / 3,
        "raw": draw(i).bytes(i % 5),
        "tags": [f"{j}" for j in range(i % 3)],
        "meta": {"width": i, "note": None if i < 600 else "late"},
    }
    if i >= 500:
        row["late"] = i % 2 == 0
    return row


def write_litdata_optimized(out: pathlib.Path, **options: Any) -> None:
    import litdata

    litdata.optimize(table_row, list(range(ROWS)), str(out), chunk_bytes="15KB", num_workers=1, **options)


def document(i: int) -> numpy.ndarray:
    return draw(i).integers(0, 50_000, i * 37 % 211 + 1, "int32")


def write_litdata_tokens(out: pathlib.Path) -> None:
    import torch

    from litdata.streaming.item_loader import TokensLoader

    writer = litdata_writer(out, chunk_bytes=6000, item_loader=TokensLoader())
    for i in range(SAMPLES):
        writer[i] = torch.from_numpy(document(i))
    writer.done()
    writer.merge()


# --- TFRecord


def write_tfrecord(out: pathlib.Path) -> None:
    from tfrecord.writer import TFRecordWriter

    out.mkdir()
    for part in range(3):
        writer = TFRecordWriter(str(out / f"train-{part:05}-of-00003.tfrecord"))
        for i in range(part * 20, part * 20 + 20):
            random = draw(i)
            example = {
                "id": (i - 30, "int"),
                "many": ([-1, 2**62, i], "int"),
                "score": ([i / 4, -1.5], "float"),
                "text": (text_of(i).encode(), "byte"),
                "raw": ([random.bytes(i * 17 % 400), b""], "byte"),
            }
            if i % 20 == 19:
                lists = {"frames": ([[i, 1], [2]], "int"), "names": ([[b"a"], [b"b", b"c"]], "byte")}
                writer.write(example, lists)
            else:
                writer.write(example)
        writer.close()


def tensorflow_records() -> list[bytes]:
    from tensorflow import train

    def whole(*values: int) -> train.Feature:
        return train.Feature(int64_list=train.Int64List(value=values))

    def text(*values: bytes) -> train.Feature:
        return train.Feature(bytes_list=train.BytesList(value=values))

    records = []
    for i in range(SAMPLES):
        features = train.Features(
            feature={
                "id": whole(i - 30),
                "many": whole(-1, 2**62, i),
                "score": train.Feature(float_list=train.FloatList(value=[i / 4, -1.5])),
                "text": text(text_of(i).encode()),
                "raw": text(draw(i).bytes(i * 17 % 400), b""),
            }
        )
        if i % 20 == 19:
            lists = {"frames": [whole(i, 1), whole(2)], "names": [text(b"a"), text(b"b", b"c")]}
            feature_lists = {name: train.FeatureList(feature=steps) for name, steps in lists.items()}
            example = train.SequenceExample(context=features, feature_lists=train.FeatureLists(feature_list=feature_lists))
        else:
            example = train.Example(features=features)
        records.append(example.SerializeToString())
    return records


def write_tensorflow(out: pathlib.Path, compression: str = "") -> None:
    import tensorflow

    out.mkdir()
    records = tensorflow_records()
    for part in range(3):
        name = str(out / f"train-{part:05}-of-00003.tfrecord")
        with tensorflow.io.TFRecordWriter(name, tensorflow.io.TFRecordOptions(compression)) as writer:
            for record in records[part * 20 : part * 20 + 20]:
                writer.write(record)


# --- ArrayRecord


def array_record(i: int) -> bytes:
    return b"record %d " % i + draw(i).bytes(i * 29 % 300) + b"x" * 40


def write_array_record(out: pathlib.Path, options: str) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    out.mkdir()
    for part in range(2):
        writer = ArrayRecordWriter(str(out / f"train.array_record-{part:05}-of-00002"), options)
        for i in range(part * 30, part * 30 + 30):
            writer.write(array_record(i))
        writer.close()


# --- Megatron


def write_megatron(out: pathlib.Path, dtype: type) -> None:
    if "megatron" not in sys.modules:
        skip_init("megatron", "megatron.core", "megatron.core.datasets")
        for name in ("megatron.core.datasets.object_storage_utils", "megatron.core.utils", "megatron.core.msc_utils"):
            sys.modules[name] = unittest.mock.MagicMock()
    sys.modules["megatron.core.msc_utils"].MultiStorageClientFeature.is_enabled = lambda: False
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    out.mkdir(parents=True)
    import torch

    for part in range(2):
        builder = IndexedDatasetBuilder(str(out / f"part{part}.bin"), dtype=dtype)
        for i in range(part * 30, part * 30 + 30):
            # Every fifth document has two sequences.
            tokens = document(i) % (60_000 if dtype is numpy.uint16 else 2**31)
            cut = len(tokens) // 2 if i % 5 == 0 else len(tokens)
            for piece in filter(len, (tokens[:cut], tokens[cut:])):
                builder.add_item(torch.from_numpy(piece.astype("int64")))
            builder.end_document()
        builder.finalize(str(out / f"part{part}.idx"))


FIXTURES = {
    "mds": lambda out: write_mds(out, range(SAMPLES)),
    "mds_zstd": lambda out: write_mds(out, range(SAMPLES), compression="zstd:3"),
    "mds_streams": lambda out: (
        write_mds(out / "a", range(0, 20)),
        write_mds(out / "b", range(20, SAMPLES), compression="zstd"),
    ),
    "litdata": write_litdata,
    "litdata_zstd": lambda out: write_litdata(out, compression="zstd"),
    "litdata_tokens": write_litdata_tokens,
    "tfrecord": write_tfrecord,
    "megatron_int32": lambda out: write_megatron(out, numpy.int32),
    "megatron_uint16": lambda out: write_megatron(out, numpy.uint16),
}
NEW_FIXTURES = {
    "litdata_new": write_litdata,
    "litdata_new_zstd": lambda out: write_litdata(out, compression="zstd", compression_level="chunk"),
    "litdata_new_frames": lambda out: write_litdata(out, compression="zstd", compression_batch_size=8),
    "litdata_json": write_litdata_json,
    "litdata_arrow": write_litdata_rows,
    "litdata_rows": write_litdata_optimized,
    "litdata_rows_zstd": lambda out: write_litdata_optimized(out, compression="zstd"),
    "tfrecord_tensorflow": write_tensorflow,
    "array_record": lambda out: write_array_record(out, "group_size:1"),  # the default of array_record 0.8.6
    "array_record_groups": lambda out: write_array_record(out, "group_size:7"),
    "array_record_plain": lambda out: write_array_record(out, "group_size:7,uncompressed"),
    "array_record_brotli": lambda out: write_array_record(out, "group_size:7,brotli"),
    "tfrecord_tensorflow_gzip": lambda out: write_tensorflow(out, "GZIP"),
    "tfrecord_tensorflow_zlib": lambda out: write_tensorflow(out, "ZLIB"),
}


def main(out: pathlib.Path, names: list[str]) -> None:
    sys.meta_path.append(StandIns())
    if importlib.util.find_spec("torch"):
        import torch

        if not hasattr(torch, "uint16"):
            torch.uint16 = "uint16"  # for newer writers, which only name it
    for name in names or FIXTURES:
        (FIXTURES | NEW_FIXTURES)[name](out / name)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2:])
