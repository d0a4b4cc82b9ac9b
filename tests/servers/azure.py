#!/usr/bin/python3
"""azure.py: an Azure Blob server on a loopback port that the kernel picks. It is Azurite, in memory.

It verifies signatures by the shared key and by SAS tokens, answers ranges and honours ETags; accounts are in the path:
http://localhost:PORT/ACCOUNT/CONTAINER/BLOB. Prints `port`, `account`, `key` and `log`. Ends when its standard input is
closed. It is fetched once from the npm registry into ~/.cache/larder (or $XDG_CACHE_HOME/larder), 350 MB; `--install` does
only that. Without Node.js that says so and succeeds: the tests that need the server say what they left out. Azurite asks
for Node.js 22; it passes these tests with 20, too.
"""

from __future__ import annotations

import argparse
import base64
import os
import pathlib
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time

import program
from installed import cached

PACKAGE = "azurite@3.37.0"
NODE_MISSING = "Node.js 20 or its npm is missing: install both from https://nodejs.org"
ACCOUNT = "lardertest"


def has_node() -> bool:
    """True if this machine has a Node.js that runs Azurite, and npm to fetch it."""
    node = shutil.which("node")
    if node is None or shutil.which("npm") is None:
        return False
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.match(r"v(\d+)\.", version)
    return found is not None and int(found[1]) >= 20


def install() -> pathlib.Path:
    """The script that starts the Blob server. Fetches it if it is missing."""

    def fetch(folder: pathlib.Path) -> None:
        if not has_node():
            sys.exit(f"azure.py: {NODE_MISSING}")
        ran = subprocess.run(
            ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--omit=dev", "--prefix", folder, PACKAGE],
            stdin=subprocess.DEVNULL, capture_output=True, text=True,
        )  # fmt: skip
        if ran.returncode != 0:
            sys.exit(f"azure.py: cannot fetch Azurite:\n{(ran.stdout + ran.stderr)[-4000:]}")

    return cached("azurite", [PACKAGE.encode()], fetch) / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--install", action="store_true", help="fetch Azurite if need be, and end")
    arguments = parser.parse_args()
    if arguments.install and not has_node():
        return print(f"azure.py: {NODE_MISSING}")
    script = install()
    if arguments.install:
        return
    program.end_on_sigterm()
    key = base64.b64encode(secrets.token_bytes(64)).decode()
    os.environ["AZURITE_ACCOUNTS"] = f"{ACCOUNT}:{key}"
    with tempfile.TemporaryDirectory(prefix="larder-azure-", dir=os.environ.get("TMPDIR")) as directory:
        log = pathlib.Path(directory) / "azurite.log"
        child = program.Child(
            ["node", script, "--inMemoryPersistence", "--blobHost", "127.0.0.1", "--blobPort", 0, "--silent",
             "--disableTelemetry"],
            log,
            cwd=directory,
        )  # fmt: skip
        try:
            while not (found := re.search(r"successfully listens on http://127\.0\.0\.1:(\d+)", log.read_text())):
                child.check()
                time.sleep(0.02)
            program.announce(port=found[1], account=ACCOUNT, key=key, log=log)
            program.until_input_closes()
        finally:
            child.stop()


if __name__ == "__main__":
    main()
