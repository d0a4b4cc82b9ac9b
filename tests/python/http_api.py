"""Requests to the HTTP APIs of the daemons."""

from __future__ import annotations

import dataclasses
import http.client
import json
import pathlib
import socket
import subprocess
import sys
from collections.abc import Mapping

# Runs a command as the user nobody, who may pass any directory: a test's directories are for their owner only. Works for
# root only.
_RIGHTS = "-all,+dac_override,+dac_read_search"
AS_NOBODY = ("setpriv", "--reuid=65534", "--clear-groups", f"--inh-caps={_RIGHTS}", f"--ambient-caps={_RIGHTS}")


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


def ask_as_nobody(path: pathlib.Path, method: str, target: str, body: object) -> Answer:
    """The same over a Unix socket, from a process of another user."""
    program = (
        "import json, pathlib, sys; from http_api import UnixConnection, ask\n"
        "answer = ask(UnixConnection(pathlib.Path(sys.argv[1])), *sys.argv[2:4], json.loads(sys.argv[4]))\n"
        "print(json.dumps([answer.status, answer.content_type, answer.body.decode()]))"
    )
    ran = subprocess.run(
        [*AS_NOBODY, sys.executable, "-c", program, path, method, target, json.dumps(body)],
        cwd=pathlib.Path(__file__).parent, capture_output=True, text=True, check=True,
    )  # fmt: skip
    status, content_type, text = json.loads(ran.stdout)
    return Answer(status, content_type, {}, text.encode())
