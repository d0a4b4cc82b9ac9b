"""Outages of remotes as operators see them."""

from __future__ import annotations

import http.server
import json
import os
import pathlib
import random
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from epochs import wait_until
from servers import FaultProxy, Nginx


@pytest.fixture
def served(serve_directory: Callable[..., Nginx], tmp_path: pathlib.Path) -> Nginx:
    """A list of 40 files of 20 kB."""
    draw = random.Random(3)
    for i in range(40):
        (tmp_path / f"{i:02}.bin").write_bytes(draw.randbytes(20_000))
    (tmp_path / "all.txt").write_text("".join(f"{i:02}.bin\n" for i in range(40)))
    return serve_directory(tmp_path)


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that nobody listens on and no other process can get."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def status(daemon: Any) -> dict[str, Any]:
    return json.loads(daemon.command("--json", "status"))


def test_outage_is_shown_and_logged_once_at_start_and_end(
    start_daemon: Callable[..., Any], served: Nginx, fault_proxy: Callable[..., FaultProxy]
) -> None:
    daemon = start_daemon()
    proxy = fault_proxy(served.port)
    daemon.command("dataset", "add", "far", f"{proxy.endpoint}/all.txt", "--quota-memory", "8MiB")
    assert status(daemon)["outages"] == []
    proxy.set(reset_before=1.0)
    warm = subprocess.Popen(
        daemon._command("dataset", "warm", "far"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )  # fmt: skip
    wait_until(lambda: status(daemon)["outages"] != [])
    (outage,) = status(daemon)["outages"]
    assert outage["endpoint"] == proxy.endpoint
    assert "reset by peer" in outage["problem"] and outage["seconds"] >= 1
    assert "TLS" not in outage["problem"]
    assert f"{proxy.endpoint}, which has not answered for" in daemon.command("status")
    assert f"remote away: {proxy.endpoint}" in daemon.command("top", "--count", "1")
    proxy.set()
    output, errors = warm.communicate(timeout=60)
    assert warm.returncode == 0, output + errors
    assert f"waits for {proxy.endpoint}" in errors
    assert "40 of 40 blocks" in output
    wait_until(lambda: status(daemon)["outages"] == [])
    log = daemon.log.read_text().splitlines()
    assert sum("a remote does not answer" in line for line in log) == 1
    (ended,) = [line for line in log if "the remote answers again" in line]
    assert proxy.endpoint in ended and "outage=" in ended
    metrics = subprocess.run(
        ["curl", "-s", "--unix-socket", daemon.state / "admin.sock", "http://larder/metrics"], capture_output=True, text=True
    ).stdout
    assert "larder_http_outages_total 1\n" in metrics


def test_dataset_without_its_directory_is_said_to_be_not_served(
    start_daemon: Callable[..., Any], tmp_path: pathlib.Path
) -> None:
    daemon = start_daemon()
    directory = tmp_path / "files"
    directory.mkdir()
    (directory / "1.bin").write_bytes(b"1")
    daemon.command("dataset", "add", "files", directory)
    assert daemon.try_command("dataset", "ls").stderr == ""
    daemon.end()
    directory.rename(tmp_path / "away")
    daemon.start()
    reason = f"the directory {directory} does not exist here"
    listed = daemon.try_command("dataset", "ls")
    assert listed.returncode == 0
    assert listed.stderr.startswith("not served: files: ") and reason in listed.stderr
    assert 'problem: dataset "files" is not served: ' in daemon.command("status")
    assert reason in daemon.command("status")
    (tmp_path / "away").rename(directory)
    wait_until(lambda: status(daemon)["problems"] == [])
    assert daemon.try_command("dataset", "ls").stderr == ""


def test_server_that_refuses_a_request_is_not_called_away(start_daemon: Callable[..., Any]) -> None:
    class Moved(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(301)
            self.end_headers()

    daemon = start_daemon(environment=os.environ | {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key"})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Moved) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"127.0.0.1:{server.server_port}"
        moved = daemon.try_command("dataset", "add", "a", "s3://bucket/a", "--endpoint", f"http://{endpoint}")
        plain = daemon.try_command("dataset", "add", "b", f"https://{endpoint}/all.txt")
        server.shutdown()
    assert moved.returncode == 1 and "bucket bucket is in another region: give --region" in moved.stderr
    assert plain.returncode == 1 and "the server speaks no TLS on this port: write http://" in plain.stderr


def test_adding_from_closed_port_names_it_and_has_own_exit_code(
    start_daemon: Callable[..., Any], closed_port: int
) -> None:
    daemon = start_daemon()
    url = f"http://127.0.0.1:{closed_port}"
    failed = daemon.try_command("dataset", "add", "nowhere", f"{url}/all.txt")
    assert failed.returncode == 6, failed.stderr
    waits, error = failed.stderr.splitlines()[0], failed.stderr.splitlines()[-1]
    assert f"waits for {url}, which has not answered for" in waits
    assert "connect" in waits
    assert error.startswith("larder: ") and url in error
