"""Trains with Hugging Face's Trainer, and goes on exactly where its last checkpoint was:
python train_trainer.py DATASET DIRECTORY"""

import pathlib
import sys

import torch
import transformers

import larder.torch
import larder.transformers


def decode(sample: larder.Sample) -> dict[str, object]:
    """Up to 32 bytes of the sample as tokens, and its class index."""
    tokens = torch.zeros(32, dtype=torch.int64)
    head = torch.tensor(list(bytes(sample.bytes[:32])))
    tokens[: len(head)] = head
    return {"index": sample.index, "input_ids": tokens, "labels": sample.label}


class Trainer(transformers.Trainer):
    def get_train_dataloader(self) -> larder.torch.DataLoader:
        dataset = larder.torch.IterableDataset(sys.argv[1], batch_size=8, seed=1, drop_last=True, decode=decode)
        return larder.torch.DataLoader(dataset, num_workers=2)

    def training_step(self, model: torch.nn.Module, inputs: dict[str, torch.Tensor], *rest: object) -> torch.Tensor:
        print(f"step {self.state.global_step} samples {inputs.pop('index').tolist()}", flush=True)
        return super().training_step(model, inputs, *rest)


config = transformers.BertConfig(
    vocab_size=256, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_labels=10
)
options = transformers.TrainingArguments(sys.argv[2], num_train_epochs=3, save_steps=5, use_cpu=True, report_to="none")
trainer = Trainer(
    transformers.BertForSequenceClassification(config), options, callbacks=[larder.transformers.LoaderState()]
)
trainer.train(resume_from_checkpoint=any(pathlib.Path(sys.argv[2]).glob("checkpoint-*")))
