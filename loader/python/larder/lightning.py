"""Larder for Lightning, whose loops save and restore a loader by themselves.

    def train_dataloader(self):
        dataset = larder.torch.IterableDataset("imagenet", batch_size=256, decode=decode)
        return larder.lightning.DataLoader(dataset, num_workers=4)

Importing this imports torch, but not Lightning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import larder.torch
from larder import state as job_state
from larder.torch import IterableDataset

__all__ = ["DataLoader", "IterableDataset"]


class DataLoader(larder.torch.DataLoader):
    """`larder.torch.DataLoader`, counting as Lightning does, so that a checkpoint of mid-epoch resumes exactly.

    Lightning counts an epoch's batches on from the checkpoint, and ends the epoch when it has counted `len(loader)`:
    the length is that of the whole epoch, with the batches before the checkpoint. Lightning goes on with the next epoch
    if the checkpoint was made after the last batch; so does this loader. Ranks may be more or fewer than before.
    """

    _before = 0  # batches of the epoch that this rank received before the state that was loaded

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        if self._received > 0:
            self._before = 0
        return super().__iter__()

    def _next_batch(self, iterator: Any) -> Any:
        try:
            return super()._next_batch(iterator)
        except StopIteration:
            self._before = 0
            raise

    def __len__(self) -> int:
        """The number of this rank's batches in the whole epoch."""
        return self._before + super().__len__()

    def start_epoch(self, epoch: int) -> None:
        super().start_epoch(epoch)
        self._before = 0

    def state_dict(self) -> job_state.StateDict:
        state = super().state_dict()
        state["batches"] = self._before + self._received
        return state

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        super().load_state_dict(state)
        self._before = int(state.get("batches", 0))  # type: ignore[call-overload]
        if super().__len__() == 0:
            self.start_epoch(self.epoch + 1)
