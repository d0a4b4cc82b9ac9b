#!/usr/bin/python3
"""gcs.py: a Google Cloud Storage server on a loopback port that the kernel picks. It is fake-gcs-server, in memory.

It takes any token, and none: fault_proxy.py --require-token refuses what Google would refuse. Prints `port`. Ends when its
standard input is closed. It is built once with Go into ~/.cache/larder (or $XDG_CACHE_HOME/larder); `--install` does only
that. Without Go that says so and succeeds: the tests that need the server say what they left out.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import tempfile
import time
import urllib.error
import urllib.request

import program
from installed import GO_MISSING, cached, find_go, go_command

MODULE = "github.com/fsouza/fake-gcs-server@v1.56.1"


def install() -> pathlib.Path:
    """The server's program. Builds it if it is missing."""

    def build(folder: pathlib.Path) -> None:
        go_command(folder, "install", "-ldflags=-s -w", MODULE, GOBIN=str(folder))

    return cached("gcs", [MODULE.encode()], build) / "fake-gcs-server"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--install", action="store_true", help="build fake-gcs-server if need be, and end")
    arguments = parser.parse_args()
    if arguments.install and find_go() is None:
        return print(f"gcs.py: {GO_MISSING}")
    server = install()
    if arguments.install:
        return
    program.end_on_sigterm()
    with (
        tempfile.TemporaryDirectory(prefix="larder-gcs-", dir=os.environ.get("TMPDIR")) as directory,
        program.hold_port() as held,
    ):
        port = held.getsockname()[1]
        log = pathlib.Path(directory) / "gcs.log"
        child = program.Child(
            [server, "-scheme", "http", "-host", "127.0.0.1", "-port", port, "-backend", "memory",
             "-public-host", "localhost", "-log-level", "warn"],
            log,
        )  # fmt: skip
        try:
            while not is_up(port):
                child.check()
                time.sleep(0.02)
            program.announce(port=port, log=log)
            program.until_input_closes()
        finally:
            child.stop()


def is_up(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://localhost:{port}/_internal/healthcheck", timeout=10) as answer:
            return answer.status == 200
    except (urllib.error.URLError, ConnectionError):
        return False


if __name__ == "__main__":
    main()
