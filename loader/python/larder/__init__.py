"""Larder's client: reads training data through this node's cache daemon.

    with larder.Loader("imagenet", batch_size=256) as loader:
        for batch in loader:
            for sample in batch:
                use(sample.bytes, sample.label)

`Loader` walks an epoch in each `for` loop, `Mixture` reads several datasets by weight, `Dataset` reads samples by
index, `larder.parquet` makes tables of rows, `larder.torch` has loader and dataset for torch.utils.data. With
`decode=larder.decode` samples come as Python values, by the encodings of the dataset's format.
"""

from __future__ import annotations

from collections.abc import Sequence as _Sequence

from larder._larder import Batch, Sample, __version__
from larder.dataset import Dataset
from larder.decoding import decode
from larder.errors import (
    AlreadyExists,
    Cancelled,
    Corrupt,
    DecodeError,
    Error,
    InternalError,
    InvalidArgument,
    NoSpace,
    NotFound,
    ObjectChanged,
    PermissionDenied,
    ProtocolError,
    ReadFailed,
    Timeout,
    Unavailable,
    Unsupported,
)
from larder.loader import Loader
from larder.mixture import Mixture
from larder.state import merge_states
from larder.statistics import Statistics

_Sequence.register(Batch)

__all__ = [
    "AlreadyExists",
    "Batch",
    "Cancelled",
    "Corrupt",
    "Dataset",
    "DecodeError",
    "Error",
    "InternalError",
    "InvalidArgument",
    "Loader",
    "Mixture",
    "NoSpace",
    "NotFound",
    "ObjectChanged",
    "PermissionDenied",
    "ProtocolError",
    "ReadFailed",
    "Sample",
    "Statistics",
    "Timeout",
    "Unavailable",
    "Unsupported",
    "__version__",
    "decode",
    "merge_states",
]
