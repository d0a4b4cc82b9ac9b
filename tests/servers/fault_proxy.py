#!/usr/bin/python3
"""fault_proxy.py --upstream HOST:PORT: an HTTP/1.1 proxy that injects faults with given probabilities.

faults.py names the faults. `--probability NAME=P` sets one, `--transient P` shares P among all that a client must
survive. A request that would write (anything but GET and HEAD) never reaches the upstream, since the cache never writes
to the remote: it is refused with 405 and counted, and the program then ends with status 3.
`--expiring-tokens` refuses expired session tokens of instance_role.py, as S3 does, and expired tokens of google_tokens.py,
as Google does, and counts them as `expired_token`. `--require-token` refuses requests without such a token of Google.
`--tcp` relays bytes, such as TLS, instead of requests. Each connection then has one fate, and only faults of
connections occur.

Prints `port`, which the kernel picked, and ends when its standard input is closed. Each input line is a JSON object,
answered by one line: {"do": "counts"}, {"do": "requests"}, {"do": "set", "probabilities": {...}}, and
{"do": "transient", "probability": P}, which does what `--transient P` does.
{"do": "hold", "count": N} holds back the first request for each of the next N ranges, counted as `held`, until
{"do": "release"}.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import re
import socket
import sys
import threading
import time

import faults
import program
from faults import Fate, Plan
from tcp_relay import relay, reset

PIECE_BYTES = 1 << 18
HEAD_BYTES_MAX = 1 << 16
REQUESTS_KEPT_MAX = 100_000
IDLE_S = 60.0
INVALID_TOKEN = b'{"error": {"code": 401, "message": "Invalid Credentials"}}'
REASONS = {401: "Unauthorized", 403: "Forbidden", 405: "Method Not Allowed", 500: "Internal Server Error", 502: "Bad Gateway", 503: "Slow Down"}
SLOW_DOWN = (
    b"<?xml version='1.0' encoding='UTF-8'?>\n"
    b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)
EXPIRED_TOKEN = (
    b"<?xml version='1.0' encoding='UTF-8'?>\n"
    b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
)
Headers = list[tuple[str, str]]


class Gone(Exception):
    """The connection ended at a point where that is allowed."""


class Peer:
    """One side's connection: reads heads, and bodies piece by piece."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.settimeout(IDLE_S)
        self._ahead = bytearray()

    def _more(self) -> None:
        data = self.socket.recv(PIECE_BYTES)
        if not data:
            raise Gone
        self._ahead += data

    def head(self) -> tuple[str, Headers]:
        """The first line and the headers."""
        while (end := self._ahead.find(b"\r\n\r\n")) < 0:
            if len(self._ahead) > HEAD_BYTES_MAX:
                raise Gone
            self._more()
        first, *lines = self._ahead[:end].decode("latin-1").split("\r\n")
        del self._ahead[: end + 4]
        return first, [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]

    def piece(self, buffer: memoryview, bytes_max: int) -> memoryview:
        """The next bytes, at most `bytes_max`."""
        bytes_max = min(bytes_max, len(buffer))
        if self._ahead:
            count = min(bytes_max, len(self._ahead))
            buffer[:count] = self._ahead[:count]
            del self._ahead[:count]
        else:
            count = self.socket.recv_into(buffer, bytes_max)
            if count == 0:
                raise Gone
        return buffer[:count]

    def exactly(self, count: int) -> bytes:
        while len(self._ahead) < count:
            self._more()
        data = bytes(self._ahead[:count])
        del self._ahead[:count]
        return data

    def chunks(self) -> bytes:
        """The whole body of a chunked message."""
        body = b""
        while True:
            while (end := self._ahead.find(b"\r\n")) < 0:
                self._more()
            size = int(self.exactly(end + 2).split(b";")[0], 16)
            body += self.exactly(size + 2)[:-2]
            if size == 0:
                return body

    def to_the_end(self) -> bytes:
        with contextlib.suppress(Gone):
            while True:
                self._more()
        return self.exactly(len(self._ahead))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)  # a thread waiting in recv would keep the socket open
        self.socket.close()


def _value(headers: Headers, wanted: str) -> str:
    return next((value for name, value in headers if name.lower() == wanted), "")


def _with(headers: Headers, wanted: str, value: str) -> Headers:
    return [(name, value if name.lower() == wanted else old) for name, old in headers]


def _bytes(first: str, headers: Headers) -> bytes:
    return "\r\n".join([first, *(f"{name}: {value}" for name, value in headers), "", ""]).encode("latin-1")


class FaultProxy:
    """Listens from the start. `close` stops accepting connections and wakes those that wait in a stall."""

    def __init__(
        self,
        upstream: tuple[str, int],
        plan: Plan,
        stall_s: float,
        drip_bytes_per_s: float,
        tcp: bool,
        expiring_tokens: bool,
        require_token: bool,
    ) -> None:
        self.plan = plan
        self._expiring_tokens = expiring_tokens
        self._require_token = require_token
        self._upstream = upstream
        self._stall_s = stall_s
        self._drip_bytes_per_s = drip_bytes_per_s
        self._tcp = tcp
        self._lock = threading.Lock()
        self._injected: collections.Counter[str] = collections.Counter()
        self._counts: collections.Counter[str] = collections.Counter()
        self._requests: collections.deque[dict[str, object]] = collections.deque(maxlen=REQUESTS_KEPT_MAX)
        self._closing = threading.Event()
        self._released = threading.Event()
        self._held: set[tuple[str, str]] = set()
        self._hold_left = 0
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=511)
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def counts(self) -> dict[str, object]:
        """`injected` counts only faults that took place, not those drawn for a response that cannot have them."""
        with self._lock:
            names = ("connections", "requests", "body_bytes", "writes_refused")
            return {name: self._counts[name] for name in names} | {"injected": dict(self._injected)}

    def requests(self) -> list[dict[str, object]]:
        with self._lock:
            return list(self._requests)

    def hold(self, count: int) -> int:
        with self._lock:
            self._released.clear()
            self._held.clear()
            self._hold_left = count
        return count

    def release(self) -> int:
        with self._lock:
            self._hold_left = 0
        self._released.set()
        return len(self._held)

    def _is_held(self, request: tuple[str, str]) -> bool:
        with self._lock:
            if self._hold_left == 0 or request in self._held:
                return False
            self._hold_left -= 1
            self._held.add(request)
            return True

    def close(self) -> None:
        self._closing.set()
        self._released.set()
        self._listening.close()

    def _count(self, name: str, more: int = 1) -> None:
        with self._lock:
            self._counts[name] += more

    def _inject(self, name: str) -> None:
        with self._lock:
            self._injected[name] += 1

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                connection, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(Peer(connection),), daemon=True).start()

    def _serve(self, client: Peer) -> None:
        self._count("connections")
        upstream: list[Peer] = []  # none or one, kept from request to request
        try:
            if self._tcp:
                self._relay_bytes(client, upstream)
            else:
                while self._answer_one(client, upstream):
                    pass
        except (Gone, OSError):
            pass
        finally:
            client.close()
            for peer in upstream:
                peer.close()

    def _relay_bytes(self, client: Peer, upstream: list[Peer]) -> None:
        fate = self.plan.draw("TCP", "", "")
        upstream.append(Peer(socket.create_connection(self._upstream, timeout=IDLE_S)))

        def wait_s(seconds: float) -> None:
            self._closing.wait(seconds)

        pair = (client.socket, upstream[0].socket)
        count = relay(*pair, fate, wait_s, self._stall_s, self._drip_bytes_per_s, self._inject)
        self._count("body_bytes", count)

    def _answer_one(self, client: Peer, upstream: list[Peer]) -> bool:
        """Answers one request. Returns True if the client may send another one over this connection."""
        first, headers = client.head()
        stays_open = _value(headers, "connection").lower() != "close"
        method, target, _ = first.split(" ", 2)
        byte_range = _value(headers, "range")
        self._count("requests")
        with self._lock:
            names = sorted(name.lower() for name, _ in headers)  # values may be secret
            self._requests.append({"method": method, "target": target, "range": byte_range, "headers": names})
        if method not in ("GET", "HEAD"):
            self._count("writes_refused")
            self._reply(client, method, 405, b"The cache never writes to the remote.\n", [("Connection", "close")])
            raise Gone  # its body was not read
        token = re.match(r"expires-(\d+)-", _value(headers, "x-amz-security-token"))
        if self._expiring_tokens and token and time.time() >= int(token[1]):
            self._inject("expired_token")
            self._reply(client, method, 403, EXPIRED_TOKEN, [])
            return stays_open
        bearer = re.match(r"Bearer expires-(\d+)-", _value(headers, "authorization"))
        expired = self._expiring_tokens and bearer is not None and time.time() >= int(bearer[1])
        if expired or (self._require_token and bearer is None):
            self._inject("expired_token" if expired else "no_token")
            self._reply(client, method, 401, INVALID_TOKEN, [])
            return stays_open
        if self._is_held((target, byte_range)):
            self._inject("held")
            self._released.wait()
        fate = self.plan.draw(method, target, byte_range)
        if fate.fault == "reset_before":
            self._inject(fate.fault)
            reset(client.socket)
            raise Gone
        if fate.fault == "stall_before":
            self._inject(fate.fault)
            self._closing.wait(self._stall_s)
        if fate.fault in faults.BURSTS:
            self._inject(fate.fault)
            status = 500 if fate.fault == "error_500" else 503
            more = [("Retry-After", "1")] if fate.fault == "retry_after" else []
            body = SLOW_DOWN if fate.fault == "slow_down" else b"a fault\n"
            self._reply(client, method, status, body, more)
        else:
            self._forward(client, upstream, method, _bytes(first, headers), fate)
        return stays_open

    def _reply(self, client: Peer, method: str, status: int, body: bytes, headers: Headers) -> None:
        headers = [("Content-Length", str(len(body))), *headers]
        head = _bytes(f"HTTP/1.1 {status} {REASONS[status]}", headers)
        client.socket.sendall(head if method == "HEAD" else head + body)

    def _ask_upstream(self, upstream: list[Peer], request: bytes) -> tuple[Peer, str, Headers]:
        """The head of the upstream's response. Asks again if a kept connection turns out to have been closed."""
        while True:
            kept = bool(upstream)
            if not kept:
                upstream.append(Peer(socket.create_connection(self._upstream, timeout=IDLE_S)))
            try:
                upstream[0].socket.sendall(request)
                first, headers = upstream[0].head()
                return upstream[0], first, headers
            except (Gone, OSError):
                upstream.pop().close()
                if not kept:
                    raise

    def _forward(self, client: Peer, upstream: list[Peer], method: str, request: bytes, fate: Fate) -> None:
        try:
            source, first, headers = self._ask_upstream(upstream, request)
        except (Gone, OSError):
            return self._reply(client, method, 502, b"The upstream does not answer.\n", [])
        status = int(first.split(" ")[1])
        closes = _value(headers, "connection").lower() == "close"
        body: bytes | None = None  # the whole body, if its length is unknown
        if method == "HEAD" or status in (204, 304):
            length = 0
        elif _value(headers, "transfer-encoding").lower() == "chunked":
            body = source.chunks()
        elif _value(headers, "content-length"):
            length = int(_value(headers, "content-length"))
        else:
            body, closes = source.to_the_end(), True
        headers = [(n, v) for n, v in headers if n.lower() not in ("connection", "keep-alive", "transfer-encoding")]
        if body is not None:
            length = len(body)
            headers = [(n, v) for n, v in headers if n.lower() != "content-length"] + [("Content-Length", str(length))]

        fault = fate.fault
        if fault in faults.BODY_FAULTS and (length == 0 or status not in (200, 206)):
            fault = None
        if fault in faults.RANGE_FAULTS and (status != 206 or length == 0):
            fault = None
        if fault == "etag" and not _value(headers, "etag"):
            fault = None
        first, headers, before, after = self._harm_head(fault, first, headers, length)
        client.socket.sendall(_bytes(first, headers))
        self._fill(client, before)
        self._relay(client, source, body, length, Fate(fault, fate.position))
        self._fill(client, after)
        if closes:
            upstream.pop().close()
        if fault in ("close_after", "length_short", "length_long"):
            if fault == "close_after":
                self._inject(fault)
            raise Gone

    def _harm_head(self, fault: str | None, first: str, headers: Headers, length: int) -> tuple[str, Headers, int, int]:
        """The head that the client gets, and the number of filler bytes before and after the body."""
        if fault == "etag":
            self._inject(fault)
            return first, _with(headers, "etag", '"0123456789abcdef0123456789abcdef"'), 0, 0
        if fault in ("length_short", "length_long"):
            self._inject(fault)
            wrong = length - 1 if fault == "length_short" else length + 1
            return first, _with(headers, "content-length", str(wrong)), 0, 0
        found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", _value(headers, "content-range"))
        if fault in faults.RANGE_FAULTS and found:
            self._inject(fault)
            begin, end, total = (int(group) for group in found.groups())
            if fault == "whole_object":
                headers = [(n, v) for n, v in headers if n.lower() != "content-range"]
                whole = _with(headers, "content-length", str(total))
                return first.replace(" 206 Partial Content", " 200 OK"), whole, begin, total - end - 1
            if fault == "range_shifted":
                return first, _with(headers, "content-range", f"bytes {begin + 1}-{end + 1}/{total}"), 0, 0
            return first, _with(headers, "content-range", f"bytes {begin}-{end}/{total + 1}"), 0, 0
        return first, headers, 0, 0

    def _fill(self, client: Peer, count: int) -> None:
        filling = bytes([0xA5]) * min(count, PIECE_BYTES)
        while count > 0:
            client.socket.sendall(filling[:count])
            count -= min(count, len(filling))

    def _relay(self, client: Peer, source: Peer, body: bytes | None, length: int, fate: Fate) -> None:
        at = int(fate.position * length)  # where in the body the fault happens
        sent = 0
        buffer = memoryview(bytearray(PIECE_BYTES))
        whole = memoryview(body) if body is not None else None
        while sent < length:
            # A piece ends where the fault is to happen.
            until = at if sent < at and fate.fault in faults.BODY_FAULTS else length
            if sent == at and fate.fault in ("reset_body", "truncated_body", "stall_body"):
                self._inject(fate.fault)
                if fate.fault == "stall_body":
                    self._closing.wait(self._stall_s)
                else:
                    if fate.fault == "reset_body":
                        reset(client.socket)
                    raise Gone
            if fate.fault == "drip":
                until = min(until, sent + max(1, int(self._drip_bytes_per_s / 10)))
            piece = source.piece(buffer, until - sent) if whole is None else whole[sent:until][:PIECE_BYTES]
            if sent == at and fate.fault == "flip":
                self._inject(fate.fault)
                piece = memoryview(bytearray(piece))
                piece[0] ^= 1 << int(fate.position * 1009) % 8
            if fate.fault == "drip":
                if sent == 0:
                    self._inject(fate.fault)
                self._closing.wait(len(piece) / self._drip_bytes_per_s)
            self._count("body_bytes", len(piece))
            client.socket.sendall(piece)
            sent += len(piece)


def answer(proxy: FaultProxy, line: bytes) -> str:
    asked = json.loads(line)
    if asked["do"] == "counts":
        return json.dumps(proxy.counts())
    if asked["do"] == "requests":
        return json.dumps(proxy.requests())
    if asked["do"] == "hold":
        return json.dumps(proxy.hold(asked["count"]))
    if asked["do"] == "release":
        return json.dumps(proxy.release())
    if asked["do"] == "set":
        proxy.plan.probabilities = faults.check(asked["probabilities"])
        return json.dumps(proxy.plan.probabilities)
    if asked["do"] == "transient":
        proxy.plan.probabilities = faults.transient(asked["probability"])
        return json.dumps(proxy.plan.probabilities)
    raise ValueError(f"unknown command {asked}")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--upstream", required=True, metavar="HOST:PORT")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--probability", action="append", default=[], metavar="NAME=P")
    parser.add_argument("--transient", type=float, default=0.0, metavar="P")
    parser.add_argument("--burst-requests", type=int, default=3)
    parser.add_argument("--stall-s", type=float, default=5.0)
    parser.add_argument("--drip-bytes-per-s", type=float, default=100_000.0)
    parser.add_argument("--tcp", action="store_true", help="relay bytes, not requests")
    parser.add_argument("--expiring-tokens", action="store_true", help="refuse session tokens that have expired")
    parser.add_argument("--require-token", action="store_true", help="refuse requests without a token of Google")
    arguments = parser.parse_args()
    program.end_on_sigterm()

    probabilities = faults.transient(arguments.transient)
    for given in arguments.probability:
        name, _, probability = given.partition("=")
        probabilities[name] = float(probability)
    host, _, port = arguments.upstream.rpartition(":")
    plan = Plan(arguments.seed, probabilities, arguments.burst_requests)
    upstream = (host, int(port))
    proxy = FaultProxy(
        upstream, plan, arguments.stall_s, arguments.drip_bytes_per_s, arguments.tcp, arguments.expiring_tokens,
        arguments.require_token,
    )  # fmt: skip
    program.announce(port=proxy.port)
    program.until_input_closes(lambda line: answer(proxy, line))
    proxy.close()
    print(json.dumps(proxy.counts()), flush=True)
    return 3 if proxy.counts()["writes_refused"] else 0


if __name__ == "__main__":
    sys.exit(main())
