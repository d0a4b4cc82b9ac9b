"""The common part of the server programs in this folder.

Each program prints `name=value` lines and then `ready` on standard output. It ends when its standard input is closed,
so it ends with the test that started it, however the test ends. tests/python/servers.py and
tests/support/server_program.h start these programs.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import signal
import socket
import subprocess
import sys
from collections.abc import Callable

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
_PR_SET_PDEATHSIG = 1


class Child:
    """A process of another program that ends with this one. `stop` ends it by its pid."""

    def __init__(self, arguments: list[object], log: pathlib.Path, **options: object) -> None:
        libc = ctypes.CDLL(None)
        with open(log, "ab") as output:
            self.process = subprocess.Popen(
                [str(argument) for argument in arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # In case this process is killed with SIGKILL.
                preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM),
                **options,  # type: ignore[call-overload]
            )
        self._name = arguments[0]
        self._log = log

    def check(self) -> None:
        """Ends this program with a message if the child has ended."""
        if self.process.poll() is not None:
            sys.exit(f"{self._name} ended with {self.process.returncode}:\n{self._log.read_text()[-4000:]}")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def hold_port(address: str = "127.0.0.1") -> socket.socket:
    """Holds a TCP port that the kernel picks. While the socket is open, the kernel gives the port to no other program, so
    a server can begin to listen there later, and again after a restart. The server must set SO_REUSEADDR."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((address, 0))
    return held


def end_on_sigterm() -> None:
    """Makes SIGTERM run `finally` clauses and leave `with` blocks."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    # An interrupted pytest closes this program's standard input anyway.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def announce(**values: object) -> None:
    for name, value in values.items():
        print(f"{name}={value}")
    print("ready", flush=True)


def until_input_closes(answer: Callable[[bytes], str] | None = None) -> None:
    """Waits for the end of standard input. Answers each line before the end with one line."""
    buffer = b""
    while data := os.read(sys.stdin.fileno(), 65536):
        buffer += data
        *lines, buffer = buffer.split(b"\n")
        for line in lines:
            if answer is not None:
                print(answer(line), flush=True)
