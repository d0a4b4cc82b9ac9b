"""Bytes from a remote are counted and charged, including those of failed tries. Changes are detected without an ETag.
"""

from __future__ import annotations

import collections
import itertools
import os
import pathlib
import re
import threading
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import larder
import pytest
from http_api import UnixConnection
from remote_sources import Source, environment, make_images
from servers import S3, FaultProxy, Nginx


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return make_images(tmp_path_factory.mktemp("root"), "images", 120)


def metric(daemon: Any, name: str, labels: str) -> float:
    connection = UnixConnection(daemon.state / "admin.sock")
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    found = re.search(rf"^{name}{{[^}}]*{labels}[^}}]*}} (\S+)$", text, re.MULTILINE)
    assert found is not None, name
    return float(found[1])


def test_bytes_of_failed_tries_are_counted_and_charged(
    start_daemon: Callable[..., Any], serve_directory: Callable[..., Nginx], images: Source,
    fault_proxy: Callable[..., FaultProxy], tmp_path: pathlib.Path,
) -> None:  # fmt: skip
    nginx = serve_directory(images.directory.parent)
    daemon = start_daemon(environment=environment(tmp_path))
    proxy = fault_proxy(nginx.port)
    daemon.command("dataset", "add", "billed", f"{proxy.endpoint}/images/list.txt")
    before = proxy.counts()["body_bytes"]
    proxy.set(truncated_body=0.3)
    assert images.read(daemon, "billed", job="payer") == images.contents
    assert proxy.injected()["truncated_body"] > 10
    sent = proxy.counts()["body_bytes"] - before
    total = sum(map(len, images.contents.values()))
    assert sent > total
    assert metric(daemon, "larder_job_remote_read_bytes_total", 'job="payer"') == sent
    assert metric(daemon, "larder_dataset_remote_read_bytes_total", 'dataset="billed"') == sent


def test_last_modified_replaces_a_missing_etag(
    daemon: Any, serve_directory: Callable[..., Nginx], tmp_path: pathlib.Path
) -> None:
    source = make_images(tmp_path, "dated", 9)
    nginx = serve_directory(tmp_path, "--directive", "etag off;")
    url = f"{nginx.http}/dated"
    with urllib.request.urlopen(f"{url}/list.txt") as answer:
        assert answer.headers["ETag"] is None and answer.headers["Last-Modified"]
    name = "dated-images"
    daemon.command("dataset", "add", name, f"{url}/list.txt", "--quota-memory", "1MiB")
    changed = "ant/00001.png"
    path = source.directory / changed
    path.write_bytes(bytes(len(source.contents[changed])))
    os.utime(path, (path.stat().st_mtime + 60,) * 2)
    with pytest.raises(larder.ObjectChanged, match=changed):
        source.read(daemon, name)
    daemon.command("dataset", "index", name)
    source.contents[changed] = path.read_bytes()
    assert source.read(daemon, name) == source.contents
    daemon.command("dataset", "rm", name)


@pytest.mark.parametrize("options", [(), ("--checksum",)], ids=["plain", "checksum"])
def test_object_without_version_is_refetched_after_indexing(
    daemon: Any, serve_directory: Callable[..., Nginx], tmp_path: pathlib.Path, options: tuple[str, ...]
) -> None:
    """The server sends neither ETag nor Last-Modified, and equal length does not prove equal bytes."""
    source = make_images(tmp_path, "undated", 9)
    nginx = serve_directory(tmp_path, "--directive", "etag off;", "--directive", 'add_header Last-Modified "";')
    name = f"undated-images{len(options)}"
    daemon.command("dataset", "add", name, f"{nginx.http}/undated/list.txt", "--quota-memory", "1MiB", *options)
    assert source.read(daemon, name) == source.contents
    changed = "ant/00001.png"
    source.contents[changed] = bytes(len(source.contents[changed]))
    (source.directory / changed).write_bytes(source.contents[changed])
    daemon.command("dataset", "index", name)
    assert source.read(daemon, name) == source.contents
    daemon.command("dataset", "rm", name)


def test_info_shows_s3_options_but_no_secret(
    start_daemon: Callable[..., Any], s3: S3, tmp_path: pathlib.Path
) -> None:
    s3.client.create_bucket("shown")
    s3.client.put("shown", "a/1.bin", b"1")
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(
        f"[training]\naws_access_key_id = {s3.key_id}\naws_secret_access_key = {s3.secret}\n"
    )
    daemon = start_daemon(environment=environment(tmp_path))
    daemon.command("dataset", "add", "shown", "s3://shown/a", "--endpoint", s3.endpoint, "--profile", "training")
    info = daemon.command("dataset", "info", "shown")
    assert re.search(rf"^remote +endpoint {s3.endpoint}, profile training$", info, re.MULTILINE), info
    assert s3.secret not in info + daemon.command("--json", "dataset", "info", "shown")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "1.bin").write_bytes(b"1")
    daemon.command("dataset", "add", "local", f"file://{tmp_path}/files")
    assert re.search(r"^remote +no options$", daemon.command("dataset", "info", "local"), re.MULTILINE)


RATES = [share * 4e6 / 195 for share in (5, 10, 15, 20, 25, 30, 40, 50)]  # bytes/s, 4 MB/s in all
OBJECT_BYTES = 16384
BURST_OBJECTS = 16


def test_jobs_at_one_bucket_get_their_granted_rates(
    start_daemon: Callable[..., Any], serve_directory: Callable[..., Nginx], s3: S3, tmp_path: pathlib.Path
) -> None:
    """Eight jobs read at limited rates, and a server in front of the bucket counts their requests, until each job has
    its burst and three times as many objects. No job ever exceeds its grant by more than 3 % and a burst. That a
    job can take its whole rate is tested on an injected clock (token_bucket_test.cc)."""
    s3.client.create_bucket("granted")
    for job in range(len(RATES)):
        for i in range(64):
            s3.client.put("granted", f"job{job}/{i}.bin", bytes([i]) * OBJECT_BYTES)
    counting = serve_directory(tmp_path, "--upstream", str(s3.port))
    daemon = start_daemon(environment=environment(tmp_path, **s3.environment()))
    stop = threading.Event()

    def read(job: str) -> None:
        with larder.Loader(job, job=job, socket=daemon.socket, batch_size=4) as loader:
            while not stop.is_set():
                for _ in itertools.takewhile(lambda _: not stop.is_set(), loader):
                    pass

    def requests_by_job() -> list[int]:
        targets = collections.Counter(request.target.rpartition("/")[0] for request in counting.requests())
        return [targets[f"/granted/job{job}"] for job in range(len(RATES))]

    readers = []
    for job, rate in enumerate(RATES):
        name = f"job{job}"
        daemon.command("dataset", "add", name, f"s3://granted/{name}", "--endpoint", counting.http)
        daemon.command("job", "limit", name, "--rate", f"{round(rate)}B/s", "--burst", f"{BURST_OBJECTS * OBJECT_BYTES}B",
                       "--ahead")  # fmt: skip
        readers.append(threading.Thread(target=read, args=(name,)))
    limited_since = time.monotonic()
    for reader in readers:
        reader.start()
    try:
        while min(requests_by_job()) < 4 * BURST_OBJECTS:
            counts = requests_by_job()
            elapsed = time.monotonic() - limited_since
            for count, rate in zip(counts, RATES, strict=True):
                assert count <= 1.03 * rate * elapsed / OBJECT_BYTES + BURST_OBJECTS + 2
            time.sleep(0.2)
    finally:
        stop.set()
        for reader in readers:
            reader.join()
