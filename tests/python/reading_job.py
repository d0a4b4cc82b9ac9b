"""A training job that reads in a thread of the test."""

from __future__ import annotations

import contextlib
import json
import threading

import larder
from conftest import Daemon
from epochs import wait_until


class ReadingJob:
    """A training job in a thread that reads epochs until `close`, or until an error of the loader."""

    def __init__(self, daemon: Daemon, dataset: str, job: str, epochs: int = 1_000_000) -> None:
        self._stopping = threading.Event()
        self._arguments = (daemon, dataset, job, epochs)
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        wait_until(lambda: job in [known["job"] for known in json.loads(daemon.command("--json", "jobs"))["jobs"]])

    def _read(self) -> None:
        daemon, dataset, job, epochs = self._arguments
        loader = larder.Loader(dataset, socket=daemon.socket, job=job, batch_size=1)
        with contextlib.suppress(larder.Error):
            for _ in range(epochs):
                for _ in loader:
                    if self._stopping.is_set():
                        return

    def wait(self) -> None:
        self._thread.join()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
