"""Compares three ways to get image files into one Python process, in one run: larder.Loader over the cached files, a
loop of open().read() over the same files in the page cache, and WebDataset's reader over tar shards of them. Each round
runs all three; the medians of the rounds' ratios are printed as JSON."""

import argparse
import glob
import json
import os
import random
import statistics
import time

import larder

BATCH = 256


def larder_epoch(loader: larder.Loader) -> tuple[int, int, float]:
    """Reads the length, the first and the last byte of every sample through its memoryview."""
    samples = total = 0
    began = time.perf_counter()
    for batch in loader:
        for view in batch.samples_bytes():
            total += len(view) + view[0] * 0 + view[-1] * 0
        samples += len(batch)
    return samples, total, time.perf_counter() - began


def open_read_epoch(paths: list[str]) -> tuple[int, int, float]:
    total = 0
    random.shuffle(paths)
    began = time.perf_counter()
    for path in paths:
        with open(path, "rb") as file:
            data = file.read()
        total += len(data) + data[0] * 0 + data[-1] * 0
    return len(paths), total, time.perf_counter() - began


def webdataset_epoch(shards: list[str]) -> tuple[int, int, float]:
    import webdataset

    samples = total = 0
    began = time.perf_counter()
    for sample in webdataset.WebDataset(shards, shardshuffle=False):
        data = next(value for key, value in sample.items() if not key.startswith("__") and key != "cls")
        total += len(data) + data[0] * 0 + data[-1] * 0
        samples += 1
    return samples, total, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("socket", "dataset", "images", "shards"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    paths = [
        os.path.join(directory, name)
        for directory, _, names in os.walk(options.images)
        for name in names
        if os.path.getsize(os.path.join(directory, name)) > 0
    ]
    shards = sorted(glob.glob(os.path.join(options.shards, "*.tar")))
    with larder.Loader(options.dataset, job="python", batch_size=BATCH, socket=options.socket) as loader:
        larder_epoch(loader)  # fills the cache
        open_read_epoch(paths)  # fills the page cache
        open_ratios, webdataset_ratios, rates = [], [], []
        for _ in range(options.rounds):
            ours = larder_epoch(loader)
            plain = open_read_epoch(paths)
            packed = webdataset_epoch(shards)
            if not ours[:2] == plain[:2] == packed[:2]:
                raise SystemExit(f"not the same samples: {ours[:2]}, {plain[:2]}, {packed[:2]}")
            rates.append(ours[0] / ours[2])
            open_ratios.append(plain[2] / ours[2])
            webdataset_ratios.append(packed[2] / ours[2])
    print(
        json.dumps(
            {
                "samples": ours[0],
                "bytes": ours[1],
                "samples_per_second": statistics.median(rates),
                "open_read_ratio": statistics.median(open_ratios),
                "webdataset_ratio": statistics.median(webdataset_ratios),
            }
        )
    )


if __name__ == "__main__":
    main()
