"""Reads a dataset of any format through Larder, epoch after epoch, and prints the figures of each epoch.

    python read_epochs.py DATASET --epochs 2
"""

from __future__ import annotations

import argparse
import time

import larder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("dataset")
    parser.add_argument("--job", default="read-epochs")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    options = parser.parse_args()
    with larder.Loader(options.dataset, job=options.job, batch_size=options.batch_size, seed=1) as loader:
        for epoch in range(options.epochs):
            before, began = loader.statistics(), time.perf_counter()
            fields: set[str] = set()
            for batch in loader:
                fields.update(*(sample.fields for sample in batch))
            seconds = time.perf_counter() - began
            now = loader.statistics() - before
            print(
                f"epoch {epoch + 1}: {now.samples / seconds:.0f} samples/s, hit ratio {now.hit_ratio:.2f}, "
                f"remote {now.remote_bytes / seconds / 1e6:.1f} MB/s, fields {', '.join(sorted(fields))}",
                flush=True,
            )


if __name__ == "__main__":
    main()
