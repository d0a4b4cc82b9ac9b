"""Larder for DLIO, the I/O benchmark of MLPerf Storage. Importing this imports dlio_benchmark and torch.

DLIO takes it as a data loader of its own:

    LARDER_DLIO_DATASET=NAME dlio_benchmark workload=... \\
        ++workload.reader.data_loader_classname=larder.dlio.DataLoader ++workload.reader.data_loader_sampler=index

`NAME` is a dataset of the files that DLIO lists in its data folder (`larder dataset add NAME FOLDER/train`). DLIO's
options for workers (`read_threads`), batches (`batch_size`), prefetching (`prefetch_size`), shuffling and seeds hold.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterator
from typing import Any

import numpy
import torch
from dlio_benchmark.common.enumerations import DataLoaderType, DatasetType, FormatType, Shuffle
from dlio_benchmark.data_loader.base_data_loader import BaseDataLoader
from PIL import Image

import larder.torch

__all__ = ["DataLoader"]


class DataLoader(BaseDataLoader):
    """Reads DLIO's training samples through Larder, in Larder's order, and does with each what DLIO's reader does."""

    def __init__(self, format_type: FormatType, dataset_type: DatasetType, epoch_number: int) -> None:
        super().__init__(format_type, dataset_type, epoch_number, DataLoaderType.PYTORCH)
        self._loader: larder.torch.DataLoader | None = None

    def read(self) -> None:
        if self.dataset_type is not DatasetType.TRAIN:
            raise ValueError("larder.dlio reads training samples only: set do_eval to False")
        name = os.environ.get("LARDER_DLIO_DATASET")
        if not name:
            raise ValueError("set LARDER_DLIO_DATASET to the name given to `larder dataset add` for the data folder")
        workers = self._args.read_threads
        dataset = larder.torch.IterableDataset(
            name,
            job="dlio",
            batch_size=self.batch_size,
            seed=self._args.seed,
            shuffle=_shuffles(self._args.sample_shuffle) or _shuffles(self._args.file_shuffle),
            rank=self._args.my_rank,
            world_size=self._args.comm_size,
            drop_last=True,
            decode=_Read(self.format_type, torch.from_numpy(self._args.resized_image)),
        )
        ahead = {"prefetch_factor": max(2, math.ceil(self._args.prefetch_size / workers))} if workers > 0 else {}
        self._loader = larder.torch.DataLoader(
            dataset, num_workers=workers, persistent_workers=workers > 0, pin_memory=torch.cuda.is_available(), **ahead
        )

    def next(self) -> Iterator[Any]:
        assert self._loader is not None, "DLIO calls read() first"
        yield from self._loader
        self.epoch_number += 1

    def finalize(self) -> None:
        """DLIO calls this after each epoch."""


def load_npy(data: memoryview) -> numpy.ndarray[Any, Any]:
    """The array of a NPY file, with one copy, as `numpy.load` makes of a file. Of bytes in memory it makes three."""
    header = io.BytesIO(data[:65536])
    version = numpy.lib.format.read_magic(header)
    read = numpy.lib.format.read_array_header_1_0 if version == (1, 0) else numpy.lib.format.read_array_header_2_0
    shape, fortran_order, dtype = read(header)
    values = numpy.frombuffer(data, dtype, count=math.prod(shape), offset=header.tell())
    return values.reshape(shape, order="F" if fortran_order else "C").copy()


def load_npz(data: memoryview) -> numpy.ndarray[Any, Any]:
    """The array `x` of an NPZ file. Python objects in it are refused: to read them runs code of the file."""
    values: numpy.ndarray[Any, Any] = numpy.load(io.BytesIO(data))["x"]
    return values


def _shuffles(mode: Any) -> bool:
    """Of a mode as DLIO has it: sample_shuffle is a Shuffle, file_shuffle what the configuration says."""
    return mode not in (Shuffle.OFF, Shuffle.OFF.value, False)


class _Read:
    """What DLIO's readers do: opens the sample as its format is, and gives DLIO's image of the configured size."""

    def __init__(self, format_type: FormatType, image: torch.Tensor) -> None:
        self._format = format_type
        self._image = image

    def __call__(self, sample: larder.Sample) -> torch.Tensor:
        if self._format is FormatType.NPY:
            load_npy(sample.bytes)
        elif self._format in (FormatType.JPEG, FormatType.PNG):
            numpy.asarray(Image.open(io.BytesIO(sample.bytes)))
        elif self._format is FormatType.NPZ:
            load_npz(sample.bytes)
        else:
            raise ValueError(f"larder.dlio reads files of the formats npy, npz, jpeg and png, not {self._format}")
        return self._image
