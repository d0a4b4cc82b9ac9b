"""Datasets in the stores with buckets, read from real servers through the real daemon and compared with the source: S3,
Google Cloud Storage and Azure. What S3 alone has is in test_remotes.py and test_s3_access.py."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import os
import pathlib
import random
import re
import subprocess
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import larder
import pytest
from remote_sources import Source, environment, make_images, traces
from servers import S3, Azure, FaultProxy, Gcs, GoogleTokens

NAMES = (f"stored{i}" for i in itertools.count())
BUCKET = "stored-data"
Store = S3 | Gcs | Azure


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return make_images(tmp_path_factory.mktemp("images"), "images", 60)


@pytest.fixture(scope="module")
def tars(tmp_path_factory: pytest.TempPathFactory) -> Source:
    """WebDataset shards."""
    directory = tmp_path_factory.mktemp("tars")
    draw = random.Random(3)
    contents: dict[str, bytes] = {}
    for shard in range(3):
        with tarfile.open(directory / f"train-{shard}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for i in range(30):
                key = f"{shard}{i:05}"
                contents[key] = draw.randbytes(draw.randrange(1, 12_000))
                member = tarfile.TarInfo(f"{key}.jpg")
                member.size = len(contents[key])
                tar.addfile(member, io.BytesIO(contents[key]))
    return Source("tars", directory, "jpg", contents)


def put(store: Store, source: Source, bucket: str = BUCKET) -> None:
    for path in sorted(source.directory.rglob("*")):
        if path.is_file() and path.suffix != ".txt":
            store.client.put(bucket, f"{source.name}/{path.relative_to(source.directory).as_posix()}", path.read_bytes())


@pytest.fixture(scope="module")
def filled(request: pytest.FixtureRequest, images: Source, tars: Source) -> Callable[[str], Store]:
    """Returns a store by its fixture's name, with a bucket that has both sources."""
    filled: dict[str, Store] = {}

    def fill(name: str) -> Store:
        if name not in filled:
            filled[name] = request.getfixturevalue(name)
            filled[name].client.create_bucket(BUCKET)
            put(filled[name], images)
            put(filled[name], tars)
        return filled[name]

    return fill


@pytest.fixture(params=["gcs", "azure"])
def store(request: pytest.FixtureRequest, filled: Callable[[str], Store]) -> Store:
    """The stores whose every byte is read here; S3's is in test_remotes.py."""
    return filled(request.param)


@pytest.fixture(params=["s3", "gcs", "azure"])
def any_store(request: pytest.FixtureRequest) -> Store:
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def daemon_of(start_daemon: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[[Store], Any]:
    """Returns the daemon that has a store's credentials and endpoint."""
    started: dict[str, Any] = {}

    def find(store: Store) -> Any:
        if store.scheme not in started:
            home = tmp_path_factory.mktemp("home")
            started[store.scheme] = start_daemon(environment=environment(home, **store.settings()))
        return started[store.scheme]

    return find


def url(store: Store, path: str = "", bucket: str = BUCKET) -> str:
    return f"{store.scheme}://{bucket}" + (f"/{path}" if path else "")


def add(daemon: Any, *words: object, quota: str = "4MiB") -> str:
    name = next(NAMES)
    daemon.command("dataset", "add", name, *words, "--quota-memory", quota)
    return name


def refused(daemon: Any, *words: object) -> str:
    """The error of a failed `dataset add`, which must add nothing."""
    name = next(NAMES)
    ran = daemon.try_command("dataset", "add", name, *words)
    assert ran.returncode != 0, ran.stdout
    assert name not in daemon.command("dataset", "ls")
    return ran.stdout + ran.stderr


# --- every byte


@pytest.mark.parametrize("kind", ["images", "tars"])
def test_datasets_are_read(
    request: pytest.FixtureRequest, daemon_of: Callable[..., Any], store: Store, kind: str
) -> None:
    source: Source = request.getfixturevalue(kind)
    daemon = daemon_of(store)
    name = add(daemon, url(store, kind), "--checksum")
    assert source.read(daemon, name) == source.contents
    assert source.read(daemon, name, seed=5) == source.contents
    assert "blocks corrupt 0" in daemon.command("dataset", "verify", name, "--remote")


def test_single_shard_and_blocks_of_several_samples_are_read(
    daemon_of: Callable[..., Any], store: Store, tars: Source
) -> None:
    daemon = daemon_of(store)
    name = add(daemon, url(store, "tars/train-1.tar"), "--block", "64KiB")
    assert tars.read(daemon, name) == {key: data for key, data in tars.contents.items() if key.startswith("1")}


def test_objects_beyond_one_page_of_a_list_are_read(
    start_daemon: Callable[..., Any], any_store: Store, fault_proxy: Callable[..., FaultProxy], tmp_path: pathlib.Path
) -> None:
    any_store.client.create_bucket("many-objects")
    contents = {f"{i % 7}/{i:04}.bin": b"%d" % i for i in range(1_050)}
    for key, data in contents.items():
        any_store.client.put("many-objects", key, data)
    proxy = fault_proxy(any_store.port)
    daemon = start_daemon(environment=environment(tmp_path, **any_store.settings(proxy.endpoint)))
    name = add(daemon, url(any_store, bucket="many-objects"))
    lists = [request for request in proxy.requests() if "prefix=" in str(request["target"])]
    assert len(lists) == 2
    assert Source("", pathlib.Path(), "bin", contents).read(daemon, name) == contents


@pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/dev/fuse"), reason="only root can mount here")
def test_doctor_mount_and_pack_read_from_a_store(
    daemon_of: Callable[..., Any], store: Store, images: Source, larder_bin: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    daemon = daemon_of(store)
    name = add(daemon, url(store, "images"))
    program = (larder_bin / "larder", "--admin-socket", daemon.state / "admin.sock")
    users_environment = environment(tmp_path, **store.settings())

    words = ("--json", "doctor", name, "--seconds", "0.05")
    ran = subprocess.run([*program, *words], capture_output=True, text=True, env=users_environment)
    (remote,) = (finding for finding in json.loads(ran.stdout)["findings"] if finding["check"] == "remote")
    assert remote["verdict"] == "good", remote

    shown = tmp_path / "shown"
    shown.mkdir()
    mounted = subprocess.Popen([*program, "mount", name, shown, "--socket", daemon.socket], stdout=subprocess.PIPE)
    try:
        assert mounted.stdout is not None and mounted.stdout.readline()
        assert {key: (shown / key).read_bytes() for key in images.contents} == images.contents
    finally:
        mounted.terminate()
        assert mounted.wait(60) == 0

    packed = tmp_path / "packed"
    words = ("dataset", "pack", url(store, "images"), packed, "--format", "larder")
    ran = subprocess.run([*program, *words], capture_output=True, text=True, env=users_environment)
    assert ran.returncode == 0, ran.stderr
    read = images.read(daemon, add(daemon, f"file://{packed}"))  # packed samples have numbers
    assert sorted(read.values()) == sorted(images.contents.values())


# --- changed and missing objects


@pytest.fixture
def own_images(any_store: Store, tmp_path: pathlib.Path) -> tuple[str, Source]:
    """A bucket with a source that one test may change."""
    source = make_images(tmp_path, next(NAMES), 12)
    bucket = f"{source.name}-bucket"
    any_store.client.create_bucket(bucket)
    put(any_store, source, bucket)
    return bucket, source


def test_changed_and_deleted_objects_are_named(
    daemon_of: Callable[..., Any], any_store: Store, own_images: tuple[str, Source]
) -> None:
    bucket, source = own_images
    daemon = daemon_of(any_store)
    dataset = add(daemon, url(any_store, source.name, bucket))
    longer, same_length, gone = "ant/00004.png", "ant/00001.png", "bee/00006.png"
    any_store.client.put(bucket, f"{source.name}/{longer}", source.contents[longer] + b"?")
    any_store.client.put(bucket, f"{source.name}/{same_length}", bytes(len(source.contents[same_length])))
    any_store.client.delete(bucket, f"{source.name}/{gone}")
    order = sorted(source.contents)
    with larder.Dataset(dataset=dataset, socket=daemon.socket) as by_index:
        for changed in (longer, same_length):
            with pytest.raises(larder.ObjectChanged, match=changed):
                by_index[order.index(changed)]
        with pytest.raises(larder.NotFound, match=gone):
            by_index[order.index(gone)]
    left = {key: data for key, data in source.contents.items() if key not in (longer, same_length, gone)}
    assert source.read(daemon, dataset, skip_failed=True) == left
    daemon.command("dataset", "index", dataset)
    assert source.read(daemon, dataset)[longer] == source.contents[longer] + b"?"


def test_missing_buckets_and_prefixes_are_named(daemon_of: Callable[..., Any], store: Store) -> None:
    daemon = daemon_of(store)
    says = refused(daemon, url(store, "a", "no-such-bucket"))
    assert "HTTP 404" in says and re.search(r"there is no (bucket|container) no-such-bucket at http://localhost", says)
    assert "nothing has the prefix birds/v3/: check the URL" in refused(daemon, url(store, "birds/v3"))
    assert "train-9.tar" in refused(daemon, url(store, "tars/train-9.tar"))


# --- a flaky store costs time but no data


@pytest.mark.parametrize("kind", ["images", "tars"])
def test_training_through_faults_reads_every_byte(
    request: pytest.FixtureRequest, start_daemon: Callable[..., Any], store: Store, tmp_path: pathlib.Path,
    fault_proxy: Callable[..., FaultProxy], kind: str,
) -> None:  # fmt: skip
    source: Source = request.getfixturevalue(kind)
    proxy = fault_proxy(store.port, transient=0.07, stall_s=1)
    daemon = start_daemon(environment=environment(tmp_path, **store.settings(proxy.endpoint)))
    # The cache holds a part, so every epoch requests the rest.
    name = add(daemon, url(store, kind), quota="64KiB")
    injected: dict[str, int] = {}
    for epoch in range(20):
        assert source.read(daemon, name, first_epoch=epoch) == source.contents
        injected = proxy.injected()
        if epoch >= 1 and sum(injected.values()) >= 20 and len(injected) >= 6:
            break
    else:
        pytest.fail(f"too few faults took place: {injected}")


def test_store_that_stays_down_is_an_error_naming_the_object(
    start_daemon: Callable[..., Any], store: Store, images: Source, tmp_path: pathlib.Path,
    fault_proxy: Callable[..., FaultProxy],
) -> None:  # fmt: skip
    proxy = fault_proxy(store.port)
    daemon = start_daemon(
        "--remote.retry-for", "1 s", environment=environment(tmp_path, **store.settings(proxy.endpoint))
    )
    name = add(daemon, url(store, "images"))
    proxy.set(error_503=1)
    with pytest.raises(larder.ReadFailed, match=r"\.png: HTTP 503"):
        images.read(daemon, name)
    proxy.set()
    assert images.read(daemon, name) == images.contents


# --- secrets


@pytest.mark.parametrize("way", ["gcs", "azure", "azure with a SAS"])
def test_secrets_appear_nowhere(
    start_daemon: Callable[..., Any], filled: Callable[[str], Store], images: Source, tmp_path: pathlib.Path,
    fault_proxy: Callable[..., FaultProxy], way: str,
) -> None:  # fmt: skip
    store = filled(way.split()[0])
    proxy = fault_proxy(store.port)
    settings, hidden = store.settings(proxy.endpoint), store.secrets()
    if "SAS" in way:
        assert isinstance(store, Azure)
        sas = store.client.sas()
        settings = store.settings(proxy.endpoint, f"SharedAccessSignature={sas}")
        hidden += [sas, "sig="]
    daemon = start_daemon(
        "--log.level", "trace", "--remote.retry-for", "1 s", environment=environment(tmp_path, **settings)
    )
    store.client.put(BUCKET, "gone/a.png", b"for now")
    name, gone = add(daemon, url(store, "images")), add(daemon, url(store, "gone"))
    assert images.read(daemon, name, first_epoch=1) == images.contents
    store.client.delete(BUCKET, "gone/a.png")
    with pytest.raises(larder.NotFound, match="a.png") as raised:
        with larder.Loader(gone, socket=daemon.socket) as loader:
            next(iter(loader))
    daemon.command("quota", "set", name, "--memory", "0")
    proxy.set(error_500=1)
    with pytest.raises(larder.ReadFailed, match=r"\.png: HTTP 500") as failed:
        images.read(daemon, name, first_epoch=2)
    says = str(raised.value) + str(failed.value) + refused(daemon, url(store, "images", "no-such-bucket"))
    seen = says + traces(daemon, name)
    assert BUCKET in seen
    for secret in hidden:
        assert secret not in seen, secret[:5]


# --- gs://: tokens


@pytest.fixture
def tokens() -> Iterator[Callable[..., GoogleTokens]]:
    """Starts token servers. Options are those of google_tokens.py."""
    started: list[GoogleTokens] = []

    def start(**options: object) -> GoogleTokens:
        started.append(GoogleTokens(**options))
        return started[-1]

    yield start
    assert [server.stop() for server in started] == [0] * len(started)


@pytest.mark.parametrize("way", ["variable", "gcloud's file", "profile", "machine", "through a proxy"])
def test_token_comes_from_where_googles_clients_look(
    start_daemon: Callable[..., Any], filled: Callable[[str], Store], images: Source, tmp_path: pathlib.Path,
    tokens: Callable[..., GoogleTokens], way: str,
) -> None:  # fmt: skip
    store = filled("gcs")
    server = tokens(**({"token_uri": "http://tokens.invalid/token"} if "proxy" in way else {}))
    gcloud = tmp_path / ".config" / "gcloud"
    gcloud.mkdir(parents=True)
    settings = {"STORAGE_EMULATOR_HOST": store.endpoint.removeprefix("http://")}
    words: tuple[str, ...] = ()
    if way == "gcloud's file":
        (gcloud / "application_default_credentials.json").write_text(server.file.read_text())
    elif way == "profile":
        settings["GOOGLE_APPLICATION_CREDENTIALS"] = "/nowhere"
        (gcloud / "training.json").write_text(server.file.read_text())
        words = ("--profile", "training")
    elif way == "machine":
        settings |= {"GCE_METADATA_HOST": f"127.0.0.1:{server.port}", "NO_GCE_CHECK": "false"}
    else:
        settings |= server.account()
    if "proxy" in way:
        settings |= {"http_proxy": f"http://127.0.0.1:{server.port}", "no_proxy": "localhost"}
    daemon = start_daemon(environment=environment(tmp_path, **settings))
    assert images.read(daemon, add(daemon, url(store, "images"), *words)) == images.contents
    assert server.given("metadata" if way == "machine" else "assertion") == 1


def test_tokens_are_renewed_while_reads_continue(
    start_daemon: Callable[..., Any], filled: Callable[[str], Store], images: Source, tmp_path: pathlib.Path,
    tokens: Callable[..., GoogleTokens], fault_proxy: Callable[..., FaultProxy],
) -> None:  # fmt: skip
    store, server = filled("gcs"), tokens(expires_s=4)
    proxy = fault_proxy(store.port, expiring_tokens=True, require_token=True)
    settings = {"STORAGE_EMULATOR_HOST": proxy.endpoint} | server.account()
    daemon = start_daemon(environment=environment(tmp_path, **settings))
    name = add(daemon, url(store, "images"), quota="0")  # every read goes to the store
    given = server.given("assertion")
    for epoch in itertools.count():
        assert images.read(daemon, name, first_epoch=epoch) == images.contents
        if server.given("assertion") >= given + 2:
            break
    assert "cannot renew" not in daemon.log.read_text()


def test_reads_wait_for_a_late_token(
    start_daemon: Callable[..., Any], filled: Callable[[str], Store], images: Source, tmp_path: pathlib.Path,
    tokens: Callable[..., GoogleTokens], fault_proxy: Callable[..., FaultProxy],
) -> None:  # fmt: skip
    store, server = filled("gcs"), tokens(expires_s=3)
    proxy = fault_proxy(store.port, expiring_tokens=True, require_token=True)
    settings = {"STORAGE_EMULATOR_HOST": proxy.endpoint} | server.account()
    daemon = start_daemon(environment=environment(tmp_path, **settings))
    name = add(daemon, url(store, "images"), quota="0")
    server.refuse("temporarily_unavailable")
    epochs: list[dict[str, bytes]] = []
    expired = threading.Event()

    def read_until_expired() -> None:
        while not epochs or not expired.is_set():
            epochs.append(images.read(daemon, name, first_epoch=len(epochs)))

    reading = threading.Thread(target=read_until_expired)
    reading.start()
    while not proxy.injected():  # until the token expires while jobs read
        time.sleep(0.05)
    expired.set()
    server.refuse("")
    reading.join(120)
    assert not reading.is_alive()
    assert all(contents == images.contents for contents in epochs)
    log = daemon.log.read_text()
    assert "cannot renew the token for gs://" in log and "HTTP 400, temporarily_unavailable" in log and "eyJ" not in log


def test_error_of_an_expired_token_says_why_it_was_not_renewed(
    start_daemon: Callable[..., Any], filled: Callable[[str], Store], images: Source, tmp_path: pathlib.Path,
    tokens: Callable[..., GoogleTokens], fault_proxy: Callable[..., FaultProxy],
) -> None:  # fmt: skip
    store, server = filled("gcs"), tokens(expires_s=3)
    proxy = fault_proxy(store.port, expiring_tokens=True, require_token=True)
    settings = {"STORAGE_EMULATOR_HOST": proxy.endpoint} | server.account()
    daemon = start_daemon("--remote.retry-for", "1 s", environment=environment(tmp_path, **settings))
    name = add(daemon, url(store, "images"), quota="0")
    server.refuse("temporarily_unavailable")
    with pytest.raises(larder.Error) as raised:
        for epoch in itertools.count():  # until the token has expired
            images.read(daemon, name, first_epoch=epoch)
    says = str(raised.value)
    assert "HTTP 401" in says and "the token could not be renewed: " in says and "temporarily_unavailable" in says, says
    assert "eyJ" not in says and "expires-" not in says


def test_refused_account_is_reported_without_the_assertion(
    start_daemon: Callable[..., Any], gcs: Gcs, tmp_path: pathlib.Path, tokens: Callable[..., GoogleTokens]
) -> None:  # fmt: skip
    server = tokens()
    server.refuse("invalid_grant")
    settings = gcs.settings() | server.account()
    daemon = start_daemon("--log.level", "trace", environment=environment(tmp_path, **settings))
    says = refused(daemon, "gs://any/images")
    assert f"the token server http://localhost:{server.port}: HTTP 400, invalid_grant: check this machine's clock" in says
    assert "eyJ" not in says + daemon.log.read_text()


def test_token_is_sent_only_to_google_and_to_the_endpoint_of_the_environment(
    start_daemon: Callable[..., Any], gcs: Gcs, tmp_path: pathlib.Path, fault_proxy: Callable[..., FaultProxy]
) -> None:
    stranger = fault_proxy(gcs.port)
    daemon = start_daemon(environment=environment(tmp_path, **gcs.settings()))
    says = refused(daemon, "gs://any/images", "--endpoint", stranger.endpoint)
    assert "a token of Google is sent only to https://*.googleapis.com" in says
    assert stranger.requests() == []
    refused(daemon, "gs://any/images", "--endpoint", stranger.endpoint, "--unsigned")
    assert stranger.requests() and "authorization" not in str(stranger.requests())


def test_public_bucket_of_google_is_read_without_credentials(
    start_daemon: Callable[..., Any], filled: Callable[[str], Store], images: Source, tmp_path: pathlib.Path,
    fault_proxy: Callable[..., FaultProxy],
) -> None:  # fmt: skip
    store = filled("gcs")
    proxy = fault_proxy(store.port)
    daemon = start_daemon(environment=environment(tmp_path))
    name = add(daemon, url(store, "images"), "--endpoint", proxy.endpoint, "--unsigned")
    assert images.read(daemon, name) == images.contents
    assert "--unsigned" in refused(daemon, url(store, "images"))
    assert "is not public" in refused(daemon, url(store, "images"), "--endpoint", store.endpoint, "--unsigned")


def test_object_with_a_content_encoding_is_read_as_it_is_stored(
    daemon_of: Callable[..., Any], gcs: Gcs
) -> None:  # fmt: skip
    gcs.client.create_bucket("encoded-data")
    stored = gzip.compress(b"text" * 1000)
    gcs.client.put("encoded-data", "a.bin", stored, content_encoding="gzip")
    daemon = daemon_of(gcs)
    source = Source("", pathlib.Path(), "bin", {"a.bin": stored})
    assert source.read(daemon, add(daemon, "gs://encoded-data")) == source.contents


# --- az://: keys and SAS tokens


@pytest.mark.parametrize("way", ["connection string", "profile", "SAS", "SAS in a profile"])
def test_account_comes_from_where_azures_clients_look(
    start_daemon: Callable[..., Any], filled: Callable[[str], Store], images: Source, tmp_path: pathlib.Path, way: str
) -> None:  # fmt: skip
    store = filled("azure")
    assert isinstance(store, Azure)
    words: tuple[str, ...] = ()
    settings: dict[str, str] = {}
    blobs = f"{store.endpoint}/{store.account}"
    sas = f"BlobEndpoint={blobs};SharedAccessSignature={store.client.sas()}"
    if way == "connection string":
        settings = store.settings()
        words = ("--endpoint", blobs)
    elif way == "SAS":
        settings = {"AZURE_STORAGE_CONNECTION_STRING": sas}
    else:
        (tmp_path / ".azure").mkdir()
        (tmp_path / ".azure" / "config").write_text(
            f"[storage]\nconnection_string = nonsense\n[training]\n"
            f"connection_string = AccountName={store.account};AccountKey={store.key};BlobEndpoint={blobs}\n"
            f"[shared]\nconnection_string = {sas}\n"
        )
        words = ("--profile", "training", "--endpoint", blobs) if way == "profile" else ("--profile", "shared")
    daemon = start_daemon(environment=environment(tmp_path, **settings))
    assert images.read(daemon, add(daemon, url(store, "images"), *words)) == images.contents
    if words:
        assert "no section [nobody]" in refused(daemon, url(store, "images"), "--profile", "nobody")


def test_wrong_key_and_useless_sas_are_named(
    start_daemon: Callable[..., Any], filled: Callable[[str], Store], tmp_path: pathlib.Path
) -> None:
    store = filled("azure")
    assert isinstance(store, Azure)
    for secret, reason in (
        ("AccountKey=d3Jvbmc=", f"account {store.account} refuses this key: check AZURE_STORAGE_KEY"),
        (f"SharedAccessSignature={store.client.sas(valid_s=-60)}", "the SAS token is wrong, has expired or is not for this address"),
        (f"SharedAccessSignature={store.client.sas(permissions='w')}", "it must allow reading and listing"),
    ):
        daemon = start_daemon(environment=environment(tmp_path, **store.settings(secret=secret)))
        says = refused(daemon, url(store, "images"))
        assert "HTTP 403" in says and reason in says, (reason, says)
        assert "sig=" not in says and "d3Jvbmc" not in says
        daemon.end()


@pytest.mark.parametrize("kind", ["SAS", "key", "key in variables"])
def test_secret_is_used_only_at_the_endpoint_of_its_own_account(
    start_daemon: Callable[..., Any], azure: Azure, tmp_path: pathlib.Path, fault_proxy: Callable[..., FaultProxy],
    kind: str,
) -> None:  # fmt: skip
    stranger = fault_proxy(azure.port)
    settings = {
        "SAS": azure.settings(secret=f"SharedAccessSignature={azure.client.sas()}"),
        "key": azure.settings(),
        "key in variables": {"AZURE_STORAGE_ACCOUNT": azure.account, "AZURE_STORAGE_KEY": azure.key},
    }[kind]
    daemon = start_daemon(environment=environment(tmp_path, **settings))
    for endpoint in (f"{stranger.endpoint}/{azure.account}", "https://other.blob.core.windows.net"):
        says = refused(daemon, "az://any/images", "--endpoint", endpoint)
        assert "is sent only to https://ACCOUNT.blob.core.windows.net of its own account" in says
    assert stranger.requests() == []


def test_public_container_is_read_without_credentials(
    start_daemon: Callable[..., Any], azure: Azure, images: Source, tmp_path: pathlib.Path
) -> None:
    azure.client.create_bucket("public-data", public=True)
    put(azure, images, "public-data")
    azure.client.create_bucket("private-data")
    daemon = start_daemon(environment=environment(tmp_path))
    remote = ("--endpoint", f"{azure.endpoint}/{azure.account}", "--unsigned")
    assert images.read(daemon, add(daemon, "az://public-data/images", *remote)) == images.contents
    assert "is not public, or not there" in refused(daemon, "az://private-data/images", *remote)
    assert "AZURE_STORAGE_ACCOUNT" in refused(daemon, "az://public-data/images", "--unsigned")
    assert "--unsigned" in refused(daemon, "az://public-data/images", *remote[:2])


# --- after all tests above


def test_nothing_is_written_to_a_store(store: Store, images: Source, tars: Source) -> None:
    """Runs last: the contents of the buckets are unchanged. A write would also fail the session: see servers.py."""
    for source in (images, tars):
        for path in source.directory.rglob("*"):
            if path.is_file() and path.suffix != ".txt":
                key = f"{source.name}/{path.relative_to(source.directory).as_posix()}"
                assert store.client.get(BUCKET, key) == path.read_bytes()
