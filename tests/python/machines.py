"""Machines of a test: network namespaces that a bridge connects. They need root, and end with the network of the
process that made them."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Mapping

NOBODY = "02:00:00:00:00:99"  # a hardware address that no machine has


def run(*words: object) -> None:
    subprocess.run([str(word) for word in words], check=True, capture_output=True)


def in_own_network() -> None:
    """Runs this program again in network and mount namespaces of its own, which end with it."""
    if os.environ.get("LARDER_OWN_NETWORK"):
        pathlib.Path("/run/netns").mkdir(exist_ok=True)
        run("mount", "--make-rprivate", "/")
        run("mount", "-t", "tmpfs", "none", "/run/netns")
        return
    command = ["unshare", "--net", "--mount", sys.executable, *sys.argv]
    os.execvpe("unshare", command, os.environ | {"LARDER_OWN_NETWORK": "1"})


class Machines:
    """One machine for each name in `addresses`. This process is on the bridge, at the address `own`."""

    def __init__(self, addresses: Mapping[str, str], own: str) -> None:
        self._names = tuple(addresses)
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "lan", "type", "bridge")
        run("ip", "address", "add", f"{own}/24", "dev", "lan")
        run("ip", "link", "set", "lan", "up")
        for name, address in addresses.items():
            run("ip", "netns", "add", name)
            run("ip", "link", "add", f"to-{name}", "type", "veth", "peer", "name", "eth0", "netns", name)
            run("ip", "link", "set", f"to-{name}", "master", "lan", "up")
            self.within(name, "ip", "address", "add", f"{address}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                self.within(name, "ip", "link", "set", device, "up")

    @staticmethod
    def on(name: str) -> list[str]:
        """The words before a command line that run it on the machine. The command has the pid of the process."""
        return ["ip", "netns", "exec", name]

    @classmethod
    def within(cls, name: str, *words: object) -> None:
        run(*cls.on(name), *words)

    def cut(self, name: str, others: tuple[str, ...]) -> Callable[[], None]:
        """Loses what `name` sends to the addresses of others. Returns what undoes it."""
        for address in others:
            self.within(
                name, "ip", "neighbour", "replace", address, "lladdr", NOBODY, "nud", "permanent", "dev", "eth0"
            )

        def mend() -> None:
            for address in others:
                self.within(name, "ip", "neighbour", "del", address, "dev", "eth0")

        return mend

    @staticmethod
    def cut_off(name: str) -> None:
        """Takes the machine off the network."""
        run("ip", "link", "set", f"to-{name}", "down")

    def limit_sent(self, name: str, bytes_per_second: float, burst_bytes: int) -> None:
        """Limits what the machine sends, as a slow link does."""
        rate = f"{round(bytes_per_second * 8)}bit"
        self.within(
            name, "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", rate, "burst", burst_bytes,
            "latency", "1s",
        )  # fmt: skip

    @staticmethod
    def sent_bytes(name: str) -> int:
        """What the machine has sent, counted at its port of the bridge."""
        shown = subprocess.run(
            ["ip", "-json", "-statistics", "link", "show", f"to-{name}"], check=True, capture_output=True
        )
        sent: int = json.loads(shown.stdout)[0]["stats64"]["rx"]["bytes"]
        return sent

    def __enter__(self) -> Machines:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        for name in self._names:
            run("ip", "link", "del", f"to-{name}")  # the kernel ends a namespace later than `ip` does
            run("ip", "netns", "del", name)
        run("ip", "link", "del", "lan")
