"""Clocks that disagree with those of other machines."""

from __future__ import annotations

import pathlib
import random
import struct
from collections.abc import Iterable

HOUR_S = 3600


class BootClocks:
    """Clocks that measure durations: they begin when a machine is booted."""

    def __init__(self, machines: Iterable[str], draw: random.Random) -> None:
        self._booted_before_s = {name: draw.randrange(100 * 24 * HOUR_S) for name in machines}

    def of(self, machine: str) -> list[object]:
        """The words before a command line that run it by the machine's clocks. The command has the pid of the process."""
        return ["unshare", "--time", *(f"--{clock}={self._booted_before_s[machine]}" for clock in ("monotonic", "boottime"))]


class WallClock:
    """The wall clock of one program, hours before or after the others. `library` is wall_clock.cc."""

    def __init__(self, library: pathlib.Path, path: pathlib.Path, draw: random.Random) -> None:
        self._library = library
        self._path = path
        self._draw = draw
        path.write_bytes(bytes(8))
        self.jump()

    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), "LARDER_CLOCK_FILE": str(self._path)}

    def jump(self) -> None:
        with open(self._path, "r+b") as file:
            file.write(struct.pack("<q", self._draw.randrange(-20 * HOUR_S, 20 * HOUR_S) * 1_000_000_000))
