"""A job's position in its epochs, as a dict that JSON, pickle and torch.save all accept."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from typing import TypedDict

from larder import _larder
from larder.errors import InvalidArgument


class StateDict(TypedDict, total=False):
    dataset: str
    """For people only: all checks use `state`."""
    state: str
    """The C++ loader's state (loader/loader_state.h), base64."""
    worker: int
    """Only in the state of one DataLoader worker: the worker's index."""
    worker_count: int
    """Only in the state of one DataLoader worker: the number of workers."""
    batches: int
    """Only in the state of `larder.lightning.DataLoader`: the batches of the epoch that this rank has received."""


def to_dict(dataset: str, state: bytes) -> StateDict:
    return {"dataset": dataset, "state": base64.b64encode(state).decode("ascii")}


def merge_states(states: Iterable[Mapping[str, object]]) -> StateDict:
    """The position of a job that reads with order="shared", from the states of all its ranks and workers.

    Take the states after the same step of each rank. `load_state_dict` then takes the merged one, on any number of ranks
    and workers.

    Raises:
        larder.InvalidArgument: They are states of another order, of different epochs, or of different jobs.
    """
    parts = list(states)
    if not parts:
        raise InvalidArgument("there is no state to merge")
    merged = _larder.merge_states([to_bytes(part) for part in parts])
    return to_dict(str(parts[0].get("dataset", "")), merged)


def to_bytes(state: Mapping[str, object]) -> bytes:
    try:
        return base64.b64decode(state["state"], validate=True)  # type: ignore[arg-type]
    except (KeyError, TypeError, ValueError, binascii.Error):
        raise InvalidArgument(f"{state!r} is not a state from state_dict()") from None
