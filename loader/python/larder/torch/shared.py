"""What a main process and its workers share: where the next pass begins, and what the workers have done.

Torch tensors in shared memory, so that they reach workers however those are started, and workers that live on from one
pass to the next see what was written since.
"""

from __future__ import annotations

import dataclasses

import torch

from larder.errors import InvalidArgument
from larder.statistics import Statistics

STATE_BYTES_MAX = 4096
WORKERS_MAX = 1024
_FIELDS = [field.name for field in dataclasses.fields(Statistics)]


class Board:
    def __init__(self) -> None:
        self._state = torch.zeros(8 + STATE_BYTES_MAX, dtype=torch.uint8).share_memory_()
        # What the main process's training loop has waited, in ns; -1: nobody counts that.
        self._waited_ns = torch.full((1,), -1, dtype=torch.int64).share_memory_()
        # One row a worker, so that each number has one writer.
        self._statistics = torch.zeros((WORKERS_MAX, len(_FIELDS)), dtype=torch.float64).share_memory_()

    @property
    def state(self) -> bytes:
        """Where the next pass begins; empty: at the first epoch. Written before workers are told to begin."""
        held = self._state.numpy()
        length = int.from_bytes(held[:8].tobytes(), "little")
        return held[8 : 8 + length].tobytes()

    @state.setter
    def state(self, state: bytes) -> None:
        if len(state) > STATE_BYTES_MAX:
            raise InvalidArgument(
                f"the state has {len(state)} bytes, more than the {STATE_BYTES_MAX} workers can be told: "
                "the epoch was taken up on other numbers of ranks too often; let it end before the next change"
            )
        held = self._state.numpy()
        held[:8] = list(len(state).to_bytes(8, "little"))
        held[8 : 8 + len(state)] = list(state)

    @property
    def waited_ns(self) -> int | None:
        """How long the training loop has waited for batches; None: unknown. Written by the main process alone."""
        waited_ns = int(self._waited_ns.numpy()[0])
        return waited_ns if waited_ns >= 0 else None

    @waited_ns.setter
    def waited_ns(self, waited_ns: int) -> None:
        self._waited_ns.numpy()[0] = waited_ns

    def add(self, worker: int, done: Statistics) -> None:
        self._statistics.numpy()[worker] += dataclasses.astuple(done)

    def total(self) -> Statistics:
        sums = dict(zip(_FIELDS, self._statistics.numpy().sum(axis=0).tolist()))
        return Statistics(**{name: value if name == "stall_s" else int(value) for name, value in sums.items()})
