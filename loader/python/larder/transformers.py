"""Larder for the Trainer of Hugging Face Transformers. Importing this imports transformers.

    class Trainer(transformers.Trainer):
        def get_train_dataloader(self):
            return larder.torch.DataLoader(larder.torch.IterableDataset(...), num_workers=4)

    Trainer(..., callbacks=[larder.transformers.LoaderState()]).train(resume_from_checkpoint=True)
"""

from __future__ import annotations

from typing import Any

import transformers
from transformers.trainer_callback import ExportableState

from larder.torch import DataLoader


class LoaderState(transformers.TrainerCallback, ExportableState):
    """Keeps the position of a `larder.torch.DataLoader` in the Trainer's checkpoints, and resumes there.

    Without this, the Trainer reads the batches before the checkpoint again and drops them. It sets
    `ignore_data_skip`, which turns that off. Resume on the same number of ranks: the Trainer counts epochs in steps.
    """

    def __init__(self) -> None:
        self._loader: DataLoader | None = None

    def state(self) -> dict[str, Any]:
        position = {} if self._loader is None else {"position": dict(self._loader.state_dict())}
        return {"args": {}, "attributes": position}

    def on_init_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        args.ignore_data_skip = True

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        loader = others["train_dataloader"]
        if not isinstance(loader, DataLoader):
            raise TypeError(f"get_train_dataloader() returned {loader!r}; LoaderState needs a larder.torch.DataLoader")
        self._loader = loader
        if state.global_step == 0:  # from the start, also if another train() ran before
            return
        position = state.stateful_callbacks.get(type(self).__name__, {}).get("attributes", {}).get("position")
        if position is None:
            raise ValueError(
                "the checkpoint has no position of the loader, because it was made without LoaderState: resume from a "
                "checkpoint that was made with LoaderState, or load this one's model and train() from the start"
            )
        loader.load_state_dict(position)
        if len(loader) == 0:  # the checkpoint was made after the last batch, and the Trainer begins the next epoch
            loader.start_epoch(loader.epoch + 1)
        elif len(loader) % args.gradient_accumulation_steps != 0:
            raise ValueError(
                f"{len(loader)} batches are left of the epoch, which gradient_accumulation_steps="
                f"{args.gradient_accumulation_steps} does not divide: the Trainer cannot resume there exactly. Use "
                "drop_last and a batch size with which it divides an epoch's batches"
            )
