"""A real larder-allocator for tests, and node reports for it."""

from __future__ import annotations

import contextlib
import http.client
import pathlib
import re
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

from http_api import Answer, UnixConnection, ask


class Allocator:
    """A larder-allocator on its own socket. `end` ends the process that this object started."""

    def __init__(
        self,
        programs: pathlib.Path,
        directory: pathlib.Path,
        *options: str,
        remote_bandwidth: str = "1 GB/s",
        prefix: Sequence[str] = (),  # a command that runs the allocator, put before its command line
    ) -> None:
        self.socket = directory / "allocator.sock"
        self.log = directory / "allocator.log"
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                [
                    *prefix, programs / "larder-allocator", "--socket", self.socket,
                    "--remote-bandwidth", remote_bandwidth, *options,
                ],
                stdout=log,
                stderr=log,
            )  # fmt: skip
        while True:
            assert self._process.poll() is None, self.log.read_text()
            try:
                if self.ask("GET", "/healthz").status == 200:
                    return
            except OSError:
                time.sleep(0.01)

    def ask(self, method: str, target: str, body: object = None) -> Answer:
        """Sends one request over the Unix socket. Bytes are sent unchanged, anything else as JSON."""
        return ask(UnixConnection(self.socket), method, target, body)

    def ask_tcp(
        self,
        method: str,
        target: str,
        body: object = None,
        token: str | None = None,
        host: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Sends one request over TCP. The allocator must listen on a port that the kernel chose."""
        found = re.search(r"listening .*port=(\d+)", self.log.read_text())
        assert found, self.log.read_text()
        connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=60)
        sent = dict(headers or {})
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        if host is not None:
            sent["Host"] = host
        return ask(connection, method, target, body, sent)

    def stream(self, target: str, until: bytes) -> Answer:
        """Reads the beginning of an endless answer, up to the line that completes `until`."""
        connection = UnixConnection(self.socket)
        try:
            connection.request("GET", target)
            response = connection.getresponse()
            content_type = response.getheader("Content-Type", "").split(";")[0]
            body = b""
            while line := response.readline():
                body += line
                if until in body:
                    break
            return Answer(response.status, content_type, dict(response.getheaders()), body)
        finally:
            connection.close()

    def runs(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def end(self) -> int:
        self._process.terminate()
        return self._process.wait(60)


@contextlib.contextmanager
def reporting(allocator: Allocator, report: dict[str, object]) -> Iterator[None]:
    """Sends the report of a node each second, as its daemon does. The node and its datasets are forgotten otherwise, a
    lease after the last report. The first report has been taken when the body begins."""

    def send() -> bool:
        return allocator.ask("POST", "/v1/reports", report).status == 200

    ends = threading.Event()

    def go_on() -> None:
        while not ends.wait(1):
            send()

    # An allocator that finds a state waits for leases that may still be in force.
    while not send():
        time.sleep(0.05)
    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


def read_from_remote_only(allocator: Allocator, dataset: str, bytes_per_second: float) -> None:
    """Limits the remote, and gives the dataset no cache, so that data is the bottleneck."""
    assert allocator.ask("PUT", "/v1/remote", {"bytes_per_second": bytes_per_second}).status == 200
    while allocator.ask("PUT", f"/v1/datasets/{dataset}/pin", {"bytes": 0}).status == 404:
        time.sleep(0.1)  # until the node has reported the dataset


class HeldLeases:
    """The leases that a node has been answered, in their order, and the rates that they allow."""

    def __init__(self) -> None:
        self._held: list[tuple[float, float, float, float]] = []  # from, until, bytes per second, and afterwards

    def add(self, sent: float, lease: dict) -> None:
        """Notes a lease that arrives now, in the answer to a report of the time `sent`."""
        rate = sum(rate["bytes_per_second"] for rate in lease["rates"])
        self._held.append((time.monotonic(), sent + lease["lease_ms"] / 1000, rate, lease["floor_bytes_per_second"]))

    def __len__(self) -> int:
        return len(self._held)

    def begins(self) -> list[float]:
        return [begins for begins, *_ in self._held]

    def changes(self) -> list[float]:
        """All times at which the rate may change."""
        return [at for begins, ends, *_ in self._held for at in (begins, ends)]

    def rate_at(self, at: float) -> float:
        """The most that the node may take then: the rate of its last lease or, once that has expired, its floor."""
        begun = [lease for lease in self._held if lease[0] <= at]
        if not begun:
            return 0.0
        _, ends, rate, floor = begun[-1]
        return rate if at < ends else floor


def node_report(node: str = "a", **changes: object) -> dict[str, object]:
    """One node with 100 GB of cache, and job "vision" reading the 200 GB of "images" on it."""
    report: dict[str, object] = {
        "node": node,
        "instance": 1,
        "lease_applied": 0,
        "gpus": 8,
        "memory_bytes": 10_000_000_000,
        "disk_bytes": 90_000_000_000,
        "nic_bytes_per_second": 12.5e9,
        "datasets": [
            {
                "name": "images",
                "size_bytes": 200_000_000_000,
                "quota_memory_bytes": 0,
                "quota_disk_bytes": 0,
                "cached_memory_bytes": 0,
                "cached_disk_bytes": 50_000_000_000,
            }
        ],
        "jobs": [
            {
                "name": "vision",
                "dataset": "images",
                "ranks": 4,
                "bytes": 1_000_000_000,
                "busy_s": 2.5,
                "demand_bytes_per_second": 5e8,
                "remote_bytes": 400_000_000,
                "unread_bytes": 100_000_000_000,
                "unread_cached_bytes": 25_000_000_000,
            }
        ],
    }
    return report | changes
