"""Datasets whose adding was interrupted: the next attempt resumes and reads only the rest from the remote."""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import pathlib
import random
import signal
import subprocess
import tarfile
import time
from collections.abc import Callable
from typing import Any

import pytest
from http_api import UnixConnection
from remote_sources import Source, environment, make_images
from servers import S3, FaultProxy

NAMES = (f"stopped{i}" for i in itertools.count())
BUCKET = "stopped-data"


def make_tars(root: pathlib.Path, shards: int = 48) -> Source:
    draw = random.Random(5)
    (root / "tars").mkdir()
    contents: dict[str, bytes] = {}
    for shard in range(shards):
        with tarfile.open(root / "tars" / f"{shard:03}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for i in range(5):
                key = f"{shard:03}{i:05}"
                contents[key] = draw.randbytes(draw.randrange(1, 3_000))
                member = tarfile.TarInfo(f"{key}.jpg")
                member.size = len(contents[key])
                tar.addfile(member, io.BytesIO(contents[key]))
    return Source("tars", root / "tars", "jpg", contents)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory, s3: S3) -> dict[str, Source]:
    """Shards and single files in the bucket."""
    root = tmp_path_factory.mktemp("stopped")
    made = {source.name: source for source in (make_tars(root), make_images(root, "images", 60, 4096))}
    s3.client.create_bucket(BUCKET)
    for source in made.values():
        for path in source.directory.rglob("*.*"):
            if path.suffix != ".txt":
                key = f"{source.name}/{path.relative_to(source.directory).as_posix()}"
                s3.client.put(BUCKET, key, path.read_bytes())
    return made


@dataclasses.dataclass
class Adding:
    """`larder dataset add` of one of the sources, repeated as needed, through a slow proxy."""

    daemon: Any
    proxy: FaultProxy
    name: str
    words: tuple[str, ...]

    def begin(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.daemon._command(*self.words), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )  # fmt: skip

    def task(self) -> dict[str, Any]:
        """The daemon's first task, or {} if there is none yet."""
        connection = UnixConnection(self.daemon.state / "admin.sock")
        connection.request("GET", "/v1/tasks/1")
        answer = json.loads(connection.getresponse().read())
        connection.close()
        return answer

    def wait_for(self, objects: int) -> int:
        """Waits until at least this many objects are done and returns the number."""
        while True:
            task = self.task()
            assert task.get("state", "running") == "running", task
            if task.get("total") and task["done"] >= objects:
                return task["done"]
            time.sleep(0.01)

    def end(self) -> dict[str, Any]:
        """Repeats the command without delays. Returns its result and, as "read", the objects read from the remote."""
        self.proxy.set()
        before = len(self.proxy.requests())
        result = json.loads(self.daemon.command("--json", *self.words))["result"]
        targets = [str(request["target"]) for request in self.proxy.requests()[before:]]
        result["read"] = {target for target in targets if "list-type" not in target}
        return result


@pytest.fixture
def make_adding(
    start_daemon: Callable[..., Any], s3: S3, sources: dict[str, Source], tmp_path: pathlib.Path,
    fault_proxy: Callable[..., FaultProxy],
) -> Callable[..., Adding]:  # fmt: skip
    def make(kind: str, *options: str, **faults: Any) -> Adding:
        daemon = start_daemon("--remote.retry-for", "1 s", environment=environment(tmp_path, **s3.environment()))
        proxy = fault_proxy(s3.port, **({"stall_s": 2} | faults))
        name = next(NAMES)
        words = ("dataset", "add", name, f"s3://{BUCKET}/{kind}", "--endpoint", proxy.endpoint, "--quota-memory", "4MiB")
        return Adding(daemon, proxy, name, (*words, *options))

    return make


@pytest.mark.parametrize("interruption", [signal.SIGTERM, signal.SIGKILL, "network"])
@pytest.mark.parametrize("kind", ["tars", "images"])
def test_interrupted_adding_resumes(
    make_adding: Callable[..., Adding], sources: dict[str, Source], kind: str, interruption: signal.Signals | str
) -> None:
    source = sources[kind]
    objects = sum(path.suffix != ".txt" for path in source.directory.rglob("*.*"))
    adding = make_adding(kind, *(("--checksum",) if kind == "images" else ()))
    adding.proxy.set(stall_before=0.9)
    client = adding.begin()
    done = adding.wait_for(12)
    if isinstance(interruption, signal.Signals):
        adding.daemon.end(interruption)
        adding.daemon.start()
    else:
        adding.proxy.set(reset_before=1)
    client.wait(120)
    assert client.returncode != 0 and adding.name not in adding.daemon.command("dataset", "ls")
    result = adding.end()
    assert result["objects"] == objects
    assert done <= result["objects_resumed"] < objects
    assert len(result["read"]) == objects - result["objects_resumed"]
    assert source.read(adding.daemon, adding.name) == source.contents
    assert list((adding.daemon.state / "datasets").rglob("*.journal")) == [], "a complete dataset needs no journal"


def test_object_changed_in_between_is_read_again(
    make_adding: Callable[..., Adding], s3: S3, sources: dict[str, Source]
) -> None:
    adding = make_adding("tars")
    adding.proxy.set(stall_before=0.9)
    client = adding.begin()
    adding.wait_for(20)
    adding.daemon.end(signal.SIGKILL)
    client.wait(120)
    read = [target for request in adding.proxy.requests() if "list-type" not in (target := str(request["target"]))]
    changed = read[0]
    key = changed.removeprefix(f"/{BUCKET}/")
    data = (sources["tars"].directory.parent / key).read_bytes()
    s3.client.put(BUCKET, key, data + bytes(512))  # one more block of zeros: another ETag, the same samples
    try:
        adding.daemon.start()
        result = adding.end()
        assert changed in result["read"]
        assert len(result["read"]) == result["objects"] - result["objects_resumed"] < result["objects"]
        assert sources["tars"].read(adding.daemon, adding.name) == sources["tars"].contents
    finally:
        s3.client.put(BUCKET, key, data)


def test_adding_with_other_options_starts_over(make_adding: Callable[..., Adding]) -> None:
    adding = make_adding("tars")
    adding.proxy.set(stall_before=0.9)
    client = adding.begin()
    adding.wait_for(12)
    adding.daemon.end(signal.SIGTERM)
    client.wait(120)
    adding.daemon.start()
    adding.words = (*adding.words, "--block", "object")
    result = adding.end()
    assert result["objects_resumed"] == 0 and len(result["read"]) == result["objects"]


def test_daemon_stops_at_once_while_the_remote_is_silent(
    start_daemon: Callable[..., Any], s3: S3, sources: dict[str, Source], tmp_path: pathlib.Path,
    fault_proxy: Callable[..., FaultProxy],
) -> None:  # fmt: skip
    variables = environment(tmp_path, **s3.environment())
    daemon = start_daemon("--remote.stall-timeout", "1000 s", environment=variables)
    proxy = fault_proxy(s3.port, stall_s=3600)
    adding = Adding(daemon, proxy, "silent", ("dataset", "add", "silent", f"s3://{BUCKET}/tars", "--endpoint", proxy.endpoint))
    proxy.set(stall_before=1)
    client = adding.begin()
    while not proxy.injected():
        time.sleep(0.01)
    daemon.end()  # raises an exception after 60 s
    client.wait(120)
    assert client.returncode != 0


def test_progress_shows_resumed_objects(make_adding: Callable[..., Adding]) -> None:
    adding = make_adding("tars")
    adding.proxy.set(stall_before=0.9)
    client = adding.begin()
    adding.wait_for(12)
    adding.daemon.end(signal.SIGKILL)
    client.wait(120)
    adding.daemon.start()
    client = adding.begin()
    done = adding.wait_for(12)
    task = adding.task()
    assert 12 <= task["resumed"] <= max(done, task["done"])
    adding.proxy.set()
    assert client.wait(120) == 0
