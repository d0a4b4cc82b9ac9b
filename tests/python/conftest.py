"""A real daemon with real datasets, for the tests of the Python package."""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import os
import pathlib
import random
import signal
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence

import azure as azure_server
import installed
import pytest
from allocator_process import Allocator
from description import Description
from servers import S3, Azure, FaultProxy, Gcs, InstanceRole, Nginx


class Daemon:
    """A larderd on its own directory. `send` and `end` signal the process that this object started, and no other."""

    def __init__(
        self,
        programs: pathlib.Path,
        state: pathlib.Path,
        *options: str,
        prefix: Sequence[str] = (),
        environment: dict[str, str] | None = None,
        memory: str = "256 MiB",
        disk: str = "256 MiB",
    ) -> None:
        self.memory = memory
        self.disk = disk
        self.programs = programs
        self.prefix = prefix  # a command that runs the daemon, put before its command line
        self.options = options
        self.environment = environment
        self.state = state
        self.log = state.parent / f"{state.name}.log"
        self.socket = str(state / "larderd.sock")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        log = open(self.log, "ab")
        self.process = subprocess.Popen(
            [
                *self.prefix, self.programs / "larderd", "--state-directory", self.state,
                "--memory", self.memory, "--disk", self.disk, *self.options,
            ],
            stdout=log,
            stderr=log,
            env=self.environment,
        )  # fmt: skip
        log.close()
        while True:
            if self.process.poll() is not None:
                pytest.fail(f"larderd ended:\n{self.log.read_text()[-4000:]}")
            ready = subprocess.run(self._command("dataset", "ls"), capture_output=True)
            if ready.returncode == 0:
                return
            time.sleep(0.02)

    def _command(self, *arguments: object) -> list[str]:
        return [str(self.programs / "larder"), "--admin-socket", str(self.state / "admin.sock"), *map(str, arguments)]

    def command(self, *arguments: object) -> str:
        """Runs `larder ARGUMENTS` against this daemon."""
        ran = self.try_command(*arguments)
        assert ran.returncode == 0, f"larder {arguments}: {ran.stdout}{ran.stderr}"
        return ran.stdout

    def try_command(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Like `command`, but accepts any exit status."""
        return subprocess.run(self._command(*arguments), capture_output=True, text=True)

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.wait(60)
        self.process = None


@dataclasses.dataclass
class Data:
    """A dataset and its contents."""

    name: str
    daemon: Daemon
    directory: pathlib.Path
    contents: dict[str, bytes]  # by key
    labels: dict[str, int]
    classes: list[str]

    def options(self, **more: object) -> dict[str, object]:
        return {"dataset": self.name, "socket": self.daemon.socket, **more}


def write_tree(directory: pathlib.Path, per_class: int, seed: int) -> tuple[dict[str, bytes], dict[str, int]]:
    draw = random.Random(seed)
    contents: dict[str, bytes] = {}
    labels: dict[str, int] = {}
    for label, name in enumerate(["ant", "bee", "cat"]):
        (directory / name).mkdir(parents=True)
        for i in range(per_class):
            key = f"{name}/{i:04}.png"
            contents[key] = draw.randbytes(draw.choice([1, 64, 4095, 4096, 4097, draw.randrange(1, 40_000)]))
            labels[key] = label
            (directory / key).write_bytes(contents[key])
    return contents, labels


def write_shards(
    directory: pathlib.Path, shards: int, per_shard: int, seed: int
) -> tuple[dict[str, bytes], dict[str, int]]:
    draw = random.Random(seed)
    contents: dict[str, bytes] = {}
    labels: dict[str, int] = {}
    directory.mkdir(parents=True)
    for shard in range(shards):
        with tarfile.open(directory / f"train-{shard:03}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for i in range(per_shard):
                key = f"{shard:03}{i:05}"
                contents[key] = draw.randbytes(draw.randrange(1, 12_000))
                labels[key] = draw.randrange(5)
                for suffix, data in (("jpg", contents[key]), ("cls", b"%d" % labels[key]), ("txt", key.encode()), ("nil", b"")):
                    member = tarfile.TarInfo(f"{key}.{suffix}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    return contents, labels


@pytest.fixture(scope="session")
def start_daemon(
    larder_bin: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Daemon]]:
    """Starts daemons with the given options and environment. The daemons end after all tests at the latest."""
    started: list[Daemon] = []

    def start(*options: str, environment: dict[str, str] | None = None) -> Daemon:
        daemon = Daemon(larder_bin, tmp_path_factory.mktemp("larderd"), *options, environment=environment)
        started.append(daemon)
        daemon.start()
        return daemon

    yield start
    for daemon in started:
        daemon.end(signal.SIGTERM)


@pytest.fixture(scope="session")
def daemon(start_daemon: Callable[[], Daemon]) -> Daemon:
    """One daemon for all tests that do not stop it."""
    return start_daemon()


@pytest.fixture
def own_daemon(larder_bin: pathlib.Path, tmp_path: pathlib.Path) -> Iterator[Daemon]:
    """A daemon for one test, which may stop and start it."""
    daemon = Daemon(larder_bin, tmp_path / "node")
    daemon.start()
    yield daemon
    daemon.end()


@pytest.fixture(scope="session")
def make_raw(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Data]:
    """Adds a tree of random files to a daemon, one sample per file."""
    count = iter(range(1_000_000))

    def make(daemon: Daemon, per_class: int = 70) -> Data:
        name = f"raw{next(count)}"
        directory = tmp_path_factory.mktemp(name)
        contents, labels = write_tree(directory, per_class, seed=7)
        daemon.command(
            "dataset", "add", name, f"file://{directory}", "--format", "raw", "--quota-memory", "32MiB"
        )  # fmt: skip
        return Data(name, daemon, directory, contents, labels, ["ant", "bee", "cat"])

    return make


@pytest.fixture(scope="session")
def raw(daemon: Daemon, make_raw: Callable[..., Data]) -> Data:
    """210 files of 1 to 40,000 bytes in three classes."""
    return make_raw(daemon)


@pytest.fixture(scope="session")
def make_shards(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Data]:
    """Adds WebDataset shards to a daemon: samples of four fields, one of them empty."""
    count = iter(range(1_000_000))

    def make(daemon: Daemon, block: str) -> Data:
        name = f"shards{next(count)}"
        directory = tmp_path_factory.mktemp(name) / "tars"
        contents, labels = write_shards(directory, shards=6, per_shard=40, seed=11)
        daemon.command(
            "dataset", "add", name, f"file://{directory}", "--format", "webdataset", "--block", block,
            "--quota-memory", "32MiB",
        )  # fmt: skip
        return Data(name, daemon, directory, contents, labels, [])

    return make


@pytest.fixture(scope="session")
def shards(daemon: Daemon, make_shards: Callable[..., Data]) -> Data:
    """240 WebDataset samples in blocks of several samples."""
    return make_shards(daemon, "64KiB")


@pytest.fixture
def in_child() -> Callable[[Callable[[], None]], None]:
    """Runs a function in a forked child. The function must return without an exception."""

    def run(function: Callable[[], None]) -> None:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                function()
                status = 0
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    return run


@pytest.fixture(scope="module")
def open_directory() -> Iterator[pathlib.Path]:
    """A directory that other users can enter, as they cannot enter those of pytest."""
    with tempfile.TemporaryDirectory(prefix="larder-", dir="/tmp") as made:
        directory = pathlib.Path(made)
        directory.chmod(0o755)
        yield directory


@pytest.fixture
def allocator(larder_bin: pathlib.Path, tmp_path: pathlib.Path) -> Iterator[Allocator]:
    """A larder-allocator with four GPUs for jobs. No node has reported to it yet. Leases outlive every test."""
    jobs = ("--scheduler.directory", str(tmp_path / "jobs"), "--scheduler.gpus", "4")
    started = Allocator(larder_bin, tmp_path, "--lease", "1 h", *jobs)
    yield started
    assert started.end() == 0, started.log.read_text()


@pytest.fixture
def description(repository: pathlib.Path) -> Description:
    """The description of the allocator's API in docs/openapi/allocator.yaml."""
    return Description(repository / "docs" / "openapi" / "allocator.yaml")


@pytest.fixture(scope="session")
def serve_directory() -> Iterator[Callable[..., Nginx]]:
    """Starts nginx on a directory, with options of tests/servers/nginx.py. All servers end with the tests."""
    started: list[Nginx] = []

    def start(directory: pathlib.Path, *options: str) -> Nginx:
        started.append(Nginx(directory, *options))
        return started[-1]

    yield start
    assert [server.stop() for server in started] == [0] * len(started)


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    """An S3 server without buckets: every test makes its own. A write by anyone but `client` fails the session."""
    server = S3()
    yield server
    assert server.stop() == 0, "the cache never writes to the remote"


@pytest.fixture(scope="session")
def gcs() -> Iterator[Gcs]:
    """A Google Cloud Storage server without buckets. A write by anyone but `client` fails the session."""
    if installed.find_go() is None:
        pytest.skip(installed.GO_MISSING)
    server = Gcs()
    yield server
    assert server.stop() == 0, "the cache never writes to the remote"


@pytest.fixture(scope="session")
def azure() -> Iterator[Azure]:
    """An Azure Blob server without containers. A write by anyone but `client` fails the session."""
    if not azure_server.has_node():
        pytest.skip(azure_server.NODE_MISSING)
    server = Azure()
    yield server
    assert server.stop() == 0, "the cache never writes to the remote"


@pytest.fixture(scope="module")
def own_s3() -> Iterator[S3]:
    """An S3 server for one test module: several pages of the docs use the same bucket name."""
    server = S3()
    yield server
    assert server.stop() == 0, "the cache never writes to the remote"


dataset_names = itertools.count()


@pytest.fixture
def add_url(daemon: Daemon) -> Iterator[Callable[..., str]]:
    """Adds a dataset, which is removed after the test."""
    added = []

    def add_one(url: str, *options: str) -> str:
        name = f"formats{next(dataset_names)}"
        daemon.command("dataset", "add", name, url, "--quota-memory", "16MiB", *options)
        added.append(name)
        return name

    yield add_one
    for name in added:
        daemon.command("dataset", "rm", name)


@pytest.fixture
def add(add_url: Callable[..., str]) -> Callable[..., str]:
    """Adds a directory as a dataset, which is removed after the test."""
    return lambda directory, *options: add_url(f"file://{directory}", *options)


@pytest.fixture
def instance_role(s3: S3) -> Iterator[Callable[..., InstanceRole]]:
    """Starts metadata services that give out the S3 server's credentials. Options are those of instance_role.py."""
    started: list[InstanceRole] = []

    def start(**options: object) -> InstanceRole:
        started.append(InstanceRole(s3, **options))
        return started[-1]

    yield start
    assert [service.stop() for service in started] == [0] * len(started)


@pytest.fixture
def fault_proxy() -> Iterator[Callable[..., FaultProxy]]:
    """Starts fault proxies in front of an upstream's port. The test fails if anything was written through one."""
    started: list[FaultProxy] = []

    def start(upstream_port: int, **options: object) -> FaultProxy:
        started.append(FaultProxy(upstream_port, **options))
        return started[-1]

    yield start
    ended = [proxy.stop() for proxy in started]
    assert ended == [0] * len(started), "the cache never writes to the remote"


@pytest.fixture
def bench(larder_bin: pathlib.Path, tmp_path: pathlib.Path):
    def run(name: str, *arguments: object) -> object:
        ran = subprocess.run(
            [larder_bin / "larder", "bench", name, "--quick", "--json", "--directory", tmp_path, *map(str, arguments)],
            capture_output=True,
            text=True,
        )
        assert ran.returncode == 0, ran.stderr
        assert list(tmp_path.glob("larder-bench-*")) == [], "it cleans up after itself"
        return json.loads(ran.stdout)

    return run
