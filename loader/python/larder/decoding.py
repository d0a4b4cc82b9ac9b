"""`decode`: a sample as Python values, by the encodings that its format gives its fields.

Every function here takes encoded bytes and returns copies, so that nothing holds the batch's memory. Nothing is
unpickled: an encoding that needs unpickling is an error. NumPy is imported at the first array, PIL at the first image.
"""

from __future__ import annotations

import decimal
import functools
import struct
from collections.abc import Callable
from typing import Any

from larder import _larder, litdata, litdata_json, tfrecord
from larder.parquet import Tables
from larder.errors import Corrupt, Unsupported

# MDS's dtype codes, in arrays that carry their own dtype.
_MDS_DTYPES = {
    8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32", 34: "float32",
    64: "uint64", 65: "int64", 66: "float64",
}  # fmt: skip
_SCALARS = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
# Whole files, which the caller decodes: PIL.Image.open(io.BytesIO(value)), and so on.
_UNDECODED = (
    "", "bytes", "jpeg", "png", "image", "video", "audio", "file", "tiff", "tifffile", "pdf", "mesh", "nifti",
)  # fmt: skip

Decoder = Callable[[memoryview], Any]

_rows = Tables()


def decode(sample: _larder.Sample) -> Any:
    """The values that the sample's writer stored, as far as its format describes them.

    MDS: a dict of the columns. LitData: the tree (a dict, list, tuple, ...) of its leaves. TFRecord: the features of
    the tf.train.Example, as lists of bytes and NumPy arrays. Megatron, and LitData's tokens: a NumPy array. Parquet,
    and LitData's rows of tables: a dict of the columns; each process keeps up to 1 GiB of decoded rows
    (`larder.parquet`). Raw and WebDataset: a dict of the fields' bytes. Encoded images (jpeg, png) stay encoded, as
    bytes.
    """
    if sample._row is not None:
        return _rows.row(sample)
    fields = sample.fields
    encodings = sample.encodings
    values = [_decoder(encodings[name])(view) for name, view in fields.items()]
    if sample.structure is not None:
        return litdata.unflatten(sample.structure, values)
    if len(values) == 1 and next(iter(encodings.values())).startswith(("tfrecord", "tokens")):
        return values[0]
    return dict(zip(fields, values))


@functools.lru_cache(maxsize=1024)
def _decoder(encoding: str) -> Decoder:
    kind, _, rest = encoding.partition(":")
    if kind in _UNDECODED:
        return bytes
    if kind in _SCALARS and not rest:
        return lambda view: _array(view, kind, (1,))[0]
    if kind == "tokens":
        return lambda view: _array(view, rest, (-1,))
    if kind == "ndarray":
        dtype, _, shape = rest.partition(":")
        fixed = tuple(int(length) for length in shape.split(",")) if shape else None
        return lambda view: _mds_array(view, dtype, fixed)
    found = _DECODERS.get(kind) or litdata.decoder(kind, rest)
    if found is None:
        unsafe = "pickle" in kind or kind == "pkl"
        why = "would run whatever code was pickled" if unsafe else "this version does not know"
        raise Unsupported(f'a field is encoded as "{encoding}", which {why}; sample["name"] gives its bytes')
    return found


def _text(view: memoryview) -> str:
    return str(view, "utf-8")


def _int(view: memoryview) -> int:
    return struct.unpack("<q", view)[0]


def _float(view: memoryview) -> float:
    return struct.unpack("<d", view)[0]


def _pil(view: memoryview) -> Any:
    try:
        import PIL.Image
    except ImportError:
        raise Unsupported("a field is a PIL image, which needs the package Pillow to be decoded") from None
    width, height, mode_bytes = struct.unpack_from("<III", view)
    end = 12 + mode_bytes
    return PIL.Image.frombytes(_text(view[12:end]), (width, height), bytes(view[end:]))


def _array(view: memoryview, dtype: str, shape: tuple[int, ...]) -> Any:
    import numpy

    return numpy.frombuffer(view, dtype).reshape(shape).copy()


def _mds_array(view: memoryview, dtype: str, shape: tuple[int, ...] | None) -> Any:
    at = 0
    if not dtype:
        if view[at] not in _MDS_DTYPES:
            raise Corrupt(f"an array has the unknown dtype code {view[at]}")
        dtype = _MDS_DTYPES[view[at]]
        at += 1
    if shape is None:
        # The number of axes, and the bytes in which the length of each is stored.
        axes, width = view[at] >> 2, 1 << (view[at] & 3)
        at += 1
        lengths = view[at : at + axes * width]
        shape = tuple(int.from_bytes(lengths[i : i + width], "little") for i in range(0, axes * width, width))
        at += axes * width
    return _array(view[at:], dtype, shape)


_DECODERS: dict[str, Decoder] = {
    "str": _text,
    "text": _text,
    "int": _int,
    "float": _float,
    "bool": lambda view: view[0] != 0,
    "json": litdata_json.decode,
    "str_int": lambda view: int(_text(view)),
    "str_float": lambda view: float(_text(view)),
    "str_decimal": lambda view: decimal.Decimal(_text(view)),
    "pil": _pil,
    "tfrecord": tfrecord.features,
}
