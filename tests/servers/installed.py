"""Programs that tests fetch or build once, into ~/.cache/larder (or $XDG_CACHE_HOME/larder), and the go command."""

from __future__ import annotations

import fcntl
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable

GO_VERSION = (1, 26)
GO_MISSING = "Go 1.26 is missing: install it from https://go.dev/dl, or put its folder into the PATH"
UNUSED_S = 14 * 86400


def cached(kind: str, contents: Iterable[bytes], make: Callable[[pathlib.Path], None]) -> pathlib.Path:
    """The directory of what `make` has built from these contents. Safe if several processes do so."""
    digest = hashlib.sha256()
    for content in contents:
        digest.update(content)
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "larder"
    folder = cache / f"{kind}-{digest.hexdigest()[:16]}"
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / f"{kind}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            unfinished = folder.with_name(f"{kind}-unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            make(unfinished)
            unfinished.rename(folder)
            for old in cache.glob(f"{kind}-*"):
                if time.time() - old.stat().st_mtime > UNUSED_S:  # other clones may use other versions
                    shutil.rmtree(old)
        os.utime(folder)
    return folder


def find_go() -> str | None:
    """The go command, if it is recent enough."""
    for go in (shutil.which("go"), "/usr/local/go/bin/go"):
        if go is None or not os.path.exists(go):
            continue
        ran = subprocess.run([go, "env", "GOVERSION"], env=go_environment(), capture_output=True, text=True, check=False)
        found = re.match(r"go(\d+)\.(\d+)", ran.stdout)
        if found and (int(found[1]), int(found[2])) >= GO_VERSION:
            return go
    return None


def go_environment() -> dict[str, str]:
    # Another version of Go must not be fetched unasked. The same flags everywhere, so that packages are compiled once.
    flags = {"CGO_ENABLED": "0", "GOFLAGS": "-trimpath -buildvcs=false"}
    return os.environ | flags | {"GOTOOLCHAIN": "local"}


def go_command(directory: pathlib.Path, *words: object, **environment: str) -> str:
    """Runs the go command in a directory, and returns what it prints."""
    go = find_go()
    if go is None:
        sys.exit(GO_MISSING)
    ran = subprocess.run(
        ["nice", "-n", "10", go, *map(str, words)], cwd=directory,
        env=go_environment() | environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip
    if ran.returncode != 0:
        sys.exit(f"in {directory}: go {' '.join(map(str, words))}:\n{(ran.stdout + ran.stderr)[-4000:]}")
    return ran.stdout.strip()
