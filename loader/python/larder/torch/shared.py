"""What a main process and its workers share: where the next pass begins, and what the workers have done.

Torch tensors in shared memory, so that they reach workers however those are started, and workers that live on from one
pass to the next see what was written since.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import torch

from larder.errors import InvalidArgument
from larder.statistics import Statistics

STATE_BYTES_MAX = 4096
WORKERS_MAX = 1024
_FIELDS = [field.name for field in dataclasses.fields(Statistics)]


class Board:
    def __init__(self) -> None:
        self._state = torch.zeros(8 + STATE_BYTES_MAX, dtype=torch.uint8).share_memory_()
        # The main process's training loop: ns it has waited, since when it waits now (0: it does not), 1 once it counts.
        self._wait = torch.zeros(3, dtype=torch.int64).share_memory_()
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
    def wait(self) -> npt.NDArray[np.int64]:
        """How long the training loop waits, as `larder.Dataset.set_training_loop` has it. Written by it alone."""
        return self._wait.numpy()[:2]

    @property
    def wait_is_known(self) -> bool:
        return bool(self._wait.numpy()[2])

    def begin_wait(self, now_ns: int) -> None:
        wait = self._wait.numpy()
        wait[1] = now_ns

    def end_wait(self, waited_ns: int) -> None:
        wait = self._wait.numpy()
        wait[0] = waited_ns  # first: whoever reads in between takes too much for waiting, never too little
        wait[1] = 0
        wait[2] = 1

    def add(self, worker: int, done: Statistics) -> None:
        self._statistics.numpy()[worker] += dataclasses.astuple(done)

    def total(self) -> Statistics:
        sums = dict(zip(_FIELDS, self._statistics.numpy().sum(axis=0).tolist()))
        return Statistics(**{name: value if name == "stall_s" else int(value) for name, value in sums.items()})
