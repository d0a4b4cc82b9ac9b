"""What a build directory was configured with."""

from __future__ import annotations

import pathlib


def sanitizer(build: pathlib.Path) -> str:
    """The sanitizers that a build's programs are compiled with, "thread" for example; empty: none."""
    for line in (build / "CMakeCache.txt").read_text().splitlines():
        if line.startswith("LARDER_SANITIZE:"):
            return line.partition("=")[2]
    return ""
