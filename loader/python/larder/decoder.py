"""Calls the user's `decode`, and names the sample on which it fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from larder import _larder
from larder.errors import DecodeError


class Decoder:
    def __init__(self, dataset: str, decode: Callable[[_larder.Sample], Any], skip_errors: bool = False) -> None:
        self._dataset = dataset
        self._decode = decode
        self._skip_errors = skip_errors
        self.errors = 0
        """Samples left out."""

    def batch(self, samples: _larder.Batch) -> list[Any]:
        """The decoded samples. With `skip_errors`, those on which `decode` fails are left out."""
        decoded = []
        errors = 0
        for sample in samples:
            try:
                decoded.append(self.sample(sample))
            except DecodeError:
                if not self._skip_errors:
                    raise
                errors += 1
        self.errors += errors
        return decoded

    def sample(self, sample: _larder.Sample) -> Any:
        try:
            return self._decode(sample)
        except Exception as error:
            raise DecodeError(
                f'sample "{sample.key}" (index {sample.index}) of dataset "{self._dataset}" cannot be decoded: '
                f"{type(error).__name__}: {error}"
            ) from error
