"""end_to_end_reader.py SITE DATASET RATE EPOCHS: a training job that reads a dataset through the daemon of its node. It
takes so many bytes a second at most, in all its ranks, as one whose GPUs are busy for a while with each batch. After
each step of several batches, the ranks wait for each other, as those of a data-parallel job do to add the gradients
that each has accumulated.

LARDER_JOB, LARDER_NODES and LARDER_NODE_RANK name the job and its place. SITE has a folder for each node."""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
import time
from multiprocessing.connection import Client, Connection, Listener

import larder

BATCH = 4  # samples
STEP = 8  # batches
WAITED_S = 0.005  # a batch that comes sooner was there
POLL_S = 0.01


class Ranks:
    """The ranks of a job. The first one listens on a socket, and the others connect to it."""

    def __init__(self, socket: pathlib.Path, rank: int, ranks: int) -> None:
        self.is_first = rank == 0
        if self.is_first:
            with contextlib.suppress(FileNotFoundError):
                socket.unlink()  # of an earlier attempt
            with Listener(str(socket)) as listener:
                self.others = [listener.accept() for _ in range(ranks - 1)]
        else:
            self.others = [self._connect(socket)]

    @staticmethod
    def _connect(socket: pathlib.Path) -> Connection:
        while True:  # the cluster manager ends this process if the first rank never starts
            try:
                return Client(str(socket))
            except (FileNotFoundError, ConnectionRefusedError):
                time.sleep(POLL_S)

    def wait_for_all(self) -> None:
        """Returns when all ranks have called it. Fails if one of them has ended."""
        if self.is_first:
            for other in self.others:
                other.recv_bytes()
        for other in self.others:
            other.send_bytes(b"done")
        if not self.is_first:
            self.others[0].recv_bytes()


def main(site: str, dataset: str, rate: float, epochs: int) -> None:
    nodes = os.environ["LARDER_NODES"].split(",")
    rank = int(os.environ.get("LARDER_NODE_RANK", "0"))
    own_rate = rate / len(nodes)
    ranks = Ranks(pathlib.Path(site) / f"{os.environ['LARDER_JOB']}.ranks", rank, len(nodes))
    # Few blocks are prefetched, as their bytes count as read.
    loader = larder.Loader(
        dataset, socket=str(pathlib.Path(site) / nodes[rank] / "larderd.sock"), batch_size=BATCH,
        memory_budget="4MiB", rank=rank, world_size=len(nodes), seed=sum(os.environ["LARDER_JOB"].encode()),
    )  # fmt: skip
    with loader:
        asked = done = time.monotonic()
        for _ in range(epochs):
            for number, batch in enumerate(loader, start=1):
                now = time.monotonic()
                begin = done if now - asked < WAITED_S else now  # a sleep that lasted too long is made up for
                done = begin + sum(len(sample.bytes) for sample in batch) / own_rate
                del batch
                time.sleep(max(0.0, done - time.monotonic()))
                if number % STEP == 0:
                    ranks.wait_for_all()
                    done = time.monotonic()  # nobody makes up for the wait
                asked = time.monotonic()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))
