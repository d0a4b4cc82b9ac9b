"""The "json" leaves of LitData: JSON text, or in newer versions a compact form of the same values.

A value of the compact form is a byte for its kind, then the kind's data, little-endian: 0 JSON text; 7 text; 8 an
int64; 9 a float64; 10 a byte, 0 or 1; 11 nothing (None); 1 to 4 lists of text, int64, float64 and bytes 0 or 1, with
their length first; 5 a dict: its length, then keys (texts) and values in turn; 6 a list of dicts with the same keys:
its length, the number of keys, the keys, then the values of each dict, each after a byte for its kind: 16 None, 17
text, 18 int64, 19 float64, 20 a byte 0 or 1. Lengths are u32; a text is a length and UTF-8. LitData's JSON text never
begins with a byte below 12.
"""

from __future__ import annotations

import json
import struct
from typing import Any

from larder.errors import Corrupt

_KINDS_END = 12
_ROW_KINDS = {16: 11, 17: 7, 18: 8, 19: 9, 20: 10}


def decode(view: memoryview) -> Any:
    """The value of a leaf."""
    if len(view) == 0 or view[0] >= _KINDS_END:
        return json.loads(str(view, "utf-8"))
    reader = _Reader(view)
    value = reader.value(reader.number("<B"))
    if reader.at != len(view):
        raise Corrupt(f"a json leaf ends at byte {reader.at} of {len(view)}")
    return value


class _Reader:
    def __init__(self, view: memoryview) -> None:
        self.view = view
        self.at = 0

    def take(self, count: int) -> memoryview:
        if count > len(self.view) - self.at:
            raise Corrupt(f"a json leaf of {len(self.view)} bytes has {count} more at byte {self.at}")
        self.at += count
        return self.view[self.at - count : self.at]

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def text(self) -> str:
        return str(self.take(self.number("<I")), "utf-8")

    def value(self, kind: int) -> Any:
        if kind == 0:
            return json.loads(self.text())
        if kind == 7:
            return self.text()
        if kind in (8, 9):
            return self.number("<q" if kind == 8 else "<d")
        if kind == 10:
            return self.number("<B") != 0
        if kind == 11:
            return None
        if kind > 11:
            raise Corrupt(f"a json leaf has the unknown kind {kind} at byte {self.at - 1}")
        count = self.number("<I")
        if kind == 1:
            return [self.text() for _ in range(self.checked_count(count, 4))]
        if kind in (2, 3):
            return list(struct.unpack(f"<{count}{'q' if kind == 2 else 'd'}", self.take(8 * count)))
        if kind == 4:
            return [byte != 0 for byte in self.take(count)]
        if kind == 5:
            pairs = [(self.text(), self.value(self.number("<B"))) for _ in range(self.checked_count(count, 5))]
            return dict(pairs)
        keys = [self.text() for _ in range(self.checked_count(self.number("<I"), 4))]
        return [{key: self.row_value() for key in keys} for _ in range(self.checked_count(count, len(keys)))]

    def row_value(self) -> Any:
        kind = self.number("<B")
        if kind not in _ROW_KINDS:
            raise Corrupt(f"a json leaf has the unknown kind {kind} in a row at byte {self.at - 1}")
        return self.value(_ROW_KINDS[kind])

    def checked_count(self, count: int, bytes_each: int) -> int:
        """Returns `count`; raises Corrupt if that many items of at least `bytes_each` do not fit in the rest."""
        if count * max(bytes_each, 1) > len(self.view) - self.at:
            raise Corrupt(f"a json leaf of {len(self.view)} bytes has {count} items at byte {self.at}")
        return count
