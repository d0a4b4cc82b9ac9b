"""What a sample becomes where no decode hook was given."""

from __future__ import annotations

from typing import Any

import larder


def copy_sample(sample: larder.Sample) -> dict[str, Any]:
    """A copy of the sample that outlives its batch.

    {"__key__": str, "__index__": int, "__label__": int or None}, and the bytes of each field under its name.
    """
    copied: dict[str, Any] = {"__key__": sample.key, "__index__": sample.index, "__label__": sample.label}
    for name, view in sample.fields.items():
        copied[name] = bytes(view)
    return copied
