"""Datasets on http(s):// and s3://, read from real servers through the real daemon and compared with the source."""

from __future__ import annotations

import http.client
import io
import os
import pathlib
import random
import shutil
import subprocess
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import larder
import pytest
from remote_sources import Source, environment, make_images, traces, write_list
from servers import S3, FaultProxy, InstanceRole, Nginx

NAMES = (f"remote{i}" for i in range(1_000_000))
BUCKET = "training-data"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("root")


@pytest.fixture(scope="module")
def images(root: pathlib.Path) -> Source:
    return make_images(root, "images", 160)


@pytest.fixture(scope="module")
def tars(root: pathlib.Path) -> Source:
    """WebDataset shards."""
    directory = root / "tars"
    directory.mkdir()
    draw = random.Random(2)
    contents: dict[str, bytes] = {}
    for shard in range(4):
        with tarfile.open(directory / f"train-{shard:03}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for i in range(60):
                key = f"{shard:03}{i:05}"
                contents[key] = draw.randbytes(draw.randrange(1, 12_000))
                for suffix, data in (("jpg", contents[key]), ("cls", b"%d" % (i % 5))):
                    member = tarfile.TarInfo(f"{key}.{suffix}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    write_list(directory)
    return Source("tars", directory, "jpg", contents)


@pytest.fixture(scope="module")
def nginx(serve_directory: Callable[..., Nginx], root: pathlib.Path) -> Nginx:
    return serve_directory(root)


def upload(s3: S3, source: Source, bucket: str = BUCKET) -> None:
    for path in sorted(source.directory.rglob("*")):
        if path.is_file() and path.suffix != ".txt":
            s3.client.put(bucket, f"{source.name}/{path.relative_to(source.directory).as_posix()}", path.read_bytes())


@pytest.fixture(scope="module")
def bucket(s3: S3, images: Source, tars: Source) -> str:
    """The bucket with both sources."""
    s3.client.create_bucket(BUCKET)
    upload(s3, images)
    upload(s3, tars)
    return f"s3://{BUCKET}"


@pytest.fixture(scope="module")
def daemon(start_daemon: Callable[..., Any], nginx: Nginx, s3: S3, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A daemon that trusts nginx's authority and has the S3 server's credentials."""
    home = tmp_path_factory.mktemp("home")
    return start_daemon("--remote.ca", str(nginx.authority), environment=environment(home, **s3.environment()))


def add(daemon: Any, url: str, *options: object, quota: str = "4MiB") -> str:
    name = next(NAMES)
    daemon.command("dataset", "add", name, url, "--quota-memory", quota, *options)
    return name


def refused(daemon: Any, url: str, *options: object) -> str:
    """The error of a failed `dataset add`, which must add nothing."""
    name = next(NAMES)
    ran = daemon.try_command("dataset", "add", name, url, *options)
    assert ran.returncode != 0, ran.stdout
    assert name not in daemon.command("dataset", "ls")
    return ran.stdout + ran.stderr


# --- every byte


@pytest.mark.parametrize("kind", ["images", "tars"])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_datasets_are_read_over_http(
    request: pytest.FixtureRequest, daemon: Any, nginx: Nginx, scheme: str, kind: str
) -> None:
    source: Source = request.getfixturevalue(kind)
    name = add(daemon, f"{getattr(nginx, scheme)}/{kind}/list.txt")
    assert source.read(daemon, name) == source.contents
    requests = nginx.requests_at_rest()
    assert source.read(daemon, name, seed=5) == source.contents
    assert nginx.requests_at_rest() == requests, "the second epoch came from the cache"
    assert {request.method for request in requests} == {"GET"}
    if scheme == "https":
        assert requests[-1].protocol == "HTTP/2.0"
    assert max(request.connection_requests for request in requests) > 4, "connections are kept"
    probes = [request.connection for request in requests if request.range == "bytes=0-0"]
    assert kind == "tars" or len(probes) > 4 * len(set(probes)), "connections of probes are kept, too"


@pytest.mark.parametrize("style", ["path", "host"])
@pytest.mark.parametrize("kind", ["images", "tars"])
def test_datasets_are_read_from_s3(
    request: pytest.FixtureRequest, daemon: Any, s3: S3, bucket: str, style: str, kind: str
) -> None:
    source: Source = request.getfixturevalue(kind)
    name = add(daemon, f"{bucket}/{kind}", "--endpoint", s3.endpoint, "--addressing", style)
    assert source.read(daemon, name) == source.contents
    assert source.read(daemon, name, seed=5) == source.contents


@pytest.mark.parametrize("block", ["sample", "object", "64KiB"])
def test_blocks_of_any_size_give_every_sample(
    daemon: Any, nginx: Nginx, s3: S3, bucket: str, tars: Source, block: str
) -> None:
    for remote in ((f"{nginx.http}/tars/train-{{000..003}}.tar",), (f"{bucket}/tars", "--endpoint", s3.endpoint)):
        name = add(daemon, *remote, "--block", block)
        assert tars.read(daemon, name) == tars.contents


def test_single_shard_is_read(daemon: Any, nginx: Nginx, s3: S3, bucket: str, tars: Source) -> None:
    wanted = {key: data for key, data in tars.contents.items() if key.startswith("002")}
    shard = "tars/train-002.tar"
    for remote in ((f"{nginx.http}/{shard}",), (f"{bucket}/{shard}", "--endpoint", s3.endpoint)):
        assert tars.read(daemon, add(daemon, *remote)) == wanted


# --- permissions


def test_session_token_and_requester_pays_are_sent(
    start_daemon: Callable[..., Any], s3: S3, bucket: str, images: Source, tmp_path: pathlib.Path,
    fault_proxy: Callable[..., FaultProxy],
) -> None:  # fmt: skip
    proxy = fault_proxy(s3.port)
    daemon = start_daemon(environment=environment(tmp_path, **s3.environment(), AWS_SESSION_TOKEN="a-session-token"))
    name = add(daemon, f"{bucket}/images", "--endpoint", proxy.endpoint, "--requester-pays")
    assert images.read(daemon, name) == images.contents
    for header in ("authorization", "x-amz-security-token", "x-amz-request-payer"):
        assert all(header in str(request["headers"]) for request in proxy.requests()), header


def test_public_bucket_is_read_without_credentials(
    start_daemon: Callable[..., Any], s3: S3, images: Source, tmp_path: pathlib.Path, bucket: str,
    fault_proxy: Callable[..., FaultProxy],
) -> None:  # fmt: skip
    s3.client.create_bucket("public-data")
    s3.client.make_public("public-data")
    # The server does not decode keys of unsigned requests.
    plain = {key: data for key, data in images.contents.items() if key[4:9].isdigit()}
    for key, data in plain.items():
        s3.client.put("public-data", key, data)
        s3.client.make_public("public-data", key)
    daemon = start_daemon(environment=environment(tmp_path))
    proxy = fault_proxy(s3.port)
    name = add(daemon, "s3://public-data", "--endpoint", proxy.endpoint, "--unsigned")
    assert images.read(daemon, name) == plain
    assert not any("authorization" in str(request["headers"]) for request in proxy.requests())
    assert "--unsigned" in refused(daemon, "s3://public-data", "--endpoint", s3.endpoint)
    assert "AccessDenied" in refused(daemon, bucket, "--endpoint", s3.endpoint, "--unsigned")


def test_credentials_of_a_profile_are_used(
    start_daemon: Callable[..., Any], s3: S3, bucket: str, images: Source, tmp_path: pathlib.Path
) -> None:  # fmt: skip
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(
        "[default]\naws_access_key_id = NOBODY\naws_secret_access_key = wrong\n"
        f"[training]\naws_access_key_id = {s3.key_id}\naws_secret_access_key = {s3.secret}\n"
    )
    (tmp_path / ".aws" / "config").write_text(
        "[services local]\ns3 =\n  endpoint_url = http://nowhere\nec2 =\n  endpoint_url = http://nowhere\n"
        f"[profile training]\nregion = us-east-1\nendpoint_url = {s3.endpoint}\ns3 =\n  addressing_style = path\n"
        "[profile nonsense]\nthis is no setting\n"
    )  # fmt: skip
    daemon = start_daemon(environment=environment(tmp_path))
    assert images.read(daemon, add(daemon, f"{bucket}/images", "--profile", "training")) == images.contents
    assert "InvalidAccessKeyId" in refused(daemon, bucket, "--endpoint", s3.endpoint)
    assert '"nobody"' in refused(daemon, bucket, "--endpoint", s3.endpoint, "--profile", "nobody")


@pytest.mark.parametrize("owner", ["machine", "container", "container with its token in a file"])
def test_credentials_of_a_role_are_used(
    start_daemon: Callable[..., Any], s3: S3, bucket: str, images: Source, tmp_path: pathlib.Path,
    instance_role: Callable[..., InstanceRole], owner: str,
) -> None:  # fmt: skip
    if owner == "machine":
        service = instance_role()
        variables = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": service.endpoint, "AWS_EC2_METADATA_DISABLED": "false"}
    else:
        service = instance_role(container_token="let-me-in")
        variables = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{service.endpoint}/container"}
        if owner == "container":
            variables["AWS_CONTAINER_AUTHORIZATION_TOKEN"] = "let-me-in"
        else:
            (tmp_path / "token").write_text("let-me-in\n")
            variables["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"] = str(tmp_path / "token")
    daemon = start_daemon(environment=environment(tmp_path, **variables))
    name = add(daemon, f"{bucket}/images", "--endpoint", s3.endpoint)
    assert images.read(daemon, name) == images.contents
    assert service.counts()


def test_secrets_appear_nowhere(
    start_daemon: Callable[..., Any], s3: S3, bucket: str, images: Source, tmp_path: pathlib.Path
) -> None:  # fmt: skip
    for secret, valid in ((s3.secret, True), ("wr0ng" * 8, False)):
        variables = s3.environment() | {"AWS_SECRET_ACCESS_KEY": secret, "AWS_SESSION_TOKEN": "t0ken" * 8}
        daemon = start_daemon("--log.level", "trace", environment=environment(tmp_path, **variables))
        remote = (f"{bucket}/images", "--endpoint", s3.endpoint)
        if valid:
            name = add(daemon, *remote)
            assert images.read(daemon, name) == images.contents
            s3.client.put(BUCKET, "images/ant/gone.png", b"for now")
            gone = add(daemon, *remote)
            s3.client.delete(BUCKET, "images/ant/gone.png")
            with pytest.raises(larder.NotFound, match="ant/gone.png") as raised:
                images.read(daemon, gone)
            says = str(raised.value)
        else:
            name = next(NAMES)
            ran = daemon.try_command("--json", "dataset", "add", name, *remote)
            says = ran.stdout + ran.stderr + refused(daemon, *remote)
            assert "SignatureDoesNotMatch" in says and BUCKET in says
        seen = says + traces(daemon, name)
        assert BUCKET in seen
        for hidden in (secret, "t0ken" * 8, "AWS4-HMAC", "Signature="):
            assert hidden not in seen, hidden[:5]


def test_password_in_a_url_is_refused_and_not_repeated(
    start_daemon: Callable[..., Any], daemon: Any, nginx: Nginx, tmp_path: pathlib.Path
) -> None:  # fmt: skip
    url = nginx.http.replace("http://", "http://me:p4ssw0rd@") + "/images/list.txt"
    assert "p4ssw0rd" not in refused(daemon, url)
    assert "password in it" in refused(daemon, "s3://bucket/images", "--unsigned", "--endpoint", url)
    assert "p4ssw0rd" not in refused(daemon, "s3://bucket/images", "--unsigned", "--endpoint", url)
    signed = start_daemon(environment=environment(tmp_path, AWS_ENDPOINT_URL=url))
    assert "password in it" in refused(signed, "s3://bucket/images", "--unsigned")
    for started in (daemon, signed):
        assert "p4ssw0rd" not in started.log.read_text()


def test_list_with_foreign_urls_is_refused_hiding_signatures(
    daemon: Any, nginx: Nginx, images: Source
) -> None:
    for name, line in (
        ("elsewhere.txt", "http://example.invalid/images/ant/00000.png"),
        ("signed.txt", "ant/00000.png?X-Amz-Signature=s1gn4ture"),
    ):
        (images.directory / name).write_text(f"ant/00001.png\n{line}\n")
        says = refused(daemon, f"{nginx.http}/images/{name}")
        assert "line 2: is neither a name nor a URL below" in says
        assert "s1gn4ture" not in says + daemon.log.read_text() and "example" not in says
        (images.directory / name).unlink()


def test_untrusted_server_is_refused_without_retries(
    start_daemon: Callable[..., Any], nginx: Nginx, tmp_path: pathlib.Path
) -> None:  # fmt: skip
    daemon = start_daemon(environment=environment(tmp_path))
    assert "certificate" in refused(daemon, f"{nginx.https}/tars/list.txt")
    metrics = subprocess.run(
        ["curl", "-s", "--unix-socket", daemon.state / "admin.sock", "http://larder/metrics"], capture_output=True, text=True
    )  # fmt: skip
    assert "larder_http_retries_total 0\n" in metrics.stdout, "a retry would not help"


# --- changed and missing objects


def replace(nginx: Nginx, s3: S3, key: str, data: bytes | None) -> None:
    """Replaces an object on the web server and in the bucket. None deletes it."""
    path = nginx.directory / key
    if data is None:
        path.unlink()
        s3.client.delete(BUCKET, key)
    else:
        path.write_bytes(data)
        os.utime(path, (time.time() + 60, time.time() + 60))  # nginx makes ETags from the time in s and the size
        s3.client.put(BUCKET, key, data)


@pytest.fixture
def own_images(nginx: Nginx, s3: S3, bucket: str, root: pathlib.Path) -> Iterator[Source]:
    """A source on the web server and in the bucket that one test may change."""
    source = make_images(root, next(NAMES), 12)
    upload(s3, source)
    yield source
    shutil.rmtree(source.directory)


@pytest.mark.parametrize("scheme", ["http", "s3"])
def test_changed_and_deleted_objects_are_named(
    daemon: Any, nginx: Nginx, s3: S3, own_images: Source, scheme: str
) -> None:  # fmt: skip
    name = own_images.name
    remote = (
        (f"{nginx.http}/{name}/list.txt",) if scheme == "http" else (f"s3://{BUCKET}/{name}", "--endpoint", s3.endpoint)
    )
    changed, gone = "ant/00004.png", "bee/00006.png"
    dataset = add(daemon, *remote)
    replace(nginx, s3, f"{name}/{changed}", own_images.contents[changed][::-1] + b"?")
    replace(nginx, s3, f"{name}/{gone}", None)
    with larder.Dataset(dataset=dataset, socket=daemon.socket) as by_index:
        order = sorted(own_images.contents)
        with pytest.raises(larder.ObjectChanged, match=changed):
            by_index[order.index(changed)]
        with pytest.raises(larder.NotFound, match=gone):
            by_index[order.index(gone)]
    left = {key: data for key, data in own_images.contents.items() if key not in (changed, gone)}
    assert own_images.read(daemon, dataset, skip_failed=True) == left


def test_server_without_ranges_is_refused_if_ranges_are_needed(
    daemon: Any, serve_directory: Callable[..., Nginx], root: pathlib.Path, images: Source, tars: Source
) -> None:
    server = serve_directory(root, "--no-ranges")
    says = refused(daemon, f"{server.http}/tars/list.txt")
    assert "range" in says and "train-000.tar" in says and "--block object" in says
    assert tars.read(daemon, add(daemon, f"{server.http}/tars/list.txt", "--block", "object")) == tars.contents
    assert images.read(daemon, add(daemon, f"{server.http}/images/list.txt")) == images.contents


def test_missing_objects_and_buckets_are_named(daemon: Any, nginx: Nginx, s3: S3, bucket: str) -> None:
    assert "nothing.txt" in refused(daemon, f"{nginx.http}/images/nothing.txt")
    assert "train-004.tar" in refused(daemon, f"{nginx.http}/tars/train-{{000..004}}.tar")
    assert "cannot be listed" in refused(daemon, f"{nginx.http}/images")
    assert "NoSuchBucket" in refused(daemon, "s3://no-such-bucket/a", "--endpoint", s3.endpoint)
    refused(daemon, f"{bucket}/no/such/prefix", "--endpoint", s3.endpoint)


@pytest.mark.parametrize("options", [[], ["--dry-run"], ["--format", "webdataset"]])
def test_prefix_without_objects_is_not_found(daemon: Any, s3: S3, bucket: str, options: list[str]) -> None:
    ran = daemon.try_command("dataset", "add", "none", f"{bucket}/birds/v3", "--endpoint", s3.endpoint, *options)
    assert ran.returncode == 4
    assert "nothing has the prefix birds/v3/: check the URL" in ran.stderr
    empty = f"empty-{next(NAMES)}"
    s3.client.create_bucket(empty)
    ran = daemon.try_command("dataset", "add", "none", f"s3://{empty}", "--endpoint", s3.endpoint, *options)
    assert ran.returncode == 4
    assert f"s3://{empty}: the bucket is empty: check the URL" in ran.stderr


# --- a flaky remote costs time but no data

FLAKY = dict(transient=0.05, stall_s=1)


@pytest.mark.parametrize("scheme", ["http", "s3"])
@pytest.mark.parametrize("kind", ["images", "tars"])
def test_training_through_faults_reads_every_byte(
    request: pytest.FixtureRequest, daemon: Any, nginx: Nginx, s3: S3, bucket: str,
    fault_proxy: Callable[..., FaultProxy], scheme: str, kind: str,
) -> None:  # fmt: skip
    source: Source = request.getfixturevalue(kind)
    proxy = fault_proxy(nginx.port if scheme == "http" else s3.port, **FLAKY)
    if scheme == "http":
        remote = (f"{proxy.endpoint}/{kind}/list.txt",)
    else:
        remote = (f"{bucket}/{kind}", "--endpoint", proxy.endpoint)
    # The cache holds a part, so every epoch requests the rest.
    name = add(daemon, *remote, quota="256KiB")
    injected: dict[str, int] = {}
    for epoch in range(12):
        assert source.read(daemon, name, first_epoch=epoch) == source.contents
        injected = proxy.injected()
        if epoch >= 1 and sum(injected.values()) >= 20 and len(injected) >= 6:
            break
    else:
        pytest.fail(f"too few faults took place: {injected}")
    assert proxy.counts()["writes_refused"] == 0


def test_remote_that_stays_down_is_an_error_naming_the_object(
    start_daemon: Callable[..., Any], nginx: Nginx, images: Source, tmp_path: pathlib.Path,
    fault_proxy: Callable[..., FaultProxy],
) -> None:  # fmt: skip
    daemon = start_daemon("--remote.retry-for", "1 s", environment=environment(tmp_path))
    proxy = fault_proxy(nginx.port)
    name = add(daemon, f"{proxy.endpoint}/images/list.txt")
    proxy.set(error_500=1)
    with pytest.raises(larder.ReadFailed, match=r"\.png"):
        images.read(daemon, name)
    proxy.set()
    assert images.read(daemon, name) == images.contents


def test_stalled_requests_time_out_and_are_retried(
    start_daemon: Callable[..., Any], nginx: Nginx, images: Source, tmp_path: pathlib.Path,
    fault_proxy: Callable[..., FaultProxy],
) -> None:  # fmt: skip
    daemon = start_daemon("--remote.stall-timeout", "1 s", environment=environment(tmp_path))
    proxy = fault_proxy(nginx.port, stall_s=600)
    name = add(daemon, f"{proxy.endpoint}/images/list.txt")
    proxy.set(stall_before=0.05, stall_body=0.05)
    assert images.read(daemon, name) == images.contents
    assert proxy.injected()


def test_dripping_answer_is_requested_again(
    start_daemon: Callable[..., Any], nginx: Nginx, images: Source, tmp_path: pathlib.Path,
    fault_proxy: Callable[..., FaultProxy],
) -> None:  # fmt: skip
    # At this rate no answer of 5 KB ends within the request timeout, but the rate is too high to count as a stall.
    daemon = start_daemon("--remote.request-timeout", "1 s", environment=environment(tmp_path))
    assert max(map(len, images.contents.values())) > 5_000
    proxy = fault_proxy(nginx.port, drip_bytes_per_s=4_500)
    name = add(daemon, f"{proxy.endpoint}/images/list.txt")
    proxy.set(drip=0.1)
    assert images.read(daemon, name) == images.contents
    assert proxy.injected() and int(traces(daemon, name).split("\nlarder_http_retries_total ")[1].split()[0]) > 0


def test_daemon_stops_and_starts_while_its_remote_is_silent(
    start_daemon: Callable[..., Any], nginx: Nginx, images: Source, tmp_path: pathlib.Path,
    fault_proxy: Callable[..., FaultProxy],
) -> None:  # fmt: skip
    daemon = start_daemon(environment=environment(tmp_path))
    proxy = fault_proxy(nginx.port, stall_s=600)
    name = add(daemon, f"{proxy.endpoint}/images/list.txt")
    proxy.set(stall_before=1)
    failed: list[Exception] = []

    def read() -> None:
        try:
            images.read(daemon, name, reconnect_timeout_s=0.1)
        except larder.Error as error:
            failed.append(error)

    reading = threading.Thread(target=read)
    reading.start()
    while not proxy.injected():
        time.sleep(0.01)
    daemon.end()
    reading.join(60)
    assert not reading.is_alive() and failed
    daemon.start()
    assert name in daemon.command("dataset", "ls")
    proxy.set()
    assert images.read(daemon, name) == images.contents


def test_forward_proxy_of_the_environment_is_used(
    start_daemon: Callable[..., Any], nginx: Nginx, images: Source, tmp_path: pathlib.Path,
    fault_proxy: Callable[..., FaultProxy],
) -> None:  # fmt: skip
    proxy = fault_proxy(nginx.port)
    daemon = start_daemon(environment=environment(tmp_path, http_proxy=proxy.endpoint, no_proxy=""))
    name = add(daemon, f"{nginx.http}/images/list.txt")
    assert images.read(daemon, name) == images.contents
    assert all(str(request["target"]).startswith(f"{nginx.http}/images/") for request in proxy.requests())
    assert proxy.requests()


def test_nothing_is_written_to_a_remote(nginx: Nginx, s3: S3, bucket: str, images: Source, tars: Source) -> None:
    """Runs after all tests above: no writing method was used, and the bucket's contents are unchanged."""
    assert {request.method for request in nginx.requests()} <= {"GET", "HEAD", "OPTIONS"}
    for source in (images, tars):
        for path in source.directory.rglob("*"):
            if path.is_file() and path.suffix != ".txt":
                key = f"{source.name}/{path.relative_to(source.directory).as_posix()}"
                assert s3.client.ask("GET", BUCKET, key).body == path.read_bytes()
    try:
        connection = http.client.HTTPConnection("127.0.0.1", nginx.port, timeout=30)
        connection.request("DELETE", "/images/list.txt")
        assert connection.getresponse().status == 405
    finally:
        connection.close()
