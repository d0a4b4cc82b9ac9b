"""The fixtures in tests/data/formats: what each writer was given, and how to identify a sample that was read."""

from __future__ import annotations

import importlib.util
import io
import pathlib
import types
from collections.abc import Callable
from typing import Any

import numpy
import PIL.Image

DATA = pathlib.Path(__file__).resolve().parent.parent / "data" / "formats"


def load_generator() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("generate_formats", DATA / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generate = load_generator()


def same(value: Any, expected: Any) -> bool:
    """True if the two are equal in type, dtype, shape and every value."""
    if isinstance(expected, PIL.Image.Image):
        if isinstance(value, bytes):
            value = PIL.Image.open(io.BytesIO(value))
        return value.mode == expected.mode and value.size == expected.size and value.tobytes() == expected.tobytes()
    if hasattr(expected, "numpy"):
        expected = expected.numpy()
    if isinstance(expected, numpy.ndarray):
        return value.dtype == expected.dtype and value.shape == expected.shape and bool((value == expected).all())
    if isinstance(expected, dict):
        return list(value) == list(expected) and all(same(value[key], expected[key]) for key in expected)
    if isinstance(expected, (list, tuple)):
        return type(value) is type(expected) and len(value) == len(expected) and all(map(same, value, expected))
    return type(value) is type(expected) and value == expected


def tfrecord_sample(i: int) -> Any:
    random = generate.draw(i)
    raw = random.bytes(i * 17 % 400)
    features = {
        "id": numpy.array([i - 30]),
        "many": numpy.array([-1, 2**62, i]),
        "score": numpy.array([i / 4, -1.5], "float32"),
        "text": [generate.text_of(i).encode()],
        "raw": [raw, b""],
    }
    if i % 20 != 19:
        return features
    lists = {"frames": [numpy.array([i, 1]), numpy.array([2])], "names": [[b"a"], [b"b", b"c"]]}
    return {"context": features, "feature_lists": lists}


def array_sample(i: int) -> dict[str, bytes]:
    return {"record": generate.array_record(i)}


def array_number(value: dict[str, bytes]) -> int:
    return int(value["record"].split(b" ", 2)[1])


def with_sorted_keys(value: Any) -> Any:
    """Sorts dictionaries by key, because Protobuf's maps and MDS's columns have no order."""
    if isinstance(value, dict):
        return {key: with_sorted_keys(value[key]) for key in sorted(value)}
    return value


# Maps each fixture to its format, the writer's sample `i`, and how to find `i` from the sample that was read.
CASES: dict[str, tuple[str, Callable[[int], Any], Callable[[Any], int]]] = {
    "mds": ("mds", generate.mds_sample, lambda value: (value["id"] + 5) // 1_000_003),
    "mds_zstd": ("mds", generate.mds_sample, lambda value: (value["id"] + 5) // 1_000_003),
    "mds_streams": ("mds", generate.mds_sample, lambda value: (value["id"] + 5) // 1_000_003),
    "litdata": ("litdata", generate.litdata_sample, lambda value: value["id"] + 7),
    "litdata_zstd": ("litdata", generate.litdata_sample, lambda value: value["id"] + 7),
    "litdata_new": ("litdata", generate.litdata_sample, lambda value: value["id"] + 7),
    "litdata_new_zstd": ("litdata", generate.litdata_sample, lambda value: value["id"] + 7),
    "litdata_new_frames": ("litdata", generate.litdata_sample, lambda value: value["id"] + 7),
    "litdata_json": ("litdata", generate.json_sample, lambda value: value["id"]),
    "litdata_arrow": ("litdata", lambda i: {"id": i, "text": generate.text_of(i)}, lambda value: value["id"]),
    "array_record": ("array_record", array_sample, array_number),
    "array_record_groups": ("array_record", array_sample, array_number),
    "array_record_plain": ("array_record", array_sample, array_number),
    "tfrecord": ("tfrecord", tfrecord_sample, lambda value: int(value.get("context", value)["id"][0]) + 30),
    "tfrecord_tensorflow": ("tfrecord", tfrecord_sample, lambda value: int(value.get("context", value)["id"][0]) + 30),
}
MODES = [
    {"shuffle": False},
    {"shuffle": True, "seed": 1},
    {"shuffle": True, "seed": 2, "shuffle_window_blocks": 1},
    {"shuffle": True, "seed": 3, "shuffle_window_blocks": 3},
]
BLOCKS = ["sample", "2KiB", "object"]


def check(value: Any, case: str) -> int:
    """Compares a value that was read with the writer's sample, and returns the sample's number."""
    _, sample_of, number_of = CASES[case]
    number = number_of(value)
    assert same(with_sorted_keys(value), with_sorted_keys(sample_of(number))), f"sample {number}: {value}"
    return number
