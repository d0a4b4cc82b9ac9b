"""`collate`: torch's default_collate, for samples that may lack a value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.utils.data


def collate(samples: list[Any]) -> Any:
    """torch's default_collate, except that a value that is None in some sample becomes a list of all samples' values.

    So a batch of `(tensor, sample.label)` is a tensor and, for files outside class directories, a list of None.
    """
    if not _lacks_a_value(samples):
        return torch.utils.data.default_collate(samples)
    first = samples[0]
    same_kind = all(type(sample) is type(first) for sample in samples)
    if same_kind and isinstance(first, Mapping) and all(sample.keys() == first.keys() for sample in samples):
        return {name: collate([sample[name] for sample in samples]) for name in first}
    if same_kind and isinstance(first, (list, tuple)) and all(len(sample) == len(first) for sample in samples):
        columns = [collate(list(column)) for column in zip(*samples)]
        return type(first)(*columns) if hasattr(first, "_fields") else columns
    return samples


def _lacks_a_value(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_lacks_a_value(part) for part in value.values())
    if isinstance(value, (list, tuple)):
        return any(_lacks_a_value(part) for part in value)
    return value is None
