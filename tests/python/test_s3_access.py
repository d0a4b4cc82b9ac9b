"""S3 as operators set it up: behind TLS with a private authority, for machines with roles."""

from __future__ import annotations

import itertools
import pathlib
import shutil
import socketserver
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

import larder
import pytest
from conftest import Daemon
from remote_sources import Source, environment, make_images, traces
from servers import S3, FaultProxy, InstanceRole, Nginx
from tcp_relay import reset

BUCKET = "guarded-data"
NAMES = (f"guarded{i}" for i in itertools.count())


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return make_images(tmp_path_factory.mktemp("images"), "images", 90)


@pytest.fixture(scope="module")
def bucket(s3: S3, images: Source) -> str:
    s3.client.create_bucket(BUCKET)
    for key, data in images.contents.items():
        s3.client.put(BUCKET, f"images/{key}", data)
    return f"s3://{BUCKET}/images"


@pytest.fixture
def guarded(serve_directory: Callable[..., Nginx], s3: S3, tmp_path: pathlib.Path) -> Nginx:
    """A web server that passes requests over TLS on to the S3 server."""
    return serve_directory(tmp_path, "--upstream", str(s3.port))


def add(daemon: Any, *words: object) -> str:
    name = next(NAMES)
    daemon.command("dataset", "add", name, *words)
    return name


def refused(daemon: Any, *words: object) -> str:
    """The error of a failed `dataset add`, which must add nothing."""
    name = next(NAMES)
    ran = daemon.try_command("dataset", "add", name, *words)
    assert ran.returncode != 0, ran.stdout
    assert name not in daemon.command("dataset", "ls")
    return ran.stdout + ran.stderr


def test_every_byte_is_read_over_tls(
    start_daemon: Callable[..., Any], s3: S3, guarded: Nginx, bucket: str, images: Source, tmp_path: pathlib.Path
) -> None:
    daemon = start_daemon(
        "--remote.ca", str(guarded.authority), environment=environment(tmp_path, **s3.environment())
    )  # fmt: skip
    name = add(daemon, bucket, "--endpoint", guarded.https, "--checksum", "--quota-memory", "1MiB")
    assert images.read(daemon, name) == images.contents
    assert "blocks corrupt 0" in daemon.command("dataset", "verify", name, "--remote")
    asked = guarded.requests()
    assert {one.protocol for one in asked[1:]} == {"HTTP/2.0"} and {one.method for one in asked[1:]} == {"GET"}
    assert sum(one.target.startswith(f"/{BUCKET}/images/") for one in asked) >= 3 * len(images.contents) - 60


def test_untrusted_certificate_is_refused(
    start_daemon: Callable[..., Any], s3: S3, guarded: Nginx, bucket: str, tmp_path: pathlib.Path
) -> None:  # fmt: skip
    daemon = start_daemon(environment=environment(tmp_path, **s3.environment()))
    says = refused(daemon, bucket, "--endpoint", guarded.https)
    assert "certificate" in says and "remote.ca" in says and guarded.https in says
    assert s3.secret not in says
    assert guarded.requests() == []


def test_system_authorities_are_not_trusted_if_remote_ca_is_set(
    larder_bin: pathlib.Path, serve_directory: Callable[..., Nginx], tmp_path: pathlib.Path
) -> None:  # fmt: skip
    for name in "ab":
        (tmp_path / f"{name}.png").write_bytes(b"a")
    server = serve_directory(tmp_path)
    # OpenSSL looks an authority up by name, first in the file of remote.ca. Under the name of the server's authority,
    # this one would be found instead, and the server refused even if the system's authorities were trusted.
    other = tmp_path / "other.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
         "-keyout", tmp_path / "other.key", "-out", other, "-subj", "/CN=Another authority"],
        check=True, capture_output=True,
    )  # fmt: skip
    system = tmp_path / "certs"  # takes the place of the system's authorities, for the daemon alone
    system.mkdir()
    for name in ("ca-certificates.crt", "authority.pem"):
        shutil.copy(server.authority, system / name)
    subprocess.run(["openssl", "rehash", system], check=True)
    prefix = ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/ssl/certs && exec "$@"', str(system))
    daemon = Daemon(larder_bin, tmp_path / "node", prefix=prefix)
    try:
        daemon.start()
        add(daemon, server.https + "/{a,b}.png")  # without remote.ca the daemon trusts the system's authorities
        daemon.end()
        daemon.options = ("--remote.ca", str(other))
        daemon.start()
        assert "certificate" in refused(daemon, server.https + "/{a,b}.png")
    finally:
        daemon.end()


def test_certificate_for_another_name_is_refused(
    start_daemon: Callable[..., Any], s3: S3, guarded: Nginx, bucket: str, tmp_path: pathlib.Path
) -> None:  # fmt: skip
    daemon = start_daemon(
        "--remote.ca", str(guarded.authority), environment=environment(tmp_path, **s3.environment())
    )  # fmt: skip
    says = refused(daemon, bucket, "--endpoint", guarded.https, "--addressing", "host")
    assert f"{BUCKET}.localhost" in says and "certificate" in says


def test_reads_fail_once_the_certificate_is_no_longer_trusted(
    start_daemon: Callable[..., Any], serve_directory: Callable[..., Nginx], s3: S3, guarded: Nginx, bucket: str,
    images: Source, tmp_path: pathlib.Path,
) -> None:  # fmt: skip
    daemon = start_daemon(
        "--remote.ca", str(guarded.authority), environment=environment(tmp_path, **s3.environment())
    )  # fmt: skip
    name = add(daemon, bucket, "--endpoint", guarded.https)
    daemon.end()
    other = serve_directory(tmp_path)
    daemon.options = ("--remote.ca", str(other.authority))
    daemon.start()
    with pytest.raises(larder.ReadFailed, match=r"\.png.*SSL certificate problem.*remote\.ca"):
        images.read(daemon, name)
    assert "SSL certificate problem" in daemon.log.read_text()
    daemon.end()
    daemon.options = ("--remote.ca", str(guarded.authority))
    daemon.start()
    assert images.read(daemon, name) == images.contents


def test_revoked_access_is_reported_with_status_and_remedy(
    start_daemon: Callable[..., Any], s3: S3, bucket: str, images: Source, tmp_path: pathlib.Path
) -> None:  # fmt: skip
    daemon = start_daemon(environment=environment(tmp_path, **s3.environment()))
    name = add(daemon, bucket, "--endpoint", s3.endpoint)
    daemon.end()
    wrong = s3.environment() | {"AWS_SECRET_ACCESS_KEY": "wrong"}
    daemon.environment = environment(tmp_path, **wrong)
    daemon.start()
    with pytest.raises(larder.ReadFailed, match=r"\.png.*HTTP 403, SignatureDoesNotMatch.*AWS_SECRET_ACCESS_KEY"):
        images.read(daemon, name)


def test_mixing_up_http_and_https_is_named(
    start_daemon: Callable[..., Any], serve_directory: Callable[..., Nginx], tmp_path: pathlib.Path
) -> None:  # fmt: skip
    (tmp_path / "a.png").write_bytes(b"a")
    server = serve_directory(tmp_path)
    daemon = start_daemon("--remote.ca", str(server.authority))
    says = refused(daemon, server.https.replace("https://", "http://") + "/{a,b}.png")
    assert "HTTP 400" in says and "the server speaks TLS on this port: write https://" in says
    says = refused(daemon, server.http.replace("http://", "https://") + "/{a,b}.png")
    assert "the server speaks no TLS on this port: write http://" in says


def test_server_that_resets_plain_http_is_said_to_speak_tls_perhaps(start_daemon: Callable[..., Any]) -> None:
    class Reset(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1 << 16)
            reset(self.request)

    daemon = start_daemon("--remote.retry-for", "1 s")
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Reset) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        says = refused(daemon, f"http://127.0.0.1:{server.server_address[1]}/{{a,b}}.png")
        server.shutdown()
    assert "reset by peer; if the server speaks TLS, write https://" in says


def test_refusal_after_reindexing_is_reported_with_its_status(
    start_daemon: Callable[..., Any], serve_directory: Callable[..., Nginx], tmp_path: pathlib.Path
) -> None:  # fmt: skip
    for file in ("a.png", "b.png"):
        (tmp_path / file).write_bytes(b"bytes")
    server = serve_directory(tmp_path)
    daemon = start_daemon()
    name = add(daemon, server.http + "/{a,b}.png")
    daemon.command("dataset", "index", name)
    # Replaces the file with a directory, which nginx does not list.
    (tmp_path / "a.png").unlink()
    (tmp_path / "a.png").mkdir()
    daemon.command("quota", "set", name, "--memory", "1 MiB")
    warmed = daemon.try_command("dataset", "warm", name)
    assert warmed.returncode == 1
    assert "could not be read: " in warmed.stdout and "a.png: HTTP 403, the server refuses" in warmed.stdout
    with pytest.raises(larder.ReadFailed, match=r"a\.png: HTTP 403, the server refuses"):
        with larder.Loader(name, socket=daemon.socket, shuffle=False) as loader:
            next(iter(loader))


def test_missing_bucket_is_named(
    start_daemon: Callable[..., Any], s3: S3, tmp_path: pathlib.Path
) -> None:  # fmt: skip
    daemon = start_daemon(environment=environment(tmp_path, **s3.environment()))
    says = refused(daemon, "s3://no-such-bucket/images", "--endpoint", s3.endpoint)
    assert "HTTP 404, NoSuchBucket" in says and f"there is no bucket no-such-bucket at {s3.endpoint}" in says
    assert "dataset index" not in says


# --- a role's credentials, which are valid for seconds here


def role_of(service: InstanceRole) -> dict[str, str]:
    return {"AWS_EC2_METADATA_SERVICE_ENDPOINT": service.endpoint, "AWS_EC2_METADATA_DISABLED": "false"}


def times_given(service: InstanceRole) -> int:
    """How often the service gave credentials."""
    return sum(count for path, count in service.counts().items() if path.endswith("-role"))


def test_role_credentials_are_renewed_while_reads_continue(
    start_daemon: Callable[..., Any], s3: S3, bucket: str, images: Source, tmp_path: pathlib.Path,
    instance_role: Callable[..., InstanceRole], fault_proxy: Callable[..., FaultProxy],
) -> None:  # fmt: skip
    service = instance_role(expires_s=4)
    proxy = fault_proxy(s3.port, expiring_tokens=True)
    daemon = start_daemon(environment=environment(tmp_path, **role_of(service)))
    name = add(daemon, bucket, "--endpoint", proxy.endpoint)  # without a quota, every read goes to the remote
    first, given = proxy.counts()["requests"], times_given(service)
    for epoch in itertools.count():
        assert images.read(daemon, name, first_epoch=epoch) == images.contents
        if times_given(service) >= given + 4:
            break
    assert proxy.counts()["requests"] >= first + len(images.contents)
    assert "cannot renew" not in daemon.log.read_text()


def test_reads_wait_for_a_late_renewal(
    start_daemon: Callable[..., Any], s3: S3, bucket: str, images: Source, tmp_path: pathlib.Path,
    instance_role: Callable[..., InstanceRole], fault_proxy: Callable[..., FaultProxy],
) -> None:  # fmt: skip
    service = instance_role(expires_s=3)
    metadata = fault_proxy(service.port)
    proxy = fault_proxy(s3.port, expiring_tokens=True)
    variables = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{metadata.endpoint}/container"}
    daemon = start_daemon(environment=environment(tmp_path, **variables))
    name = add(daemon, bucket, "--endpoint", proxy.endpoint)
    metadata.set(error_500=1)
    epochs: list[dict[str, bytes]] = []
    expired = threading.Event()

    def read_until_expired() -> None:
        while not epochs or not expired.is_set():
            epochs.append(images.read(daemon, name, first_epoch=len(epochs)))

    reading = threading.Thread(target=read_until_expired)
    reading.start()
    while not proxy.injected():  # until credentials expire while jobs read
        time.sleep(0.05)
    expired.set()
    metadata.set()
    reading.join(120)
    assert not reading.is_alive()
    assert all(contents == images.contents for contents in epochs)
    log = daemon.log.read_text()
    assert "cannot renew the role's credentials" in log and s3.secret not in log


def test_container_credentials_url_appears_nowhere(
    start_daemon: Callable[..., Any], s3: S3, bucket: str, tmp_path: pathlib.Path,
    instance_role: Callable[..., InstanceRole], fault_proxy: Callable[..., FaultProxy],
) -> None:  # fmt: skip
    """Anyone who knows the path of this URL can get the keys."""
    service = fault_proxy(instance_role(expires_s=3).port)
    host = service.endpoint.removeprefix("http://")
    variables = {
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"http://us3r:p4ss@{host}/container/v2/6uid-0f-th3-t4sk?key=qu3ry"
    }
    daemon = start_daemon("--log.level", "trace", environment=environment(tmp_path, **variables))
    name = add(daemon, bucket, "--endpoint", s3.endpoint)
    service.set(error_500=1)
    while "cannot renew the role's credentials" not in daemon.log.read_text():
        time.sleep(0.05)
    daemon.end()
    daemon.start()
    says = refused(daemon, bucket, "--endpoint", s3.endpoint)
    assert f"the container's endpoint {service.endpoint}: HTTP 500" in says
    info = daemon.command("--json", "dataset", "info", name)
    assert "the container's endpoint" in info
    seen = says + traces(daemon, name)
    for hidden in ("6uid", "t4sk", "us3r", "p4ss", "qu3ry"):
        assert hidden not in seen, hidden
