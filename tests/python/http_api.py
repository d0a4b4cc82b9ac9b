"""Requests to the HTTP APIs of the daemons."""

from __future__ import annotations

import dataclasses
import http.client
import json
import pathlib
import socket
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


def ask(
    connection: http.client.HTTPConnection,
    method: str,
    target: str,
    body: object = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Sends one request and closes the connection. Bytes are sent unchanged, anything else as JSON."""
    try:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, target, body=data, headers=dict(headers or {}))
        response = connection.getresponse()
        content_type = response.getheader("Content-Type", "").split(";")[0]
        return Answer(response.status, content_type, dict(response.getheaders()), response.read())
    finally:
        connection.close()
