#!/usr/bin/python3
"""lying_nodes.py --seconds S --seed N --state DIR: one node of three lies; the other two must not be hurt.

Each round starts an allocator with a token for each node, two daemons that share their caches (alpha and beta), and a
liar in this process that has the token of the node gamma and the peers' secret. The liar lends wrong bytes, some of them
with the right CRC32C, contradicts the remote, offers wrong blocks, and reports foreign names and endpoints, wild lease
numbers and wild numbers. Jobs of alpha and beta read the dataset meanwhile.

What must hold: each sample comes once an epoch with the remote's bytes; alpha and beta get their plan all the time;
nobody connects to the endpoint that the liar names; a liar that was caught is named in their status.

Prints JSON lines: counts of each round, and {"failure": ..., "repeat": command}. Exits with 1 after a failure. Stopped
and called again with the same DIR and seed, goes on with the next round.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import http.client
import http.server
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from typing import Any

HERE = pathlib.Path(__file__).resolve()
ROOT = HERE.parents[2]

try:
    import larder
except ImportError:
    python = ROOT / "build" / "venv" / "bin" / "python"
    if not python.exists():
        print(json.dumps({"skipped": "the Python package is not installed: tools/test does so"}), flush=True)
        sys.exit()
    if pathlib.Path(sys.executable) == python:
        raise
    os.execv(python, [str(python), *sys.argv])

from programs import START_S, Failure, wait_until  # noqa: E402

SECRET = "the secret of the group"
TOKENS = {name: f"{name}-0123456789abcdef" for name in ("alpha", "beta", "gamma", "operator")}
EPOCHS = 3
LIAR_S = 10.0
WRONG_ROUNDS = 3


# --- CRC32C, and bytes that forge it


def _crc_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


TABLE = _crc_table()
BY_TOP_BYTE = {entry >> 24: index for index, entry in enumerate(TABLE)}


def crc_register(data: bytes) -> int:
    register = 0xFFFFFFFF
    for byte in data:
        register = register >> 8 ^ TABLE[(register ^ byte) & 0xFF]
    return register


@functools.lru_cache(maxsize=1000)
def crc32c(data: bytes) -> int:
    return crc_register(data) ^ 0xFFFFFFFF


# Kept, because a liar that computes for long does not answer, and nobody reads from it.
@functools.lru_cache(maxsize=1000)
def forged(block: bytes) -> bytes:
    """Other bytes of the same length with the same CRC32C."""
    head = bytes([block[0] ^ 0x55]) + block[1:-4]
    wanted = register = crc_register(block)
    indices = []
    for _ in range(4):
        indices.append(BY_TOP_BYTE[register >> 24])
        register = (register ^ TABLE[indices[-1]]) << 8 & 0xFFFFFFFF
    register = crc_register(head)
    tail = bytearray()
    for index in reversed(indices):
        tail.append((register ^ index) & 0xFF)
        register = register >> 8 ^ TABLE[index]
    assert register == wanted
    return head + bytes(tail)


def record(payload: bytes, block_id: int) -> bytes:
    """The record of a block (docs/formats-on-disk.md), with CRCs that fit."""
    fields = (0x4B4C424C, 0, 1, block_id, len(payload), crc32c(payload), 0, 0, 0)
    header = struct.pack("<IIQIIIIII24x", *fields)
    return struct.pack("<IIQIIIIII24x", fields[0], crc32c(header), *fields[2:]) + payload


def digest(block: bytes) -> bytes:
    return hashlib.sha256(block).digest()[:16]


# --- the liar


class Liar:
    """The node gamma. Each round draws how it lies from the round's seed."""

    # Ways to answer a request for a block.
    BLOCKS = ("right", "flipped", "forged", "other", "short", "long", "garbage", "error", "gone", "redirect", "slow")
    HELD = ("all", "all", "all", "random", "garbage", "other_count", "error")
    DIGESTS = ("right", "right", "wrong", "wrong_then_right", "forged", "garbage", "too_many", "none")

    # Draws come from several threads: what is drawn follows from the seed, when it is drawn does not.
    def __init__(self, draw: random.Random, blocks: list[bytes], evil: str) -> None:
        self.draw = draw
        self.blocks = blocks
        self.evil = evil
        # Nobody reads blocks from a node that holds none or is not trusted, so half of the rounds lie about blocks only.
        self.is_trusted = draw.random() < 0.5
        self.held = "all" if self.is_trusted else draw.choice(self.HELD)
        self.digests = "right" if self.is_trusted else draw.choice(self.DIGESTS)
        self.block = [draw.choice(self.BLOCKS) for _ in range(draw.choice([1, 1, 3]))]
        for block in blocks:
            forged(block)
            crc32c(block)
        self.instance = draw.getrandbits(64)
        self.fingerprint = ""
        self.wrong_sent = 0
        self.right_sent = 0
        self.lock = threading.Lock()
        liar = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                with contextlib.suppress(OSError):
                    liar.answer(self)

            def do_POST(self) -> None:
                with contextlib.suppress(OSError):
                    self.rfile.read(int(self.headers.get("Content-Length", 0)))
                    self.send_response(liar.draw.choice([204, 404, 500]))
                    self.send_header("Content-Length", "0")
                    self.end_headers()

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        class Server(http.server.ThreadingHTTPServer):
            request_queue_size = 128

            def handle_error(self, request: object, client_address: object) -> None:
                pass  # a client has gone

        self.server = Server(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def sends_wrong_blocks(self) -> bool:
        """Others ask it for blocks, and may get wrong ones that have the length of the right ones."""
        return self.is_trusted and not {"flipped", "forged", "other", "garbage"}.isdisjoint(self.block)

    def lies(self) -> str:
        return f"held {self.held}, digests {self.digests}, blocks {'/'.join(self.block)}"

    def answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        if request.headers.get("Authorization") != f"Bearer {SECRET}":
            request.send_error(401)
            return
        url = urllib.parse.urlsplit(request.path)
        parts = url.path.strip("/").split("/")  # v1 peers DATASET FINGERPRINT blocks|digests [INDEX]
        if len(parts) < 5:
            request.send_error(404)
            return
        self.fingerprint = parts[3]
        with self.lock:
            status, body = self.body_of(parts)
            tell_length = len(body)
            if status == 200 and len(parts) == 6 and self.draw.random() < 0.02:
                tell_length += self.draw.choice([1, -1, 1 << 40])
            elif len(parts) == 6:
                self.wrong_sent += body[64:] != self.blocks[int(parts[5])] and len(body) == 64 + len(self.blocks[int(parts[5])])
        request.send_response(status)
        if status == 302:
            request.send_header("Location", f"{self.evil}{request.path}")
        request.send_header("Content-Type", "application/octet-stream")
        request.send_header("Content-Length", str(max(0, tell_length)))
        request.end_headers()
        request.wfile.write(body)

    def body_of(self, parts: list[str]) -> tuple[int, bytes]:
        count = len(self.blocks)
        if len(parts) == 6:
            return self.block_of(int(parts[5]))
        header = struct.pack("<IQQ", count, self.instance, self.draw.getrandbits(32))
        if parts[4] == "digests":
            return self.digests_of(header)
        bits = b"\xff" * ((count + 7) // 8)
        if self.held == "random":
            bits = self.draw.randbytes(len(bits))
        if self.held == "garbage":
            return 200, self.draw.randbytes(self.draw.randrange(2000))
        if self.held == "other_count":
            header = struct.pack("<IQQ", count + 1, self.instance, 1)
        if self.held == "error":
            return self.draw.choice([400, 401, 500, 503]), b"no"
        return 200, b"LHLD" + header + struct.pack("<Q", self.draw.choice([0, 1 << 20, 2**64 - 1])) + bits

    def digests_of(self, header: bytes) -> tuple[int, bytes]:
        kind = self.digests
        if kind == "none":
            return 404, b""
        if kind == "garbage":
            return 200, self.draw.randbytes(self.draw.randrange(2000))
        if kind == "too_many":
            return 200, b"LDIG" + header + struct.pack("<Q", self.draw.choice([1, 1 << 20, 2**63])) + b"x" * 19
        if kind == "wrong_then_right" and self.draw.random() < 0.5:
            kind = "right"
        entries = b""
        for block, content in enumerate(self.blocks):
            claimed = {"right": digest(content), "forged": digest(forged(content))}.get(kind, digest(b"%d" % block))
            entries += struct.pack("<I", block) + claimed
        return 200, b"LDIG" + header + struct.pack("<Q", len(self.blocks)) + entries

    def block_of(self, block: int) -> tuple[int, bytes]:
        content = self.blocks[block]
        kind = self.draw.choice(self.block)
        if kind == "right":
            self.right_sent += 1
            return 200, record(content, block)
        if kind == "flipped":
            at = self.draw.randrange(len(content))
            return 200, record(content[:at] + bytes([content[at] ^ 1 << self.draw.randrange(8)]) + content[at + 1 :], block)
        if kind == "forged":
            return 200, record(forged(content), block)
        if kind == "other":
            return 200, record(self.draw.randbytes(len(content)), block)
        if kind == "short":
            return 200, record(content, block)[: self.draw.randrange(64 + len(content))]
        if kind == "long":
            return 200, record(content, block) + b"more"
        if kind == "garbage":
            return 200, self.draw.randbytes(64 + len(content))
        if kind == "redirect":
            return 302, b""
        if kind == "slow":
            time.sleep(0.5)
        return (404 if kind == "gone" else 500), b"no"

    # Reports to the allocator.

    def honest_report(self) -> dict[str, Any]:
        """So that the allocator names the liar to the others."""
        return {
            "node": "gamma",
            "instance": 1,
            "lease_applied": 0,
            "gpus": 0,
            "memory_bytes": 0,
            "disk_bytes": 0,
            "peer_group": "default",
            "peer_endpoint": self.endpoint,
            "datasets": [],
            "jobs": [],
        }

    def report(self) -> tuple[dict[str, str], bytes]:
        """A report, most of them wrong in some way: the query and the body."""
        draw = self.draw
        wild = [0, 1, 2**31, 2**32 - 1, 2**53, 2**62, 2**63 - 1, 2**64 - 1]

        def number() -> int:
            return draw.choice(wild) if draw.random() < 0.5 else draw.randrange(1 << draw.randrange(1, 63))

        def rate() -> float:
            return draw.choice([0, 1e-300, 1.0, 1e9, 1e15, 1e18, 1e300, -1.0])

        def job(name: str) -> dict[str, Any]:
            unread = number()
            return {
                "name": name,
                "dataset": "files",
                "ranks": draw.choice([0, 1, 8, 65536, 2**32 - 1]),
                "bytes": number(),
                "busy_s": abs(rate()),
                "demand_bytes_per_second": rate(),
                "remote_bytes": number(),
                "unread_bytes": unread,
                "unread_cached_bytes": draw.choice([0, unread, number()]),
                "epoch": draw.choice([0, 1, 2**32 - 1]),
                "waits": {
                    "since_us": number(),
                    "until_us": number(),
                    "counted_us": number(),
                    "batches": number(),
                    "shortest_us": number(),
                    "lengths_us": [number() for _ in range(draw.choice([0, 2, 3, 512, 514]))],
                },
            }

        size = max(1, number())
        report: dict[str, Any] = {
            "node": draw.choice(["gamma"] * 4 + ["alpha", "beta", "", "x" * 300, "delta", "al\npha"]),
            "instance": draw.choice([1] * 5 + [number()]),
            "state_directory": number(),
            "lease_applied": number(),
            "rates": draw.random() < 0.7,
            "disk_read_bytes_per_second": rate(),
            "nic_bytes_per_second": rate(),
            "scans": draw.choice([0, 1, 2**32 - 1]),
            "gpus": draw.choice([0, 8, 2**32 - 1]),
            "memory_bytes": number(),
            "disk_bytes": number(),
            "clock_us": number(),
            "peers_etag": number(),
            "peer_group": draw.choice(["default"] * 5 + ["other", ""]),
            "peer_endpoint": draw.choice([self.endpoint] * 4 + [self.evil, "garbage", "http://", "unix:/tmp/x", "http://a:1/\n", ""]),
            "datasets": [
                {
                    "name": name,
                    "size_bytes": size,
                    "quota_memory_bytes": number(),
                    "quota_disk_bytes": number(),
                    "cached_memory_bytes": number(),
                    "cached_disk_bytes": number(),
                    "quota_held": draw.random() < 0.3,
                }
                for name in draw.choice([["files"], ["files"], ["files", "other"], ["files", "files"], []])
            ],
            "jobs": [job(name) for name in draw.choice([[], ["train-alpha"], ["train-beta", "both"], ["(scan)"], ["a"] * 3])],
        }
        # Most reports lie in a few fields only, so that the allocator takes them and plans with them.
        if draw.random() < 0.8:
            small = {"size_bytes": 1 << 21, "quota_memory_bytes": 0, "quota_disk_bytes": 0}
            small |= {"cached_memory_bytes": 0, "cached_disk_bytes": 0, "quota_held": False}
            calm = {"ranks": 1, "bytes": 0, "busy_s": 0.0, "demand_bytes_per_second": 0.0, "remote_bytes": 0}
            calm |= {"unread_bytes": 0, "unread_cached_bytes": 0, "epoch": 0}
            base = self.honest_report() | {"state_directory": 0, "rates": True, "scans": 0}
            base["datasets"] = [{"name": "files", **small}]
            base["jobs"] = [{"name": draw.choice(["train-alpha", "both", "mine"]), "dataset": "files", **calm}]
            wild_dataset = {name: max(1, number()) for name in small}
            for _ in range(draw.randrange(4)):
                part, lies = draw.choice(
                    [(base, report), (base["datasets"][0], wild_dataset), (base["jobs"][0], job("mine"))]
                )
                field = draw.choice([name for name in lies if name not in ("datasets", "jobs", "name", "dataset")])
                part[field] = lies[field]
            report = base
        version = draw.choice(["", "2", "3", "4", "5", "5", "6", "6"])
        if version != "6":  # they have no such keys
            report.pop("peers_etag", None)
        if version not in ("5", "6"):
            report.pop("clock_us", None)
            for job_of_report in report["jobs"]:
                job_of_report.pop("waits", None)
        if draw.random() < 0.1:
            report[draw.choice(["more", "node", "jobs", "datasets", "gpus"])] = draw.choice([None, [], {}, "x", -1, 1e999])
        body = json.dumps(report).encode()
        if draw.random() < 0.1:
            body = body[: draw.randrange(len(body))]
        return {"protocol": version} if version else {}, body


class Evil:
    """An endpoint that the liar names: no node may ever connect to it."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.got = b""
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.socket.accept()
                connection.settimeout(5)
                with connection, contextlib.suppress(OSError):
                    self.got += connection.recv(4096) or b"(connected)"

    def close(self) -> None:
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


# --- the product


def request(port: int, method: str, target: str, token: str, body: bytes | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, target, body=body, headers={"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


class Process:
    def __init__(self, command: list[object], log: pathlib.Path) -> None:
        self.log = log
        with open(log, "ab") as file:
            self.process = subprocess.Popen([str(word) for word in command], stdout=file, stderr=file)

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]

    def check(self) -> None:
        if self.process.poll() is not None:
            raise Failure(f"{self.log.stem} ended by itself with {self.process.returncode}:\n{self.tail()}")

    def end(self) -> None:
        self.check()
        self.process.terminate()
        try:
            code = self.process.wait(60)
        except subprocess.TimeoutExpired:
            raise Failure(f"{self.log.stem} did not end on SIGTERM:\n{self.tail()}") from None
        if code != 0:
            raise Failure(f"{self.log.stem} ended with {code} on SIGTERM:\n{self.tail()}")

    def discard(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class Node(Process):
    def __init__(
        self, programs: pathlib.Path, directory: pathlib.Path, name: str, port: int, allocator: int, witnesses: int
    ) -> None:
        self.name = name
        self.programs = programs
        self.state = directory / name
        self.port = port
        self.endpoint = f"http://127.0.0.1:{port}"
        super().__init__(
            [
                *(programs / "larderd", "--state-directory", self.state, "--memory", "1 MiB", "--disk", "0"),
                *("--allocator.endpoint", f"http://127.0.0.1:{allocator}", "--allocator.node", name),
                *("--allocator.token-file", directory / f"{name}.token"),
                *("--peers.listen", f"127.0.0.1:{port}", "--peers.token-file", directory / "peers.token"),
                *("--peers.witnesses", witnesses),
            ],
            directory / f"{name}.log",
        )

    def command(self, *words: object) -> Any:
        ran = subprocess.run(
            [self.programs / "larder", "--admin-socket", self.state / "admin.sock", "--json", *map(str, words)],
            capture_output=True,
            text=True,
        )
        if ran.returncode != 0:
            self.check()
            raise Failure(f"{self.name}: larder {words}: {ran.stdout}{ran.stderr}")
        return json.loads(ran.stdout) if ran.stdout.strip() else None

    def wait(self) -> None:
        wait_until(lambda: (self.state / "admin.sock").exists(), START_S, f"{self.name} serves", self.check)
        wait_until(lambda: self.serves(), START_S, f"{self.name} answers", self.check)

    def serves(self) -> bool:
        with contextlib.suppress(Failure):
            self.command("status")
            return True
        return False

    def status(self) -> dict[str, Any]:
        return self.command("status")

    def socket(self) -> str:
        return str(self.state / "larderd.sock")


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        listening = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in listening]


def write_secret(path: pathlib.Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o600)


def wait_for_liar(node: Node) -> None:
    """Returns once the node knows blocks of gamma or has excluded it, or after a while: gamma may be forgotten."""
    ends_s = time.monotonic() + LIAR_S
    while time.monotonic() < ends_s:
        gamma = [peer for peer in node.status()["peers"]["others"] if peer["node"] == "gamma"]
        if gamma and (gamma[0]["held_blocks"] > 0 or "wrong bytes" in gamma[0]["problem"]):
            return
        time.sleep(0.05)


def read_epochs(
    node: Node, job: str, rank: int, world: int, liar: Liar, contents: dict[str, bytes], seen: list[str], errors: list[str]
) -> None:
    """A rank of a job: reads EPOCHS epochs and compares every byte."""
    try:
        with larder.Loader("files", socket=node.socket(), job=job, rank=rank, world_size=world, batch_size=8) as loader:
            for epoch in range(EPOCHS):
                time.sleep(1.1)  # a node asks its peers once a second
                if epoch > 0 and liar.is_trusted:
                    wait_for_liar(node)
                for batch in loader:
                    for sample in batch:
                        if bytes(sample.bytes) != contents[sample.key]:
                            raise Failure(f"{job} on {node.name}: wrong bytes of {sample.key}")
                        seen.append(sample.key)
    except Exception as error:
        errors.append(f"{job} on {node.name}: {error!r}")


# --- one round


def run_round(name: str, programs: pathlib.Path, directory: pathlib.Path, witnesses: int) -> dict[str, int]:
    draw = random.Random(name)
    files = directory / "files"
    contents: dict[str, bytes] = {}
    for index in range(90):
        key = f"{'abc'[index // 30]}/{index:03}.bin"
        (files / key).parent.mkdir(parents=True, exist_ok=True)
        contents[key] = draw.randbytes(draw.randrange(64, 40_000))
        (files / key).write_bytes(contents[key])
    evil = Evil()
    liar = Liar(draw, [contents[key] for key in sorted(contents)], evil.endpoint)
    allocator_port, *node_ports = free_ports(3)
    ports = dict(zip(("alpha", "beta"), node_ports, strict=True))
    endpoints = {node: f"http://127.0.0.1:{port}" for node, port in ports.items()} | {"gamma": liar.endpoint}
    lines = [f"node {node} {TOKENS[node]} {endpoint}\n" for node, endpoint in endpoints.items()]
    write_secret(directory / "tokens", "".join(lines) + f"operator ann {TOKENS['operator']}\n")
    write_secret(directory / "peers.token", SECRET + "\n")
    for node in ports:
        write_secret(directory / f"{node}.token", TOKENS[node] + "\n")
    running: list[Process] = []
    stop = threading.Event()
    counts = {"rounds": 1, "reports": 0, "reports_refused": 0, "offers": 0}
    problems: list[str] = []
    try:
        allocator = Process(
            [
                *(programs / "larder-allocator", "--socket", directory / "allocator.sock"),
                *("--remote-bandwidth", "1 GB/s", "--lease", "3 s", "--listen", f"127.0.0.1:{allocator_port}"),
                *("--access.tokens", directory / "tokens"),
            ],
            directory / "allocator.log",
        )
        running.append(allocator)

        def allocator_serves() -> bool:
            with contextlib.suppress(OSError, http.client.HTTPException):
                return request(allocator_port, "GET", "/healthz", "")[0] == 200
            return False

        wait_until(allocator_serves, START_S, "the allocator serves", allocator.check)
        nodes = [Node(programs, directory, node, port, allocator_port, witnesses) for node, port in ports.items()]
        running += nodes
        for node in nodes:
            node.wait()
            node.command("dataset", "add", "files", f"file://{files}")

        pace = random.Random(f"{name} pace")

        def lie() -> None:
            """Reports to the allocator and offers to the peers until the round ends."""
            while not stop.wait(pace.uniform(0.01, 0.15)):
                try:
                    # Between lies an honest report, without which the others would soon not know the liar.
                    body = json.dumps(liar.honest_report()).encode()
                    # 409: the liar has just reported as another daemon of its own name.
                    if request(allocator_port, "POST", "/v1/reports", TOKENS["gamma"], body)[0] not in (200, 409, 503):
                        problems.append("an honest report of gamma is refused")
                    query, body = liar.report()
                    target = "/v1/reports" + ("?" + urllib.parse.urlencode(query) if query else "")
                    status, answer = request(allocator_port, "POST", target, TOKENS["gamma"], body)
                    counts["reports"] += 1
                    counts["reports_refused"] += status != 200
                    if status >= 500 and b"unavailable" not in answer:
                        problems.append(f"the allocator answered {status} to {body[:2000]!r}: {answer!r}")
                    if status == 200 and json.loads(body).get("node") != "gamma":
                        problems.append(f"gamma reported as {json.loads(body).get('node')!r}")
                    for method, path in (("GET", "/v1/nodes/alpha/plan"), ("DELETE", "/v1/nodes/alpha"), ("PUT", "/v1/remote")):
                        if request(allocator_port, method, path, TOKENS["gamma"], b"{}")[0] != 403:
                            problems.append(f"gamma may {method} {path}")
                    offer(pace.choice(nodes))
                except (OSError, http.client.HTTPException, ValueError):
                    continue

        def offer(node: Node) -> None:
            if not liar.fingerprint:
                return
            path = f"/v1/peers/files/{liar.fingerprint}/blocks"
            if request(node.port, "GET", path, pace.choice(["", "wrong", TOKENS["gamma"]]))[0] != 401:
                problems.append(f"{node.name} answers without the peers' secret")
            block = pace.randrange(len(liar.blocks))
            wrong = pace.choice([forged(liar.blocks[block]), pace.randbytes(len(liar.blocks[block]))])
            status, _ = request(node.port, "POST", f"{path}/{block}", SECRET, record(wrong, block))
            counts["offers"] += 1
            if status == 204:
                problems.append(f"{node.name} took a wrong block {block} from gamma")

        liar_thread = threading.Thread(target=lie, daemon=True)
        liar_thread.start()
        for node in nodes:
            wait_until(lambda node=node: node.status()["allocator"]["connected"], START_S, f"{node.name} has a plan", node.check)

        def knows_gamma(node: Node) -> bool:
            return any(peer["node"] == "gamma" for peer in node.status()["peers"]["others"])

        for node in nodes:
            wait_until(lambda node=node: knows_gamma(node), START_S, f"{node.name} knows gamma", node.check)
        failures_before = {node.name: node.status()["allocator"]["failures"] for node in nodes}

        caught_by: set[str] = set()

        def watch() -> None:
            """The plan of the other nodes stays in force. Notes who names the liar, which is for a minute only."""
            while not stop.wait(0.3):
                for node in nodes:
                    with contextlib.suppress(Failure):
                        status = node.status()
                        known = status["allocator"]
                        if not known["connected"] or known["lease_left_s"] <= 0:
                            problems.append(f"{node.name} lost its plan: {known}")
                        others = status["peers"]["others"]
                        if any(peer["node"] == "gamma" and "sent wrong bytes" in peer["problem"] for peer in others):
                            caught_by.add(node.name)

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        seen: dict[str, list[str]] = {"train-alpha": [], "train-beta": [], "both": []}
        ranks = [(nodes[0], "train-alpha", 0, 1), (nodes[1], "train-beta", 0, 1), (nodes[0], "both", 0, 2), (nodes[1], "both", 1, 2)]
        threads = [
            threading.Thread(target=read_epochs, args=(node, job, rank, world, liar, contents, seen[job], problems), daemon=True)
            for node, job, rank, world in ranks
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
            if thread.is_alive():
                raise Failure("a job did not end within 300 s")
        for job, keys in seen.items():
            expected = sorted(list(contents) * EPOCHS)
            if not problems and sorted(keys) != expected:
                problems.append(f"{job}: {len(keys)} samples instead of {len(expected)}, or not each one {EPOCHS} times")
        if liar.wrong_sent and not problems:
            wait_until(lambda: caught_by, START_S, f"a node names the liar, which sent {liar.wrong_sent} wrong blocks")
        statuses = {node.name: node.status() for node in nodes}
        stop.set()
        liar_thread.join(60)
        watcher.join(60)

        for node in nodes:
            status = statuses[node.name]
            if status["allocator"]["failures"] != failures_before[node.name]:
                problems.append(f"{node.name}: the allocator's answers failed: {status['allocator']}")
            others = {peer["node"]: peer for peer in status["peers"]["others"]}
            if set(others) - {"alpha", "beta", "gamma"}:
                problems.append(f"{node.name} has other peers: {others}")
            for other, peer in others.items():
                if peer["endpoint"] != endpoints[other]:
                    problems.append(f"{node.name} reads {other} at {peer['endpoint']}")
            friend = others.get("beta" if node.name == "alpha" else "alpha")
            if friend is None or friend["problem"]:
                problems.append(f"{node.name} lost its honest peer: {friend}")
            counters = node.command("dataset", "info", "files")["counters"]
            for counter in ("crc_failures", "remote_corrupt", "remote_errors"):
                if counters[counter]:
                    problems.append(f"{node.name}: {counter} is {counters[counter]}")
            counts["peer_blocks"] = counts.get("peer_blocks", 0) + counters["peer_hits"]
            log = node.log.read_text(errors="replace")
            if "Sanitizer" in log or "runtime error" in log:
                problems.append(f"{node.name}: {node.tail()}")
        if evil.got:
            problems.append(f"somebody connected to the liar's endpoint: {evil.got[:300]!r}")
        status, listed = request(allocator_port, "GET", "/v1/nodes", TOKENS["operator"])
        known = {node["name"] for node in json.loads(listed)["nodes"]}
        if not {"alpha", "beta"} <= known <= {"alpha", "beta", "gamma"}:
            problems.append(f"the allocator knows the nodes {known}")
        for process in reversed(running):
            process.end()
        counts["caught"] = len(caught_by)
        counts["wrong_sent"] = liar.wrong_sent
        counts["wrong_rounds"] = int(liar.sends_wrong_blocks())
        counts["right_sent"] = liar.right_sent
    finally:
        stop.set()
        for process in running:
            process.discard()
        liar.close()
        evil.close()
    if problems:
        raise Failure(f"{liar.lies()}: " + "; ".join(problems[:5]))
    return counts


# --- the campaign


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--state", type=pathlib.Path, required=True)
    parser.add_argument("--round", type=int, help="runs this round only")
    parser.add_argument("--witnesses", type=int, default=2, help="peers.witnesses; with 0 the campaign must find wrong bytes")
    options = parser.parse_args()
    build = pathlib.Path(os.environ.get("LARDER_BUILD", ROOT / "build" / "dev")).resolve()
    options.state.mkdir(parents=True, exist_ok=True)
    progress = options.state / f"seed-{options.seed}.json"
    number = json.loads(progress.read_text())["rounds"] if progress.exists() else 0
    if options.round is not None:
        number = options.round
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1 if failed else 0))
    failed = False
    wrong_rounds = wrong_sent = 0
    ends_s = time.monotonic() + options.seconds
    while True:
        directory = pathlib.Path(tempfile.mkdtemp(prefix="lc."))  # short, because sockets are in it
        try:
            counts = run_round(f"{options.seed}/{number}", build / "bin", directory, options.witnesses)
            print(json.dumps(counts), flush=True)
            wrong_rounds, wrong_sent = wrong_rounds + counts["wrong_rounds"], wrong_sent + counts["wrong_sent"]
        except Failure as failure:
            failed = True
            repeat = f"LARDER_BUILD={build} {HERE} --seed {options.seed} --round {number} --state {options.state}"
            print(json.dumps({"rounds": 1, "failure": f"seed {options.seed}, round {number}: {failure}", "repeat": repeat}), flush=True)
            kept = options.state / "failed" / f"{options.seed}-{number}-{time.time_ns() // 1_000_000}"
            kept.parent.mkdir(exist_ok=True)
            shutil.copytree(directory, kept, ignore=shutil.ignore_patterns("*.sock", "files"))
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        if options.round is not None:
            break
        number += 1
        written = progress.with_suffix(".new")
        written.write_text(json.dumps({"rounds": number}))
        written.replace(progress)
        if time.monotonic() >= ends_s:
            break
    if wrong_rounds >= WRONG_ROUNDS and wrong_sent == 0:
        failed = True
        what = f"nobody asked the liar for a block in {wrong_rounds} rounds in which it sends wrong ones: nothing is tested"
        print(json.dumps({"failure": what}), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
