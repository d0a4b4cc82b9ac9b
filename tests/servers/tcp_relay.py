"""Relays one connection byte for byte, whatever its protocol, with the faults that a connection can have."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable

from faults import Fate

# The other faults are those of HTTP.
FAULTS = ("reset_before", "reset_body", "truncated_body", "stall_before", "stall_body", "drip")
# A fault in the middle comes within this many first bytes from the upstream.
MIDDLE_BYTES = 1 << 20
PIECE_BYTES = 1 << 18


def reset(connection: socket.socket) -> None:
    """Resets the connection: bytes in flight may be lost, and the other side gets an error."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RD)  # a thread waiting in recv would keep the socket open
    connection.close()


def copy(source: socket.socket, sink: socket.socket) -> None:
    """Copies until either side ends, and tells the sink."""
    with contextlib.suppress(OSError):
        while data := source.recv(PIECE_BYTES):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


def relay(
    client: socket.socket,
    upstream: socket.socket,
    fate: Fate,
    wait_s: Callable[[float], None],
    stall_s: float,
    drip_bytes_per_s: float,
    inject: Callable[[str], None],
) -> int:
    """Relays until either side has closed or the fault has ended the connection. Returns the client's bytes."""
    fault = fate.fault if fate.fault in FAULTS else None
    if fault == "reset_before":
        inject(fault)
        reset(client)
        return 0
    if fault == "stall_before":
        inject(fault)
        wait_s(stall_s)
    threading.Thread(target=copy, args=(client, upstream), daemon=True).start()
    at = int(fate.position * MIDDLE_BYTES) if fault in ("reset_body", "truncated_body", "stall_body") else -1
    sent = 0
    while True:
        if sent == at and fault is not None:
            inject(fault)
            if fault == "stall_body":
                wait_s(stall_s)
            elif fault == "reset_body":
                reset(client)
                return sent
            else:
                return sent
        bytes_max = at - sent if sent < at else PIECE_BYTES
        if fault == "drip":
            bytes_max = max(1, int(drip_bytes_per_s / 10))
        data = upstream.recv(bytes_max)
        if not data:
            return sent
        if fault == "drip":
            if sent == 0:
                inject(fault)
            wait_s(len(data) / drip_bytes_per_s)
        client.sendall(data)
        sent += len(data)
