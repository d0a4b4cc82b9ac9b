"""The servers that stand in for remotes behave as the tests assume, as seen by plain Python clients."""

from __future__ import annotations

import concurrent.futures
import http.client
import json
import pathlib
import random
import shutil
import signal
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Callable

import faults
import jwt
import pytest
import tcp_relay
from azure_client import AzureClient
from cryptography.hazmat.primitives.asymmetric import rsa
from s3_client import S3Client
from servers import S3, Azure, FaultProxy, Gcs, InstanceRole, Nginx, ServerProgram

DATA = random.Random(5).randbytes(1_000_000)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    made = tmp_path_factory.mktemp("web")
    (made / "a.bin").write_bytes(DATA)
    return made


@pytest.fixture(scope="module")
def nginx(serve_directory: Callable[..., Nginx], directory: pathlib.Path) -> Nginx:
    return serve_directory(directory)


class Client:
    """One connection."""

    def __init__(self, port: int, timeout_s: float = 30) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)

    def get(self, target: str = "/a.bin", byte_range: str | None = None) -> tuple[http.client.HTTPResponse, bytes]:
        self.connection.request("GET", target, headers={} if byte_range is None else {"Range": f"bytes={byte_range}"})
        response = self.connection.getresponse()
        return response, response.read()


# nginx.


def test_nginx_serves_ranges_and_changed_files(nginx: Nginx, directory: pathlib.Path) -> None:
    client = Client(nginx.port)
    response, body = client.get(byte_range="1000-1999")
    assert (response.status, response.getheader("Content-Range")) == (206, "bytes 1000-1999/1000000")
    assert body == DATA[1000:2000]
    (directory / "b.bin").write_bytes(b"first")
    first, _ = client.get("/b.bin")
    (directory / "b.bin").write_bytes(b"second")
    second, body = client.get("/b.bin")
    assert body == b"second"
    assert first.getheader("ETag") != second.getheader("ETag") is not None
    assert second.getheader("Last-Modified") is not None


def test_nginx_logs_requests_and_their_connections(
    serve_directory: Callable[..., Nginx], directory: pathlib.Path
) -> None:
    server = serve_directory(directory)
    assert server.requests() == []
    client = Client(server.port)
    client.get(byte_range="0-9")
    client.get()
    Client(server.port).get("/none")
    log = server.requests(at_least=3)
    assert [(r.method, r.target, r.range, r.status, r.connection_requests) for r in log] == [
        ("GET", "/a.bin", "bytes=0-9", 206, 1),
        ("GET", "/a.bin", "", 200, 2),
        ("GET", "/none", "", 404, 1),
    ]
    assert log[0].connection == log[1].connection != log[2].connection


def test_nginx_without_ranges_sends_the_whole_file(
    serve_directory: Callable[..., Nginx], directory: pathlib.Path
) -> None:
    response, body = Client(serve_directory(directory, "--no-ranges").port).get(byte_range="0-9")
    assert (response.status, body) == (200, DATA)


def test_nginx_over_tls_speaks_http2_and_needs_its_authority(nginx: Nginx) -> None:
    port = int(nginx.values["https"])
    context = ssl.create_default_context(cafile=nginx.authority)
    connection = http.client.HTTPSConnection("localhost", port, context=context, timeout=30)
    connection.request("GET", "/a.bin")
    assert connection.getresponse().read() == DATA
    with pytest.raises(ssl.SSLCertVerificationError):
        http.client.HTTPSConnection("localhost", port, timeout=30).request("GET", "/a.bin")
    ran = subprocess.run(
        ["curl", "--silent", "--http2", "--cacert", nginx.authority, f"{nginx.https}/a.bin", "--output", "/dev/null",
         "--write-out", "%{http_version} %{http_code}"], capture_output=True, text=True,
    )  # fmt: skip
    assert ran.stdout == "2 200"


# S3.


@pytest.fixture(scope="module")
def bucket(s3: S3, directory: pathlib.Path) -> str:
    s3.client.create_bucket("self-test")
    s3.client.put("self-test", "deep/a b+ü.bin", DATA)
    return "self-test"


def test_s3_refuses_wrong_and_missing_secrets(s3: S3, bucket: str) -> None:
    key = "deep/a b+ü.bin"
    assert s3.client.ask("GET", bucket, key).body == DATA
    wrong = S3Client(s3.port, s3.key_id, "wrong").ask("GET", bucket, key)
    assert (wrong.status, b"SignatureDoesNotMatch" in wrong.body) == (403, True)
    unknown = S3Client(s3.port, "NOBODY", s3.secret).ask("GET", bucket, query={"list-type": "2"})
    assert (unknown.status, b"InvalidAccessKeyId" in unknown.body) == (403, True)
    s3.client.put(bucket, "plain", b"x")
    assert S3Client(s3.port).ask("GET", bucket, "plain").status == 403
    assert S3Client(s3.port).ask("GET", bucket, query={"list-type": "2"}).status == 403


def test_s3_serves_ranges_and_etags_in_both_styles(s3: S3, bucket: str) -> None:
    for client in (s3.client, S3Client(s3.port, s3.key_id, s3.secret, host_style=True)):
        answer = client.ask("GET", bucket, "deep/a b+ü.bin", headers={"Range": "bytes=5-9"})
        assert (answer.status, answer.headers["content-range"], answer.body) == (206, "bytes 5-9/1000000", DATA[5:10])
    tag = answer.headers["etag"]
    unchanged = s3.client.ask("GET", bucket, "deep/a b+ü.bin", headers={"If-Match": tag})
    assert unchanged.status == 200
    s3.client.put(bucket, "changes", b"1")
    first = s3.client.ask("HEAD", bucket, "changes").headers["etag"]
    s3.client.put(bucket, "changes", b"2")
    assert s3.client.ask("HEAD", bucket, "changes").headers["etag"] != first
    assert s3.client.ask("GET", bucket, "changes", headers={"If-Match": first}).status == 412


def test_s3_lists_in_pages(s3: S3) -> None:
    s3.client.create_bucket("pages")
    names = [f"dir/{i:04}" for i in range(25)]
    for name in names:
        s3.client.put("pages", name, b"x")
    s3.client.put("pages", "elsewhere", b"x")
    pages = list(s3.client.pages("pages", "dir/", 10))
    assert [len(page) for page in pages] == [10, 10, 5]
    assert [name for page in pages for name in page] == names
    assert [len(page) for page in s3.client.pages("pages", "dir/")] == [25]


def test_s3_public_bucket_needs_no_signature(s3: S3) -> None:
    s3.client.create_bucket("public")
    s3.client.put("public", "open", b"yes")
    s3.client.make_public("public")
    s3.client.make_public("public", "open")
    anybody = S3Client(s3.port)
    assert anybody.ask("GET", "public", "open").body == b"yes"
    assert anybody.ask("GET", "public", query={"list-type": "2"}).status == 200
    assert anybody.ask("PUT", "public", "more", body=b"no").status == 403


def test_s3_program_fills_its_buckets(directory: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "x").write_bytes(b"1")
    server = S3("--bucket", "made", "--upload", tmp_path, "--public", "--secret", "given")
    assert server.secret == "given"
    assert list(S3Client(server.port).pages("made")) == [["sub/x"]]
    assert S3Client(server.port).ask("GET", "made", "sub/x").body == b"1"
    others = S3Client(int(server.endpoint.rpartition(":")[2]), server.key_id, server.secret)
    assert others.ask("GET", "made", "sub/x").body == b"1"
    assert others.ask("PUT", "made", "sub/y", body=b"2").status == 405
    assert server.stop() == 3, "a write by anyone but its client is reported"


# Credentials of a machine.


def test_instance_role_gives_credentials_only_with_a_token(
    s3: S3, bucket: str, instance_role: Callable[..., InstanceRole]
) -> None:
    service = instance_role(session_token="given", expires_s=60)
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=30)

    def ask(method: str, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response.status, response.read()

    roles = "/latest/meta-data/iam/security-credentials/"
    assert ask("GET", roles, {})[0] == 401
    assert ask("PUT", "/latest/api/token", {})[0] == 400
    token = ask("PUT", "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"})[1].decode()
    headers = {"X-aws-ec2-metadata-token": token}
    role = ask("GET", roles, headers)[1].decode()
    given = json.loads(ask("GET", roles + role, headers)[1])
    assert (given["Token"], given["SecretAccessKey"]) == ("given", s3.secret)
    client = S3Client(s3.port, given["AccessKeyId"], given["SecretAccessKey"], given["Token"])
    assert client.ask("GET", bucket, "deep/a b+ü.bin").body == DATA
    assert service.counts() == {"/latest/api/token": 1, roles: 1, roles + role: 1}


def test_container_role_needs_its_token(instance_role: Callable[..., InstanceRole]) -> None:
    service = instance_role(container_token="let me in")
    for header, status in (("no", 401), ("let me in", 200)):
        connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=30)
        connection.request("GET", "/container", headers={"Authorization": header})
        assert connection.getresponse().status == status


# Google Cloud Storage and Azure.


def status_of(port: int, path: str, headers: dict[str, str] | None = None, body: bytes | None = None) -> int:
    connection = http.client.HTTPConnection("localhost", port, timeout=30)
    connection.request("GET" if body is None else "POST", path, body=body, headers=headers or {})
    return connection.getresponse().status


def test_google_token_needs_an_assertion_of_the_account(gcs: Gcs) -> None:
    account = json.loads(gcs.tokens.file.read_text())
    now = int(time.time())
    good = {"iss": account["client_email"], "aud": account["token_uri"], "iat": now, "exp": now + 3600,
            "scope": "https://www.googleapis.com/auth/devstorage.read_only"}  # fmt: skip
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    for claims, key, status in (
        (good, account["private_key"], 200),
        (good, other, 400),
        (good | {"aud": "http://elsewhere/token"}, account["private_key"], 400),
        (good | {"exp": now - 10}, account["private_key"], 400),
        (good | {"exp": now + 7200}, account["private_key"], 400),
        (good | {"scope": "all"}, account["private_key"], 400),
    ):
        assertion = jwt.encode(claims, key, algorithm="RS256", headers={"kid": account["private_key_id"]})
        body = f"grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer&assertion={assertion}".encode()
        assert status_of(gcs.tokens.port, "/token", form, body) == status, claims
    metadata = "/computeMetadata/v1/instance/service-accounts/default/token"
    assert status_of(gcs.tokens.port, metadata) == 403
    assert status_of(gcs.tokens.port, metadata, {"Metadata-Flavor": "Google"}) == 200


def test_gcs_wants_a_token_that_has_not_expired(gcs: Gcs) -> None:
    gcs.client.create_bucket("self-test")
    gcs.client.put("self-test", "deep/a b+ü.bin", DATA)
    port = int(gcs.endpoint.rpartition(":")[2])
    path = "/self-test/deep/a%20b%2B%C3%BC.bin"
    later, earlier = int(time.time()) + 60, int(time.time()) - 1
    assert status_of(port, path) == 401
    assert status_of(port, path, {"Authorization": f"Bearer expires-{earlier}-x"}) == 401
    assert status_of(port, path, {"Authorization": f"Bearer expires-{later}-x", "Range": "bytes=1-2"}) == 206


def test_azure_verifies_shared_keys_and_sas_tokens(azure: Azure) -> None:
    azure.client.create_bucket("self-test")
    azure.client.put("self-test", "deep/a b+ü.bin", DATA)
    assert azure.client.get("self-test", "deep/a b+ü.bin") == DATA
    wrong = AzureClient(azure.port, azure.account, "d3Jvbmc=")
    assert wrong.ask("GET", "self-test/deep/a b+ü.bin")[0] == 403
    path = f"/{azure.account}/self-test/deep/a%20b%2B%C3%BC.bin"
    for sas, status in (
        (azure.client.sas(), 200), (azure.client.sas(valid_s=-60), 403), (azure.client.sas("l"), 403),
        (wrong.sas(), 403), ("", 403),
    ):  # fmt: skip
        assert status_of(azure.port, f"{path}?{sas}") == status, sas.split("&sig")[0]


# The fault proxy.

Proxy = Callable[..., FaultProxy]


def test_proxy_without_faults_passes_everything_through(nginx: Nginx, fault_proxy: Proxy) -> None:
    proxy = fault_proxy(nginx.port)
    client = Client(proxy.port)
    for byte_range in ("0-0", "10-500000", "999999-999999"):
        first, last = map(int, byte_range.split("-"))
        assert client.get(byte_range=byte_range)[1] == DATA[first : last + 1]
    assert client.get()[1] == DATA
    assert client.get("/none")[0].status == 404
    client.connection.request("HEAD", "/a.bin", headers={"Connection": "close"})
    response = client.connection.getresponse()
    assert (response.read(), response.getheader("Content-Length")) == (b"", "1000000")
    assert client.connection.sock is not None and client.connection.sock.recv(1) == b""
    assert proxy.counts() | {"body_bytes": 0} == {
        "connections": 1, "requests": 6, "body_bytes": 0, "writes_refused": 0, "injected": {},
    }  # fmt: skip
    assert proxy.requests()[1] == {
        "method": "GET", "target": "/a.bin", "range": "bytes=10-500000",
        "headers": ["accept-encoding", "host", "range"],
    }  # fmt: skip


def test_proxy_before_s3_keeps_signatures_valid(s3: S3, bucket: str, fault_proxy: Proxy) -> None:
    proxy = fault_proxy(s3.port)
    for host_style in (False, True):
        client = S3Client(proxy.port, s3.key_id, s3.secret, session_token="token", host_style=host_style)
        assert client.ask("GET", bucket, "deep/a b+ü.bin").body == DATA
        assert "deep/a b+ü.bin" in next(client.pages(bucket))  # a body in chunks
    assert S3Client(proxy.port, s3.key_id, "wrong").ask("GET", bucket, "deep/a b+ü.bin").status == 403
    headers = proxy.requests()[0]["headers"]
    assert isinstance(headers, list) and {"authorization", "x-amz-security-token"} < set(headers)


def test_proxy_works_as_a_forward_proxy(nginx: Nginx, fault_proxy: Proxy) -> None:
    proxy = fault_proxy(nginx.port)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({"http": proxy.endpoint}))
    with opener.open(f"{nginx.http}/a.bin") as response:
        assert response.read() == DATA
    assert proxy.requests()[0]["target"] == f"{nginx.http}/a.bin"


def proxy_with_client(fault_proxy: Proxy, nginx: Nginx, fault: str, **options: object) -> tuple[FaultProxy, Client]:
    """A proxy that injects `fault` into every request, and a client of it."""
    proxy = fault_proxy(nginx.port, probabilities={fault: 1}, **options)
    return proxy, Client(proxy.port)


def test_reset_before_breaks_the_connection(nginx: Nginx, fault_proxy: Proxy) -> None:
    proxy, client = proxy_with_client(fault_proxy, nginx, "reset_before")
    with pytest.raises(ConnectionResetError):
        client.get()
    assert proxy.injected() == {"reset_before": 1}


def test_reset_body_breaks_the_connection(nginx: Nginx, fault_proxy: Proxy) -> None:
    proxy, client = proxy_with_client(fault_proxy, nginx, "reset_body")
    with pytest.raises((ConnectionResetError, http.client.IncompleteRead)):
        client.get()
    assert proxy.injected() == {"reset_body": 1}


def test_truncated_body_ends_early(nginx: Nginx, fault_proxy: Proxy) -> None:
    proxy, client = proxy_with_client(fault_proxy, nginx, "truncated_body")
    with pytest.raises(http.client.IncompleteRead) as caught:
        client.get()
    got = caught.value.partial
    assert len(got) < len(DATA) and got == DATA[: len(got)] and len(got) + caught.value.expected == len(DATA)
    assert proxy.injected() == {"truncated_body": 1}


def test_close_after_ends_the_connection_after_the_answer(nginx: Nginx, fault_proxy: Proxy) -> None:
    proxy, client = proxy_with_client(fault_proxy, nginx, "close_after")
    response, body = client.get()
    assert (body, response.will_close) == (DATA, False)
    with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
        client.get()
    assert proxy.injected() == {"close_after": 1}


@pytest.mark.parametrize("fault", ["stall_before", "stall_body"])
def test_stall_delays_the_answer(nginx: Nginx, fault_proxy: Proxy, fault: str) -> None:
    proxy, client = proxy_with_client(fault_proxy, nginx, fault, stall_s=0.3)
    began = time.monotonic()
    assert client.get()[1] == DATA
    assert time.monotonic() - began >= 0.3
    assert proxy.injected() == {fault: 1}
    proxy, _ = proxy_with_client(fault_proxy, nginx, fault, stall_s=600)
    with pytest.raises(TimeoutError):
        Client(proxy.port, timeout_s=0.2).get()


def test_drip_slows_the_body(nginx: Nginx, fault_proxy: Proxy) -> None:
    proxy, client = proxy_with_client(fault_proxy, nginx, "drip", drip_bytes_per_s=100_000)
    began = time.monotonic()
    assert client.get(byte_range="0-49999")[1] == DATA[:50_000]
    assert time.monotonic() - began >= 0.45
    assert proxy.injected() == {"drip": 1}


@pytest.mark.parametrize("fault", faults.BURSTS)
def test_bursts_fail_requests_in_a_row(nginx: Nginx, fault_proxy: Proxy, fault: str) -> None:
    proxy = fault_proxy(nginx.port, probabilities={fault: 0.1}, burst_requests=4, seed=3)
    client = Client(proxy.port)
    answers = [client.get(byte_range=f"{i}-{i}") for i in range(100)]
    failed = [response.status != 206 for response, _ in answers]
    assert 4 <= sum(failed) == proxy.injected()[fault] < 80
    first = failed.index(True)
    assert failed[first : first + 4] == [True] * 4
    response, body = answers[first]
    assert response.status == (500 if fault == "error_500" else 503)
    assert response.getheader("Retry-After") == ("1" if fault == "retry_after" else None)
    assert (b"<Code>SlowDown</Code>" in body) == (fault == "slow_down")


def test_range_faults_change_content_range(nginx: Nginx, fault_proxy: Proxy) -> None:
    for fault, says in (("range_shifted", "bytes 11-20/1000000"), ("range_total", "bytes 10-19/1000001")):
        proxy, client = proxy_with_client(fault_proxy, nginx, fault)
        response, body = client.get(byte_range="10-19")
        assert (response.status, response.getheader("Content-Range"), body) == (206, says, DATA[10:20])
        assert client.get()[1] == DATA
        assert proxy.injected() == {fault: 1}  # the whole file has no Content-Range


def test_length_faults_change_content_length(nginx: Nginx, fault_proxy: Proxy) -> None:
    proxy, client = proxy_with_client(fault_proxy, nginx, "length_short")
    response, body = client.get(byte_range="10-19")
    assert (response.getheader("Content-Length"), body) == ("9", DATA[10:19])
    proxy, client = proxy_with_client(fault_proxy, nginx, "length_long")
    with pytest.raises(http.client.IncompleteRead) as caught:
        client.get(byte_range="10-19")
    assert (caught.value.partial, caught.value.expected) == (DATA[10:20], 1)
    assert proxy.injected() == {"length_long": 1}


def test_whole_object_ignores_the_range(nginx: Nginx, fault_proxy: Proxy) -> None:
    proxy, client = proxy_with_client(fault_proxy, nginx, "whole_object")
    response, body = client.get(byte_range="400000-699999")
    assert (response.status, response.getheader("Content-Range"), len(body)) == (200, None, len(DATA))
    assert body[400_000:700_000] == DATA[400_000:700_000] and body != DATA
    assert client.get()[1] == DATA
    assert proxy.injected() == {"whole_object": 1}


def test_etag_fault_changes_the_etag(nginx: Nginx, fault_proxy: Proxy) -> None:
    proxy, client = proxy_with_client(fault_proxy, nginx, "etag")
    plain, _ = Client(nginx.port).get()
    response, body = client.get()
    assert (response.getheader("ETag") != plain.getheader("ETag"), body) == (True, DATA)
    assert proxy.injected() == {"etag": 1}


def test_flip_changes_one_bit(nginx: Nginx, fault_proxy: Proxy) -> None:
    proxy, client = proxy_with_client(fault_proxy, nginx, "flip")
    body = client.get()[1]
    assert sum((a ^ b).bit_count() for a, b in zip(body, DATA, strict=True)) == 1
    assert proxy.injected() == {"flip": 1}


def test_tcp_proxy_passes_tls_and_breaks_connections(nginx: Nginx, fault_proxy: Proxy) -> None:
    proxy = fault_proxy(int(nginx.values["https"]), tcp=True, stall_s=0.01, drip_bytes_per_s=1e7)
    context = ssl.create_default_context(cafile=nginx.authority)

    def get() -> bytes:
        connection = http.client.HTTPSConnection("localhost", proxy.port, context=context, timeout=30)
        connection.request("GET", "/a.bin")
        return connection.getresponse().read()

    assert get() == DATA
    faults_of_bytes = dict.fromkeys(tcp_relay.FAULTS, 1 / len(tcp_relay.FAULTS))
    proxy.set(**faults_of_bytes)
    broken = 0
    for _ in range(40):
        try:
            assert get() == DATA
        except (OSError, http.client.IncompleteRead):
            broken += 1
    injected = proxy.injected()
    assert set(injected) == set(faults_of_bytes)
    assert broken == injected["reset_before"] + injected["reset_body"] + injected["truncated_body"]


def test_every_fault_is_tested_above() -> None:
    tested = {
        *faults.BURSTS,
        "stall_before",
        "stall_body",
        "range_shifted",
        "range_total",
        "length_short",
        "length_long",
    }
    tested |= {"reset_before", "reset_body", "truncated_body", "close_after", "drip", "whole_object", "etag", "flip"}
    assert tested == set(faults.NAMES)


def test_writes_never_reach_the_upstream(s3: S3, bucket: str) -> None:
    proxy = FaultProxy(s3.port)
    for method in ("PUT", "POST", "DELETE", "PATCH"):
        client = S3Client(proxy.port, s3.key_id, s3.secret)
        assert client.ask(method, bucket, "changes", body=b"1").status == 405
    assert proxy.counts()["writes_refused"] == 4
    assert proxy.stop() == 3
    assert s3.client.ask("GET", bucket, "deep/a b+ü.bin").status == 200


def outcomes(nginx: Nginx, fault_proxy: Proxy, seed: int, order: list[int]) -> dict[int, str]:
    """Requests 60 ranges, each over its own connection, several at a time. Returns what came back for each."""
    proxy = fault_proxy(nginx.port, seed=seed, probabilities={"truncated_body": 0.2, "flip": 0.2, "etag": 0.1})

    def ask(i: int) -> tuple[int, str]:
        try:
            response, body = Client(proxy.port).get(byte_range=f"{i * 1000}-{i * 1000 + 999}")
        except http.client.IncompleteRead as error:
            return i, f"{len(error.partial)} bytes"
        return i, f"{response.getheader('ETag')} {hash(body)}"

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        return dict(pool.map(ask, order))


def test_seed_determines_faults_whatever_the_order(nginx: Nginx, fault_proxy: Proxy) -> None:
    order = list(range(60))
    first = outcomes(nginx, fault_proxy, 1, order)
    assert outcomes(nginx, fault_proxy, 1, order[::-1]) == first
    assert outcomes(nginx, fault_proxy, 2, order) != first


def test_faults_can_be_turned_off(nginx: Nginx, fault_proxy: Proxy) -> None:
    proxy = fault_proxy(nginx.port, transient=1.0, burst_requests=1, stall_s=0.01, drip_bytes_per_s=1e7)
    for i in range(300):
        try:
            Client(proxy.port).get(byte_range=f"{i}-{i + 500}")
        except (OSError, http.client.HTTPException):
            pass
    assert set(proxy.injected()) == set(faults.TRANSIENT)
    proxy.set()
    for i in range(50):
        assert Client(proxy.port).get(byte_range=f"{i}-{i + 500}")[1] == DATA[i : i + 501]


def test_server_ends_when_its_starter_is_killed(directory: pathlib.Path) -> None:
    server = ServerProgram("nginx.py", directory)
    port = int(server.values["http"])
    server._process.send_signal(signal.SIGKILL)
    server._process.wait()
    with pytest.raises(OSError):  # if nginx outlives its starter, the test is stopped from outside
        while True:
            Client(port).get()
            time.sleep(0.02)
    server.stop()
    left = pathlib.Path(server.values["log"]).parent
    while (left / "nginx.pid").exists():  # nginx removes it last, after it has closed its sockets
        time.sleep(0.02)
    shutil.rmtree(left)  # the killed starter could not remove it
