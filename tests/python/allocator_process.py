"""A real larder-allocator for tests, and node reports for it."""

from __future__ import annotations

import dataclasses
import http.client
import json
import pathlib
import re
import socket
import subprocess
import time
from collections.abc import Mapping


@dataclasses.dataclass
class Answer:
    status: int
    content_type: str
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> object:
        return json.loads(self.body)


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: pathlib.Path) -> None:
        super().__init__("larder", timeout=60)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Allocator:
    """A larder-allocator on its own socket. `end` ends the process that this object started."""

    def __init__(self, programs: pathlib.Path, directory: pathlib.Path, *options: str) -> None:
        self.socket = directory / "allocator.sock"
        self.log = directory / "allocator.log"
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                [programs / "larder-allocator", "--socket", self.socket, "--remote-bandwidth", "1 GB/s", *options],
                stdout=log,
                stderr=log,
            )
        while True:
            assert self._process.poll() is None, self.log.read_text()
            try:
                if self.ask("GET", "/healthz").status == 200:
                    return
            except OSError:
                time.sleep(0.01)

    def ask(self, method: str, target: str, body: object = None) -> Answer:
        """Sends one request over the Unix socket. Bytes are sent unchanged, anything else as JSON."""
        return self._ask(UnixConnection(self.socket), method, target, body, {})

    def ask_tcp(self, method: str, target: str, body: object = None, token: str | None = None) -> Answer:
        """Sends one request over TCP. The allocator must listen on a port that the kernel chose."""
        found = re.search(r"listening .*port=(\d+)", self.log.read_text())
        assert found, self.log.read_text()
        connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=60)
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return self._ask(connection, method, target, body, headers)

    @staticmethod
    def _ask(
        connection: http.client.HTTPConnection, method: str, target: str, body: object, headers: dict[str, str]
    ) -> Answer:
        try:
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, target, body=data, headers=headers)
            response = connection.getresponse()
            content_type = response.getheader("Content-Type", "").split(";")[0]
            return Answer(response.status, content_type, dict(response.getheaders()), response.read())
        finally:
            connection.close()

    def stream(self, target: str, until: bytes) -> Answer:
        """Reads the beginning of an endless answer, up to the line that completes `last`."""
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
