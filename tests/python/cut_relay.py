"""Relays TCP connections to a port of this machine until a test cuts them."""

from __future__ import annotations

import contextlib
import socket
import threading

from tcp_relay import copy, reset


class CutRelay:
    """Listens on a port that the kernel picks. Safe to use from one thread."""

    def __init__(self, upstream_port: int) -> None:
        self._upstream = ("127.0.0.1", upstream_port)
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._is_cut = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def cut(self) -> None:
        """Resets all connections, and refuses new ones until `mend`."""
        with self._lock:
            self._is_cut = True
            for connection in self._open:
                reset(connection)
            self._open.clear()

    def mend(self) -> None:
        with self._lock:
            self._is_cut = False

    def close(self) -> None:
        self.cut()
        reset(self._listener)

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # the listener is closed
            while True:
                client, _ = self._listener.accept()
                self._relay(client)

    def _relay(self, client: socket.socket) -> None:
        with self._lock:
            try:
                if self._is_cut:
                    raise ConnectionError("cut")
                upstream = socket.create_connection(self._upstream)
            except OSError:
                reset(client)
                return
            self._open += [client, upstream]
        threading.Thread(target=self._copy_both, args=(client, upstream), daemon=True).start()

    def _copy_both(self, client: socket.socket, upstream: socket.socket) -> None:
        back = threading.Thread(target=copy, args=(upstream, client), daemon=True)
        back.start()
        copy(client, upstream)
        back.join()
        with self._lock:
            for connection in (client, upstream):
                if connection in self._open:
                    self._open.remove(connection)
                    connection.close()
