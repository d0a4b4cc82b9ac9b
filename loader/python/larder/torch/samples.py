"""Conversions of a sample: to a dict (the default without `decode`), and to a tensor."""

from __future__ import annotations

import warnings
from typing import Any

import torch

import larder


def copy_sample(sample: larder.Sample) -> dict[str, Any]:
    """A copy of the sample that outlives its batch.

    {"__key__": str, "__index__": int, "__label__": int or None}, and the bytes of each field under its name.
    """
    copied: dict[str, Any] = {"__key__": sample.key, "__index__": sample.index, "__label__": sample.label}
    for name, view in sample.fields.items():
        copied[name] = bytes(view)
    return copied


def tensor(sample: larder.Sample, field: str | None = None) -> torch.Tensor:
    """The first field, or the named one, as a tensor of shape (n,): `sample.numpy(field)`, without a copy.

    The tensor lies in memory shared with the daemon and mapped read-only: writing to it kills the process, and torch
    does not prevent that. The tensor keeps the sample's batch. `.clone()` it to keep it long, or to write.
    """
    with warnings.catch_warnings():
        # Torch warns of read-only memory, which the docstring explains.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writ")
        return torch.from_numpy(sample.numpy(field))
