"""The state that a main process and its workers share: where the next pass begins, and what the workers have done.

The state is held in torch tensors in shared memory. So it reaches workers however they are started, and persistent
workers see what was written between two passes.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import torch

from larder import _larder
from larder.errors import InvalidArgument
from larder.statistics import Statistics

STATE_BYTES_MAX = 1 << 16  # a mixture has about 300 bytes for each of its datasets
WORKERS_MAX = 1024
_NUMBER_BITS = 24
_NUMBER_MASK = (1 << _NUMBER_BITS) - 1
_KEY_MASK = (1 << 39) - 1
_FIELDS = [field.name for field in dataclasses.fields(Statistics)]


class Board:
    def __init__(self) -> None:
        self._state = torch.zeros(8 + STATE_BYTES_MAX, dtype=torch.uint8).share_memory_()
        # How the main process's training loop waits, and then 1 once that is known.
        self._wait = torch.zeros(_larder.LOOP_WORDS + 1, dtype=torch.int64).share_memory_()
        # The newest pass that each worker began: 39 bits that tell passes apart, then 24 bits with 1 + the pass's
        # number since the state was written; 0: none. One word, so that nobody reads half of a value.
        self._passes = torch.zeros(WORKERS_MAX, dtype=torch.int64).share_memory_()
        # One row per worker, so that each number has one writer.
        self._statistics = torch.zeros((WORKERS_MAX, len(_FIELDS)), dtype=torch.float64).share_memory_()

    @property
    def state(self) -> bytes:
        """The position at which the next pass begins; empty: the first epoch. Written before workers begin."""
        held = self._state.numpy()
        length = int.from_bytes(held[:8].tobytes(), "little")
        return held[8 : 8 + length].tobytes()

    @state.setter
    def state(self, state: bytes) -> None:
        self._write_state(state)
        self._passes.numpy()[:] = 0

    def load_state(self, worker: int, worker_count: int, state: bytes) -> None:
        """Gives one worker its state. Workers get theirs in any order; some may begin their pass before others do.

        All states are of the same epoch, so the first worker's is written, and later passes count from it.
        """
        rows = self._passes.numpy()
        rows[worker] = 0
        if worker == 0:
            rows[worker_count:] = 0
            self._write_state(state)

    def _write_state(self, state: bytes) -> None:
        if len(state) > STATE_BYTES_MAX:
            raise InvalidArgument(
                f"the state has {len(state)} bytes, but workers can receive at most {STATE_BYTES_MAX}: "
                "this epoch was resumed with other numbers of ranks too often (finish it before the next change), "
                "or the mixture has too many datasets"
            )
        held = self._state.numpy()
        held[:8] = list(len(state).to_bytes(8, "little"))
        held[8 : 8 + len(state)] = list(state)

    @property
    def passes(self) -> int:
        """Passes begun since the state was written."""
        return int((self._passes.numpy() & _NUMBER_MASK).max())

    def begin_pass(self, worker: int, key: int, number: int | None = None) -> int:
        """Records that a worker begins a pass. Returns the pass's number since the state was written, from 0.

        Workers of one pass have the same `key` and get the same number, whichever of them comes first, and even if some
        of them did not begin the earlier passes. `number`: the number, if the caller knows it.
        """
        rows = self._passes.numpy()
        key &= _KEY_MASK
        if number is None:
            held = rows.copy()
            same_pass = held[(held >> _NUMBER_BITS == key) & (held != 0)] & _NUMBER_MASK
            if int(held[worker]) >> _NUMBER_BITS == key and held[worker] != 0:
                number = int(held[worker]) & _NUMBER_MASK  # a persistent worker begins its next pass
            elif len(same_pass) > 0:
                number = int(same_pass.max()) - 1
            else:
                number = int((held & _NUMBER_MASK).max())
        rows[worker] = key << _NUMBER_BITS | number + 1
        return number

    @property
    def wait(self) -> npt.NDArray[np.int64]:
        """How long the training loop waits, for `larder.Dataset.set_training_loop`. Only the loop writes it."""
        return self._wait.numpy()[:-1]

    @property
    def wait_is_known(self) -> bool:
        return bool(self._wait.numpy()[-1])

    def begin_wait(self, now_ns: int) -> None:
        _larder.begin_wait(self.wait, now_ns)

    def end_wait(self, waited_ns: int) -> None:
        _larder.end_wait(self.wait, waited_ns)
        self._wait.numpy()[-1] = 1

    def add(self, worker: int, done: Statistics) -> None:
        self._statistics.numpy()[worker] += dataclasses.astuple(done)

    def total(self) -> Statistics:
        sums = dict(zip(_FIELDS, self._statistics.numpy().sum(axis=0).tolist()))
        return Statistics(**{name: value if name == "stall_s" else int(value) for name, value in sums.items()})
