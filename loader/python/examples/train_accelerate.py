"""Trains with Accelerate, and goes on exactly where its last checkpoint was, also on more or fewer ranks:
torchrun --nproc-per-node 4 train_accelerate.py DATASET DIRECTORY"""

import pathlib
import sys

import accelerate
import torch

import larder.torch


def decode(sample: larder.Sample) -> tuple[int, torch.Tensor, int]:
    """The sample's index, a histogram of its bytes, and its class index."""
    data = torch.frombuffer(bytearray(sample.bytes), dtype=torch.uint8)
    return sample.index, torch.bincount(data, minlength=256) / len(data), sample.label


accelerator = accelerate.Accelerator(cpu=True)
# Knows its rank. With drop_last, all ranks get the same number of batches, as they wait for each other.
dataset = larder.torch.IterableDataset(sys.argv[1], batch_size=2, seed=1, drop_last=True, decode=decode)
loader = larder.torch.DataLoader(dataset, num_workers=1)
layer = torch.nn.Linear(256, 10)
model, optimizer = accelerator.prepare(layer, torch.optim.SGD(layer.parameters(), lr=0.1))
accelerator.register_for_checkpointing(loader)  # instead of prepare: the loader deals to ranks itself

checkpoint = pathlib.Path(sys.argv[2])
if checkpoint.exists():
    accelerator.load_state(checkpoint)
for epoch in range(loader.epoch, 2):
    for step, (indices, inputs, labels) in enumerate(loader):
        print(f"epoch {epoch} step {step} rank {accelerator.process_index} samples {indices.tolist()}", flush=True)
        accelerator.backward(torch.nn.functional.cross_entropy(model(inputs), labels))
        optimizer.step()
        optimizer.zero_grad()
        if step % 5 == 4:
            accelerator.save_state(checkpoint)
