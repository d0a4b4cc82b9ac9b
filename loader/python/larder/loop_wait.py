"""The waits of a training loop that reads several loaders at once."""

from __future__ import annotations

import array
import contextlib
import time
from collections.abc import Iterator
from typing import Any

from larder import _larder


class LoopWait:
    """The waits for all loaders: the first one reports them, and the others report no loop.

    To the daemon, each loader would be a loop of its own, and a wait for another loader would count as work in f*.
    """

    def __init__(self) -> None:
        self._words = array.array("q", [0] * _larder.LOOP_WORDS)
        self.waited_ns = 0

    @property
    def words(self) -> Any:
        """The waits, for `set_training_loop`."""
        return self._words

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts the `with` block as a wait."""
        began_ns = time.monotonic_ns()
        _larder.begin_wait(self.words, began_ns)
        try:
            yield
        finally:
            self.waited_ns += time.monotonic_ns() - began_ns
            _larder.end_wait(self.words, self.waited_ns)
