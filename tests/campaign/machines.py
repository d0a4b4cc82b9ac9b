"""Machines that lose each other: network namespaces that a bridge connects, each with clocks of its own."""

from __future__ import annotations

import os
import pathlib
import random
import struct
import subprocess
import sys
from collections.abc import Callable

HOUR_S = 3600


def run(*words: object) -> None:
    subprocess.run([str(word) for word in words], check=True, capture_output=True)


def in_own_network() -> None:
    """Runs this program in network and mount namespaces of its own, which end with it. Needs root."""
    if os.environ.get("LARDER_OWN_NETWORK"):
        pathlib.Path("/run/netns").mkdir(exist_ok=True)
        run("mount", "--make-rprivate", "/")
        run("mount", "-t", "tmpfs", "none", "/run/netns")
        return
    command = ["unshare", "--net", "--mount", sys.executable, *sys.argv]
    os.execvpe("unshare", command, os.environ | {"LARDER_OWN_NETWORK": "1"})


class Machines:
    """A context: its machines are gone at its end. This process, and what it starts by itself, is at `host`."""

    def __init__(self, host: str, addresses: dict[str, str], draw: random.Random) -> None:
        self._addresses = addresses
        # A clock that measures durations begins when the machine is booted.
        self._booted_before_s = {name: draw.randrange(100 * 24 * HOUR_S) for name in addresses}
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "lan", "type", "bridge")
        run("ip", "address", "add", f"{host}/24", "dev", "lan")
        run("ip", "link", "set", "lan", "up")
        for name, address in addresses.items():
            run("ip", "netns", "add", name)
            run("ip", "link", "add", f"to-{name}", "type", "veth", "peer", "name", "eth0", "netns", name)
            run("ip", "link", "set", f"to-{name}", "master", "lan", "up")
            self._within(name, "ip", "address", "add", f"{address}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                self._within(name, "ip", "link", "set", device, "up")

    def __enter__(self) -> Machines:
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._addresses:
            run("ip", "link", "del", f"to-{name}")  # the kernel ends a namespace later than `ip` does
            run("ip", "netns", "del", name)
        run("ip", "link", "del", "lan")

    @staticmethod
    def _within(name: str, *words: object) -> None:
        run("ip", "netns", "exec", name, *words)

    def prefix(self, name: str) -> list[object]:
        """What to put before a command, to run it there. The process stays the one that is started."""
        clocks = (f"--{clock}={self._booted_before_s[name]}" for clock in ("monotonic", "boottime"))
        return ["ip", "netns", "exec", name, "unshare", "--time", *clocks]

    def cut(self, name: str, others: tuple[str, ...]) -> Callable[[], None]:
        """Loses what `name` sends to the others' addresses. Returns what undoes it."""
        for address in others:  # nobody has this hardware address
            self._within(
                name, "ip", "neighbour", "replace", address, "lladdr", "02:00:00:00:00:99", "nud", "permanent", "dev", "eth0"
            )

        def mend() -> None:
            for address in others:
                self._within(name, "ip", "neighbour", "del", address, "dev", "eth0")

        return mend


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
