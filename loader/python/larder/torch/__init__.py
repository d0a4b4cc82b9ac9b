"""Larder for torch.utils.data. Importing this imports torch; `import larder` does not.

    def decode(sample):                        # in the worker process
        return to_tensor(sample.bytes), sample.label

    dataset = larder.torch.IterableDataset("imagenet", batch_size=256, decode=decode)
    loader = larder.torch.DataLoader(dataset, num_workers=4)
    for epoch in range(loader.epoch, 90):
        for images, labels in loader:          # one epoch; leaving the loop ends the pass
            ...

`IterableDataset` makes batches in the order and with the exactly-once rule of `larder.Loader`. `DataLoader` walks its
epochs, knows its exact state in mid-epoch, and measures how long the training loop waited. torchdata's
`StatefulDataLoader` can replace `DataLoader`. `Mixture` is an `IterableDataset` of several datasets, mixed by weight.
`MapDataset` reads samples by index, for your own samplers.
"""

from __future__ import annotations

from larder.torch.collate import collate
from larder.torch.dataloader import DataLoader
from larder.torch.iterable import IterableDataset
from larder.torch.mapped import MapDataset
from larder.torch.mixture import Mixture
from larder.torch.samples import copy_sample, tensor

__all__ = ["DataLoader", "IterableDataset", "MapDataset", "Mixture", "collate", "copy_sample", "tensor"]
