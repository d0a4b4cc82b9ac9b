"""LitData's own encodings, and the tree that the leaves of a sample form.

`unflatten` reads the data_spec of LitData's index.json: [version, node]. A node is {"type", "context",
"children_spec"}; a leaf is a node without a type. Leaves are in the order of the tree.
"""

from __future__ import annotations

import functools
import json
import math
import struct
from collections.abc import Callable, Iterator
from typing import Any

from larder.errors import Corrupt, Unsupported

# Dtypes by LitData's numbers: those of torch, of which some have several numbers, and those of NumPy.
_TORCH_DTYPES = {
    0: "float32", 1: "float32", 2: "float64", 3: "float64", 4: "complex64", 5: "complex64", 6: "complex128",
    7: "complex128", 8: "float16", 9: "float16", 11: "uint8", 12: "int8", 13: "int16", 14: "int16", 15: "int32",
    16: "int32", 17: "int64", 18: "int64", 19: "bool", 20: "uint16",
}  # fmt: skip
_NUMPY_DTYPES = (
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "complex64", "complex128", "bool",
)  # fmt: skip

Decoder = Callable[[memoryview], Any]


def decoder(kind: str, rest: str) -> Decoder | None:
    """The decoder of a LitData leaf, or None if the encoding is not LitData's. Tensors become NumPy arrays."""
    if kind == "no_header_tensor":
        dtype = _torch_dtype(int(rest))
        return lambda view: _array(view, dtype, (-1,))
    if kind == "no_header_numpy":
        numpy_dtype = _numpy_dtype(int(rest))
        return lambda view: _array(view, numpy_dtype, (-1,))
    return {"tensor": _tensor, "numpy": _numpy, "jpeg_array": _images}.get(kind)


def unflatten(structure: str, leaves: list[Any]) -> Any:
    """The tree with these leaves."""
    build, count = _tree(structure)
    if count != len(leaves):
        raise Corrupt(f"the tree of a sample has {count} leaves, but the sample {len(leaves)}")
    return build(iter(leaves))


@functools.lru_cache(maxsize=64)
def _tree(structure: str) -> tuple[Callable[[Iterator[Any]], Any], int]:
    spec = json.loads(structure)
    if not isinstance(spec, list) or len(spec) != 2:
        raise Unsupported("LitData's data_spec does not have the known form [version, tree]")
    return _node(spec[1])


def _node(node: dict[str, Any]) -> tuple[Callable[[Iterator[Any]], Any], int]:
    kind = node["type"]
    if kind is None:
        return next, 1
    children = [_node(child) for child in node["children_spec"]]
    builders = [build for build, _ in children]
    count = sum(leaves for _, leaves in children)
    if kind in ("builtins.list", "collections.deque"):
        return lambda leaves: [build(leaves) for build in builders], count
    if kind in ("builtins.tuple", "collections.namedtuple"):
        return lambda leaves: tuple([build(leaves) for build in builders]), count
    if kind in ("builtins.dict", "collections.OrderedDict", "collections.defaultdict"):
        keys = json.loads(node["context"])
        if kind == "collections.defaultdict":
            keys = keys[1] if isinstance(keys, list) else keys["dict_context"]
        return lambda leaves: {
key: build(leaves) for key, build in zip(keys, builders)
}, count
    raise Unsupported(f"LitData's tree has a node of type {kind}, which this version does not know")


def _torch_dtype(number: int) -> str:
    if number not in _TORCH_DTYPES:
        raise Unsupported(f"torch's dtype number {number} of LitData has no NumPy dtype; sample.fields gives the bytes")
    return _TORCH_DTYPES[number]


def _numpy_dtype(number: int) -> str:
    if number >= len(_NUMPY_DTYPES):
        raise Unsupported(f"NumPy's dtype number {number} of LitData is not supported; sample.fields gives the bytes")
    return _NUMPY_DTYPES[number]


def _array(view: memoryview, dtype: str, shape: tuple[int, ...]) -> Any:
    import numpy

    return numpy.frombuffer(view, dtype).reshape(shape).copy()


def _tensor(view: memoryview) -> Any:
    # The header is little-endian in older LitData, big-endian in newer. Only one of the two fits the bytes.
    order = "<" if _fits(view, "<", _torch_dtype) else ">"
    return _shaped_array(view, order, _torch_dtype)


def _numpy(view: memoryview) -> Any:
    return _shaped_array(view, "<", _numpy_dtype)


def _header(view: memoryview, order: str, dtype_of: Callable[[int], str]) -> tuple[str, tuple[int, ...], int]:
    """The dtype and shape in an array's header, and the number of bytes of the header and the array."""
    import numpy

    number, axes = struct.unpack_from(f"{order}II", view)
    if axes > 64 or len(view) < 8 + 4 * axes:
        raise Corrupt(f"an array of {axes} axes has {len(view)} bytes")
    dtype = dtype_of(number)
    shape = struct.unpack_from(f"{order}{axes}I", view, 8)
    return dtype, shape, 8 + 4 * axes + math.prod(shape) * numpy.dtype(dtype).itemsize


def _fits(view: memoryview, order: str, dtype_of: Callable[[int], str]) -> bool:
    try:
        return _header(view, order, dtype_of)[2] == len(view)
    except (Corrupt, Unsupported):
        return False


def _shaped_array(view: memoryview, order: str, dtype_of: Callable[[int], str]) -> Any:
    dtype, shape, expected = _header(view, order, dtype_of)
    if len(view) != expected:
        raise Corrupt(f"an array of shape {shape} and dtype {dtype} has {len(view)} bytes, not {expected}")
    return _array(view[8 + 4 * len(shape) :], dtype, shape)


def _images(view: memoryview) -> list[bytes]:
    (count,) = struct.unpack_from("<I", view)
    sizes = struct.unpack_from(f"<{count}I", view, 4)
    at = 4 + 4 * count
    images = []
    for size in sizes:
        images.append(bytes(view[at : at + size]))
        at += size
    if at != len(view):
        raise Corrupt(f"a list of images has {len(view)} bytes, but its sizes add up to {at}")
    return images
