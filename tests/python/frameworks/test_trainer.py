"""larder.transformers.LoaderState where a Trainer runs twice, or resumes from a checkpoint that is not in mid-epoch."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

# Prints a list of each micro-batch's samples for each run, or the error with which the run ended.
PROGRAM = """
import json
import sys

import torch
import transformers

import larder.torch
import larder.transformers

CONFIG = transformers.BertConfig(
    vocab_size=256, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
)


def decode(sample):
    return {"index": sample.index, "input_ids": torch.zeros(8, dtype=torch.int64), "labels": 0}


class Trainer(transformers.Trainer):
    seen = []

    def get_train_dataloader(self):
        return larder.torch.DataLoader(larder.torch.IterableDataset(sys.argv[1], batch_size=8, seed=1, decode=decode))

    def training_step(self, model, inputs, *rest):
        self.seen.append(inputs.pop("index").tolist())
        return super().training_step(model, inputs, *rest)


def trainer(callbacks, **options):
    arguments = transformers.TrainingArguments(sys.argv[2], use_cpu=True, report_to="none", **options)
    return Trainer(transformers.BertForSequenceClassification(CONFIG), arguments, callbacks=callbacks)


def run(trainer, **options):
    trainer.seen = []
    try:
        trainer.train(**options)
    except ValueError as error:
        print("RUN", json.dumps(str(error)))
    else:
        print("RUN", json.dumps(trainer.seen))


CASE
"""


@pytest.fixture
def runs(run_framework: Callable[..., str], daemon: Any, make_raw: Callable[..., Any], tmp_path: pathlib.Path) -> Any:
    """The runs of a program that ends with the given lines, on 120 samples: 15 batches an epoch."""

    def run(lines: str) -> list[Any]:
        program = tmp_path / "program.py"
        program.write_text(PROGRAM.replace("CASE", lines))
        files = make_raw(daemon, per_class=40)
        printed = run_framework(files.daemon, program, files.name, tmp_path / "run")
        return [json.loads(line.removeprefix("RUN ")) for line in printed.splitlines() if line.startswith("RUN ")]

    return run


def test_second_run_from_the_start_begins_at_the_start(runs: Callable[[str], list[Any]]) -> None:
    first, second = runs("""
again = trainer([larder.transformers.LoaderState()], max_steps=20, save_strategy="no")
run(again)
run(again)
""")
    assert len(first) == 20 and second == first


def test_checkpoint_without_a_position_is_refused(runs: Callable[[str], list[Any]]) -> None:
    made, refused = runs("""
run(trainer([], max_steps=5, save_steps=5))
run(trainer([larder.transformers.LoaderState()], max_steps=20), resume_from_checkpoint=True)
""")
    assert len(made) == 5
    assert "made without LoaderState" in refused and "train() from the start" in refused


def test_accumulation_that_does_not_divide_an_epoch_resumes_at_its_end_only(runs: Callable[[str], list[Any]]) -> None:
    whole, at_end, in_middle = runs("""
options = {"gradient_accumulation_steps": 2, "num_train_epochs": 2}
run(trainer([larder.transformers.LoaderState()], save_steps=4, **options))
for step in (8, 4):
    resumed = trainer([larder.transformers.LoaderState()], save_strategy="no", **options)
    run(resumed, resume_from_checkpoint=f"{sys.argv[2]}/checkpoint-{step}")
""")
    assert len(whole) == 30 and at_end == whole[15:]
    assert "7 batches are left of the epoch, which gradient_accumulation_steps=2 does not divide" in in_middle
