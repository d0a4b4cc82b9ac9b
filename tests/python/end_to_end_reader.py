"""end_to_end_reader.py SITE DATASET RATE EPOCHS STEP: a training job that reads a dataset through the daemon of its
node. It takes so many bytes a second at most, in all its ranks, as one whose GPUs are busy for a while with each batch.
After each STEP batches, the ranks wait for each other, as those of a data-parallel job do to add the gradients that
each has accumulated.

On SIGTERM the ranks finish their step, and the first one saves the job's position, from which the next attempt goes on.
Each rank notes when it began to read, and the samples that its loop takes.

LARDER_JOB, LARDER_NODES and LARDER_NODE_RANK name the job and its place. SITE has a folder for each node."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import sys
import time
from multiprocessing.connection import Client, Connection, Listener

import larder

BATCH = 4  # samples
WAITED_S = 0.005  # a batch that comes sooner was there
POLL_S = 0.01
GO_ON, STOP = b"go on", b"stop"


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

    def any_stops(self, stops: bool) -> bool:
        """Whether any rank is to stop, once all ranks have called it. Fails if one of them has ended."""
        if self.is_first:
            stops = any([stops, *(other.recv_bytes() == STOP for other in self.others)])
        for other in self.others:
            other.send_bytes(STOP if stops else GO_ON)
        return stops if self.is_first else self.others[0].recv_bytes() == STOP


class Notes:
    """What the rank has done, a line each, in one file of the job for all its ranks and attempts."""

    def __init__(self, path: pathlib.Path) -> None:
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.attempt = {"attempt": int(os.environ.get("LARDER_ATTEMPT", "1"))}

    def add(self, **what: object) -> None:
        os.write(self.file, json.dumps(self.attempt | what).encode() + b"\n")


def save(position: pathlib.Path, loader: larder.Loader) -> None:
    new = position.with_suffix(".new")
    new.write_text(json.dumps(loader.state_dict()))
    new.rename(position)


def main(site: str, dataset: str, rate: float, epochs: int, step: int) -> None:
    job = os.environ["LARDER_JOB"]
    nodes = os.environ["LARDER_NODES"].split(",")
    rank = int(os.environ.get("LARDER_NODE_RANK", "0"))
    own_rate = rate / len(nodes)
    notes = Notes(pathlib.Path(site) / f"{job}.reads")
    position = pathlib.Path(site) / f"{job}.position"
    ranks = Ranks(pathlib.Path(site) / f"{job}.ranks", rank, len(nodes))
    asked_to_stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked_to_stop.append(number))
    # Few blocks are prefetched, as their bytes count as read.
    loader = larder.Loader(
        dataset, socket=str(pathlib.Path(site) / nodes[rank] / "larderd.sock"), batch_size=BATCH,
        memory_budget="4MiB", rank=rank, world_size=len(nodes), seed=sum(job.encode()),
    )  # fmt: skip
    if position.exists():
        loader.load_state_dict(json.loads(position.read_text()))
    with loader:
        notes.add(began_unix_s=time.time())
        asked = done = time.monotonic()
        for epoch in range(loader.epoch, epochs):
            for number, batch in enumerate(loader, start=1):
                now = time.monotonic()
                begin = done if now - asked < WAITED_S else now  # a sleep that lasted too long is made up for
                done = begin + sum(len(sample.bytes) for sample in batch) / own_rate
                notes.add(epoch=epoch, samples=[sample.index for sample in batch])
                del batch
                time.sleep(max(0.0, done - time.monotonic()))
                if len(nodes) == 1 or number % step == 0:
                    if ranks.any_stops(bool(asked_to_stop)):
                        if rank == 0:
                            save(position, loader)
                        return
                    if len(nodes) > 1:
                        done = time.monotonic()  # nobody makes up for the wait
                asked = time.monotonic()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
