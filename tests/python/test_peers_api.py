"""Compares docs/openapi/peers.yaml with what a larderd serves to its peers: both have the same routes, every answer fits
its schema, every documented answer is seen, and peers ask only what is described."""

from __future__ import annotations

import hashlib
import http.client
import http.server
import json
import pathlib
import queue
import struct
import threading
import time
import urllib.parse
from collections.abc import Iterator

import pytest
from conftest import Daemon, write_tree
from description import Description
from http_api import Answer, ask

TOKEN = "what peers share"
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}
# Offsets in the manifest header of the fields that make a fingerprint.
FILE_BYTES_AT, CRC_AT, TOTAL_BYTES_AT = 16, 24, 104


@pytest.fixture
def peers_description(repository: pathlib.Path) -> Description:
    return Description(repository / "docs" / "openapi" / "peers.yaml")


@pytest.fixture
def lenders(larder_bin: pathlib.Path, tmp_path: pathlib.Path) -> Iterator[list[Daemon]]:
    """Two daemons that lend the blocks of the same files, and do not know each other. The first has cached all."""
    write_tree(tmp_path / "files", per_class=4, seed=3)
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n")
    token.chmod(0o600)
    daemons = [
        Daemon(
            larder_bin,
            tmp_path / name,
            *("--peers.listen", "127.0.0.1:0", "--peers.token-file", str(token), "--peers.witnesses", "1"),
        )
        for name in ("one", "two")
    ]
    for daemon in daemons:
        daemon.start()
        daemon.command("dataset", "add", "files", f"file://{tmp_path / 'files'}", "--quota-memory", "64 MiB")
    daemons[0].command("dataset", "warm", "files")
    # A daemon lends a new dataset within about a second.
    for daemon in daemons:
        while ask_lender(daemon, "GET", blocks_path(daemon)).status != 200:
            time.sleep(0.02)
    yield daemons
    for daemon in daemons:
        daemon.end()


def ask_lender(daemon: Daemon, method: str, target: str, body: object = None, authorized: bool = True) -> Answer:
    endpoint = json.loads(daemon.command("--json", "status"))["peers"]["endpoint"]
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(endpoint).netloc, timeout=60)
    return ask(connection, method, target, body, AUTHORIZED if authorized else None)


def blocks_path(daemon: Daemon) -> str:
    """The path of the dataset's blocks; its fingerprint comes from the manifest's header (docs/formats-on-disk.md)."""
    header = (daemon.state / "datasets" / "files" / "manifest-1").read_bytes()[:4096]
    body_crc = struct.unpack_from("<I", header, CRC_AT)[0]
    file_bytes, total_bytes = (struct.unpack_from("<Q", header, at)[0] for at in (FILE_BYTES_AT, TOTAL_BYTES_AT))
    return f"/v1/peers/files/{body_crc:08x}-{file_bytes:x}-{total_bytes:x}/blocks"


def test_description_is_valid(peers_description: Description) -> None:
    peers_description.check_document()


def test_server_and_description_have_the_same_routes(lenders: list[Daemon], peers_description: Description) -> None:
    peers_description.check_routes(lambda *request: ask_lender(lenders[0], *request))


def test_every_answer_fits_its_schema_and_all_documented_ones_are_seen(
    lenders: list[Daemon], peers_description: Description, tmp_path: pathlib.Path
) -> None:
    lender, other = lenders

    def request(
        method: str, target: str, status: int, body: object = None, to: Daemon = lender, authorized: bool = True
    ) -> bytes:
        answer = ask_lender(to, method, target, body, authorized)
        assert answer.status == status, f"{method} {target}: {answer.status} {answer.body!r}"
        peers_description.check_answer(method, target, answer)
        return answer.body

    blocks = blocks_path(lender)
    assert blocks == blocks_path(other), "the same files have the same fingerprint"
    digests = blocks.replace("/blocks", "/digests")
    for method, target in [("GET", "/v1"), ("GET", blocks), ("GET", f"{blocks}/0"), ("POST", f"{blocks}/0"), ("GET", digests)]:
        request(method, target, 401, authorized=False)
        request(method, f"{target}?more=1", 400)

    request("GET", "/v1", 200)
    held = request("GET", blocks, 200)
    magic, count, instance, changes, room_bytes = struct.unpack_from("<4sIQQQ", held)
    assert (magic, count) == (b"LHLD", 12)
    assert held[32:] == bytes([0xFF, 0x0F]) and room_bytes > 0
    assert request("GET", f"{blocks}?since={instance}-{changes}", 200) == held[:32], "nothing has changed"
    request("GET", "/v1/peers/files/another/blocks", 404)
    request("GET", "/v1/peers/lost/another/blocks", 404)

    taken = request("GET", digests, 200)
    magic, count, instance, changes, entries = struct.unpack_from("<4sIQQQ", taken)
    assert (magic, count, changes, entries) == (b"LDIG", 12, 12, 12), "one digest for each block that was warmed"
    by_block = {block: digest for block, digest in struct.iter_unpack("<I16s", taken[32:])}
    contents = [path.read_bytes() for path in sorted((tmp_path / "files").rglob("*.png"))]
    assert by_block == {block: hashlib.sha256(content).digest()[:16] for block, content in enumerate(contents)}
    later = request("GET", f"{digests}?since={instance}-10", 200)
    assert struct.unpack_from("<QQ", later, 16) == (12, 2) and len(later) == 32 + 2 * 20
    assert len(request("GET", f"{digests}?since={instance}-12", 200)) == 32
    assert request("GET", f"{digests}?since=another", 200) == taken
    request("GET", "/v1/peers/lost/another/digests", 404)

    record = request("GET", f"{blocks}/0", 200)
    assert record[:4] == b"LBLK"
    for index in ("12", "-1", "x"):
        request("GET", f"{blocks}/{index}", 404)
        request("POST", f"{blocks}/{index}", 404, record)
    request("GET", f"{blocks}/0", 404, to=other)
    request("POST", f"{blocks}/0", 400, record[:-1] + bytes([record[-1] ^ 1]), to=other)
    request("POST", f"{blocks}/0", 404, record[:-1], to=other)
    request("POST", f"{blocks}/0", 404, record, to=other)  # nobody vouches for it there
    other.end()
    other.options = (*other.options[:-1], "0")
    other.start()
    while ask_lender(other, "GET", blocks).status != 200:
        time.sleep(0.02)
    request("GET", digests, 404, to=other)
    for _ in range(2):
        request("POST", f"{blocks}/0", 204, record, to=other)
    assert request("GET", f"{blocks}/0", 200, to=other)[64:] == record[64:]
    peers_description.check_all_seen()


def test_peers_ask_what_is_described(
    larder_bin: pathlib.Path, tmp_path: pathlib.Path, peers_description: Description
) -> None:
    asked: queue.Queue[tuple[str, str]] = queue.Queue()

    class Peer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.put((self.command, self.path))
            self.send_error(404)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    write_tree(tmp_path / "files", per_class=4, seed=3)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Peer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        (tmp_path / "token").write_text(TOKEN + "\n")
        (tmp_path / "token").chmod(0o600)
        daemon = Daemon(
            larder_bin,
            tmp_path / "node",
            *("--peers.others", f"http://127.0.0.1:{server.server_port}", "--peers.token-file", str(tmp_path / "token")),
        )
        daemon.start()
        try:
            daemon.command("dataset", "add", "files", f"file://{tmp_path / 'files'}")
            expected = {blocks_path(daemon), blocks_path(daemon).replace("/blocks", "/digests")}
            while expected:
                method, target = asked.get(timeout=60)
                assert (method, peers_description.path_of(target)) in peers_description.operations()
                expected.discard(target.split("?")[0])
        finally:
            daemon.end()
            server.shutdown()
