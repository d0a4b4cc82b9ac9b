"""The common part of passes over a loader: when each pass is over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol


class Walked(Protocol):
    """An object that is walked in passes, of which only the newest can continue."""

    def _is_current(self, iterator: Pass) -> bool: ...
    def _next(self, iterator: Any) -> Any:
        """The next batch of the newest pass. Raises StopIteration at its end."""


class Pass(Iterator[Any]):
    """The iterator of one pass, which stays ended. After an error, the next call tries the same batch again."""

    def __init__(self, walked: Walked) -> None:
        self._walked: Walked | None = walked

    def __next__(self) -> Any:
        if self._walked is None:
            raise StopIteration
        if not self._walked._is_current(self):
            raise RuntimeError(
                "this pass is over: another one began (each `for` and iter() begins one), or start_epoch(), "
                "set_epoch(), load_state_dict() or close() came in between"
            )
        try:
            return self._walked._next(self)
        except StopIteration:
            self._walked = None
            raise
