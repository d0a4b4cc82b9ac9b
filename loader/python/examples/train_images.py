"""Trains a small CNN on a dataset of images in class directories (or tar shards packed from one), read through Larder.

Stops after --stop-after batches of an epoch, with its whole state in --checkpoint, and resumes exactly there when
started again: no sample of the epoch is missed or seen twice. Each epoch prints its samples/s, hit ratio, remote MB/s
and the share of time that the training loop waited for data.

    python train_images.py DATASET --epochs 3 --checkpoint state.pt
"""

from __future__ import annotations

import argparse
import io
import os
import time
import warnings
from typing import Any

import numpy
import torch
from PIL import Image

import larder.torch

SIDE = 32
# A few posters would take longer to decode than all other images together. Pillow refuses twice this many pixels.
Image.MAX_IMAGE_PIXELS = 2_000_000


def decode(sample: larder.Sample) -> tuple[torch.Tensor, int]:
    """An image of shape (3, SIDE, SIDE), float32 in [0, 1], and its class index. Runs in the worker."""
    label = int(bytes(sample["cls"])) if "cls" in sample.fields else sample.label
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of oddities in clip art
        try:
            image = Image.open(io.BytesIO(sample.bytes))
        except Image.DecompressionBombError:
            image = Image.new("RGB", (SIDE, SIDE))
        small = image.resize((SIDE, SIDE), reducing_gap=2.0)
        pixels = numpy.asarray(small.convert("RGB"), dtype=numpy.float32)
    return torch.from_numpy(pixels.transpose(2, 0, 1) / 255.0), label


def network(classes: int) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(16, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Flatten(), torch.nn.Linear(32 * (SIDE // 4) ** 2, classes),
    )  # fmt: skip


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("dataset")
    parser.add_argument("--job", default="train-images")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--classes", type=int, default=0, help="default: as many as the dataset has")
    parser.add_argument("--checkpoint", default="train_images.pt")
    parser.add_argument("--stop-after", type=int, default=0, metavar="BATCHES", help="of the second epoch")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    dataset = larder.torch.IterableDataset(
        options.dataset, job=options.job, batch_size=options.batch_size, decode=decode, seed=1
    )
    loader = larder.torch.DataLoader(dataset, num_workers=options.workers)
    model = network(options.classes or len(dataset.class_names))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss_of = torch.nn.CrossEntropyLoss()
    done = 0  # batches of the epoch
    if os.path.exists(options.checkpoint):
        saved: dict[str, Any] = torch.load(options.checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        done = saved["done"]
        print(f"resumed in epoch {loader.epoch + 1} after {done} batches")
    while loader.epoch < options.epochs:
        epoch = loader.epoch
        before, stalled, began, losses = loader.statistics(), loader.stall_s, time.perf_counter(), []
        for images, labels in loader:
            loss = loss_of(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            done += 1
            if epoch == 1 and done == options.stop_after:
                break
        seconds = time.perf_counter() - began
        now = loader.statistics() - before
        stopped = loader.epoch == epoch
        print(
            f"epoch {epoch + 1}{' (stopped)' if stopped else ''}: {now.samples / seconds:.0f} samples/s, "
            f"hit ratio {now.hit_ratio:.2f}, remote {now.remote_bytes / seconds / 1e6:.1f} MB/s, "
            f"stall {100 * (loader.stall_s - stalled) / seconds:.0f} %, loss {sum(losses) / max(1, len(losses)):.3f}",
            flush=True,
        )
        torch.save(
            {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "loader": loader.state_dict(),
                "done": done if stopped else 0,
            },
            options.checkpoint,
        )
        if stopped:
            return
        done = 0


if __name__ == "__main__":
    main()
