"""tf.train.Example and SequenceExample from the bytes of a record, without TensorFlow or protobuf.

The layout is protobuf's wire format for tensorflow/core/example/example.proto and feature.proto. A message is a series
of tags (field number << 3 | kind), each with a value: kind 2 is a length and bytes, 0 a varint, 5 four bytes, 1 eight.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from larder.errors import Corrupt

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def features(record: memoryview) -> dict[str, Any]:
    """The features of an Example by name: a list of bytes, or a NumPy array of float32 or int64.

    A SequenceExample gives {"context": features by name, "feature_lists": lists of features by name}.
    """
    context: dict[str, Any] = {}
    lists: dict[str, list[Any]] | None = None
    for number, value in _fields(record):
        if number == 1:
            for name, feature in _map(value):
                context[name] = _feature(feature)
        elif number == 2:
            lists = lists if lists is not None else {}
            for name, feature_list in _map(value):
                lists[name] = [_feature(item) for field, item in _fields(feature_list) if field == 1]
    return context if lists is None else {"context": context, "feature_lists": lists}


def _map(message: Any) -> Iterator[tuple[str, memoryview]]:
    """The entries of a message whose field 1 is a map."""
    for number, entry in _fields(message):
        if number != 1:
            continue
        key, value = "", memoryview(b"")
        for part, content in _fields(entry):
            if part == 1:
                key = str(_view(content), "utf-8")
            elif part == 2:
                value = _view(content)
        yield key, value


def _feature(message: memoryview) -> Any:
    import numpy

    found: Any = []
    for number, value in _fields(message):
        if number == 1:
            found = [bytes(_view(item)) for part, item in _fields(value) if part == 1]
        elif number == 2:
            # A reader must accept floats both packed and one by one.
            pieces = [_view(item) for part, item in _fields(value) if part == 1]
            if any(len(piece) % 4 for piece in pieces):
                raise Corrupt("a list of floats ends within a float")
            found = numpy.frombuffer(b"".join(pieces), "<f4").copy()
        elif number == 3:
            numbers: list[int] = []
            for part, item in _fields(value):
                if part == 1:
                    numbers.extend([item] if isinstance(item, int) else _varints(item))
            found = numpy.array(numbers, "uint64").view("int64")
    return found


def _view(value: Any) -> memoryview:
    if not isinstance(value, memoryview):
        raise Corrupt("the record is not a tf.train.Example: it has a number in place of bytes")
    return value


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            break
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
    raise Corrupt(f"the record is not a tf.train.Example: a number at byte {at} does not end")


def _varints(packed: memoryview) -> Iterator[int]:
    at = 0
    while at < len(packed):
        value, at = _varint(packed, at)
        yield value


def _fields(message: Any) -> Iterator[tuple[int, Any]]:
    """Field numbers with their values: an int for a varint, else bytes."""
    message = _view(message)
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield tag >> 3, value
            continue
        if kind == _BYTES:
            length, at = _varint(message, at)
        elif kind in (_FIXED32, _FIXED64):
            length = 4 if kind == _FIXED32 else 8
        else:
            raise Corrupt(f"the record is not a tf.train.Example: unknown kind {kind} at byte {at}")
        if length > len(message) - at:
            raise Corrupt(f"the record is not a tf.train.Example: {length} bytes at byte {at} of {len(message)}")
        yield tag >> 3, message[at : at + length]
        at += length
