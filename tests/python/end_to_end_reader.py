"""end_to_end_reader.py SITE DATASET RATE EPOCHS: a training job that reads a dataset through the daemon of its node. It
takes so many bytes a second at most, in all its ranks, as one whose GPUs are busy for a while with each batch.

LARDER_JOB, LARDER_NODES and LARDER_NODE_RANK name the job and its place. SITE has a folder for each node."""

from __future__ import annotations

import os
import pathlib
import sys
import time

import larder

BATCH = 4  # samples
WAITED_S = 0.005  # a batch that comes sooner was there


def main(site: str, dataset: str, rate: float, epochs: int) -> None:
    nodes = os.environ["LARDER_NODES"].split(",")
    rank = int(os.environ.get("LARDER_NODE_RANK", "0"))
    own_rate = rate / len(nodes)
    # Few blocks are prefetched, as their bytes count as read.
    loader = larder.Loader(
        dataset, socket=str(pathlib.Path(site) / nodes[rank] / "larderd.sock"), batch_size=BATCH,
        memory_budget="4MiB", rank=rank, world_size=len(nodes), seed=sum(os.environ["LARDER_JOB"].encode()),
    )  # fmt: skip
    with loader:
        asked = done = time.monotonic()
        for _ in range(epochs):
            for batch in loader:
                now = time.monotonic()
                begin = done if now - asked < WAITED_S else now  # a sleep that lasted too long is made up for
                done = begin + sum(len(sample.bytes) for sample in batch) / own_rate
                del batch
                time.sleep(max(0.0, done - time.monotonic()))
                asked = time.monotonic()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))
