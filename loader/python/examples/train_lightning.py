"""Trains with Lightning, and goes on exactly where its last checkpoint was:
python train_lightning.py DATASET DIRECTORY"""

import sys

import pytorch_lightning
import torch

import larder.lightning


def decode(sample: larder.Sample) -> tuple[int, torch.Tensor, int]:
    """The sample's index, a histogram of its bytes, and its class index."""
    data = torch.frombuffer(bytearray(sample.bytes), dtype=torch.uint8)
    return sample.index, torch.bincount(data, minlength=256) / len(data), sample.label


class Model(pytorch_lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(256, 10)

    def train_dataloader(self) -> larder.lightning.DataLoader:
        dataset = larder.torch.IterableDataset(sys.argv[1], batch_size=8, seed=1, drop_last=True, decode=decode)
        return larder.lightning.DataLoader(dataset, num_workers=2)

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        indices, inputs, labels = batch
        print(f"step {self.global_step} samples {indices.tolist()}", flush=True)
        return torch.nn.functional.cross_entropy(self.layer(inputs), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


saver = pytorch_lightning.callbacks.ModelCheckpoint(sys.argv[2], save_last=True, every_n_train_steps=5)
trainer = pytorch_lightning.Trainer(accelerator="cpu", max_epochs=3, callbacks=[saver], logger=False)
trainer.fit(Model(), ckpt_path="last")  # from the start if there is no checkpoint
