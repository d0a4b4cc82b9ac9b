"""Larder for Grain, which loads data for JAX. Importing this imports neither.

    source = larder.grain.DataSource("imagenet", decode=decode)
    dataset = grain.MapDataset.source(source).seed(1).shuffle().batch(256).to_iter_dataset()
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import larder

# No sample's own: one more wait for each sample would end the same way.
_OF_ALL = (larder.Unavailable, larder.Timeout, larder.Cancelled)


class _Request:
    def __init__(self, index: int) -> None:
        self.index = index
        self.sample: larder.Sample | None = None
        self.error: Exception | None = None


class DataSource(larder.Dataset):
    """A `larder.Dataset` for `grain.MapDataset.source` and `grain.DataLoader`. The arguments are the same.

    Grain shuffles, deals to processes and keeps the position. So the order is Grain's, and its iterator's state is what
    a checkpoint needs. Grain reads in many threads at once: what they ask for while a request runs becomes the next
    request. `decode` runs in Grain's threads. Grain's processes open sessions of their own.
    """

    def __init__(self, dataset: str, **arguments: Any) -> None:
        super().__init__(dataset, **arguments)
        self._reading = threading.Lock()  # one thread at a time may use the session
        self._waiting: list[_Request] = []
        self._adding = threading.Lock()  # for `_waiting`

    def __getitem__(self, index: Any) -> Any:
        return self._getitems([index])[0]

    def _getitems(self, indices: Sequence[int]) -> list[Any]:  # Grain's name for reading many at once
        requests = [_Request(self._checked_index(int(index))) for index in indices]
        with self._adding:
            self._waiting.extend(requests)
        with self._reading:
            if any(request.sample is None and request.error is None for request in requests):
                with self._adding:
                    together, self._waiting = self._waiting, []
                self._read(together)
        return [self._result(request) for request in requests]

    def _read(self, requests: list[_Request]) -> None:
        try:
            samples = self._open_core().fetch([request.index for request in requests])
        except Exception as error:
            if len(requests) == 1 or not isinstance(error, larder.Error) or isinstance(error, _OF_ALL):
                for request in requests:
                    request.error = error
            else:  # another thread's sample must not fail this one
                for request in requests:
                    self._read([request])
            return
        for request, sample in zip(requests, samples):
            request.sample = sample

    def _result(self, request: _Request) -> Any:
        if request.error is not None:
            raise request.error
        assert request.sample is not None
        return request.sample if self._decoder is None else self._decoder.sample(request.sample)

    def __repr__(self) -> str:  # Grain compares it when a checkpoint is restored
        return f"larder.grain.DataSource({self._arguments['dataset']!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self._arguments,)


def _reopen(arguments: dict[str, Any]) -> DataSource:
    return DataSource(**arguments)
