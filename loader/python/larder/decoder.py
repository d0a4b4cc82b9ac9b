"""Calls the user's functions, and names the sample on which `decode` or `transform` fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from larder import _larder
from larder.errors import DecodeError


class Decoder:
    def __init__(
        self,
        dataset: str,
        decode: Callable[[_larder.Sample], Any] | None,
        skip_errors: bool = False,
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        self._dataset = dataset
        steps = (("decoded", decode), ("transformed", transform))
        self._steps = [(done, step) for done, step in steps if step is not None]
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
        value: Any = sample
        for done, step in self._steps:
            try:
                value = step(value)
            except Exception as error:
                raise DecodeError(
                    f'sample "{sample.key}" (index {sample.index}) of dataset "{self._dataset}" cannot be {done}: '
                    f"{type(error).__name__}: {error}"
                ) from error
        return value


def collated(collate: Callable[[list[Any]], Any], values: list[Any]) -> Any:
    """The batch that the user's `collate` makes."""
    return _guarded("collate", collate, values)


def decoded_batch(decode_batch: Callable[[_larder.Batch], Any], batch: _larder.Batch) -> Any:
    """The value that the user's `decode_batch` makes."""
    return _guarded("decode_batch", decode_batch, batch)


def _guarded(name: str, make: Callable[[Any], Any], argument: Any) -> Any:
    """Calls the user's function. Its StopIteration would end the epoch early, without an error."""
    try:
        return make(argument)
    except StopIteration as error:
        raise RuntimeError(f"{name} raised StopIteration") from error
