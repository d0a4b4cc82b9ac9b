"""Shared by the campaigns: the contract with `run`, the programs under test, and data with known bytes."""

from __future__ import annotations

import argparse
import contextlib
import functools
import http.client
import json
import os
import pathlib
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "servers"), str(ROOT / "tests" / "python")]

import build_options  # noqa: E402
from http_api import Answer, UnixConnection, ask  # noqa: E402
from program import Child, end_on_sigterm  # noqa: E402

START_S = 60.0  # how long a program may take until it serves; it takes far less on an idle machine
END_S = 60.0
# The errors that a request raises if the program dies meanwhile.
BROKEN = (OSError, http.client.HTTPException)


class Failure(Exception):
    """The product broke a promise. The text says which, and what was seen."""


class Campaign:
    """One call of a campaign: its arguments, its time, and what it reports to `run` (see README.md)."""

    def __init__(self, about: str, **options: dict[str, Any]) -> None:
        parser = argparse.ArgumentParser(description=about)
        parser.add_argument("--seconds", type=float, default=60)
        parser.add_argument("--seed", type=int, default=1)
        parser.add_argument("--state", type=pathlib.Path, required=True)
        for name, option in options.items():
            parser.add_argument(f"--{name}", **option)
        self.options = parser.parse_args()
        self.seed: int = self.options.seed
        self.state: pathlib.Path = self.options.state.resolve()
        self.state.mkdir(parents=True, exist_ok=True)
        self.build = pathlib.Path(os.environ.get("LARDER_BUILD", ROOT / "build" / "dev")).resolve()
        self.bin = self.build / "bin"
        self.failed = False
        self._ends_s = time.monotonic() + self.options.seconds
        end_on_sigterm()

    @functools.cached_property
    def sanitizer(self) -> str:
        """The sanitizers that the programs are compiled with, "thread" for example; empty: none."""
        return build_options.sanitizer(self.build)

    def left_s(self) -> float:
        return self._ends_s - time.monotonic()

    def report(self, **counts: object) -> None:
        """Counts that `run` adds up, by name."""
        print(json.dumps(counts), flush=True)

    def command(self, **changes: object) -> str:
        """The command that repeats this call, with other options."""
        words = [f"LARDER_BUILD={self.build}", str(pathlib.Path(sys.argv[0]).resolve())]
        values = {name: value for name, value in vars(self.options).items() if value is not None} | changes
        for name, value in values.items():
            words += [f"--{name}", str(value)]
        return shlex.join(words)

    def fail(self, what: object, repeat: str | None = None) -> None:
        self.failed = True
        self.report(failure=str(what), repeat=repeat or self.command())

    def exit_code(self) -> int:
        return 1 if self.failed else 0

    @contextlib.contextmanager
    def directory(self, name: str) -> Iterator[pathlib.Path]:
        """A directory with a short name, because sockets are in it. Moved to DIR/failed if the campaign has failed."""
        failed_before, self.failed = self.failed, False
        path = pathlib.Path(tempfile.mkdtemp(prefix="lc."))
        path.chmod(0o755)
        try:
            yield path
        except Failure as failure:
            self.fail(failure)
        except Exception as error:
            self.fail(f"a mistake of the campaign: {error!r}")
            raise
        finally:
            if self.failed:
                kept = self.state / "failed" / f"{name}-{time.time_ns() // 1_000_000}"
                kept.parent.mkdir(exist_ok=True)
                shutil.move(path, kept)
                print(f"files of the failure: {kept}", file=sys.stderr)
            else:
                shutil.rmtree(path, ignore_errors=True)
            self.failed = self.failed or failed_before


def wait_until(holds: Callable[[], object], seconds: float, what: str, check: Callable[[], None] = lambda: None) -> Any:
    """Waits until `holds` returns something true, and returns it. Calls `check` meanwhile, which may raise Failure."""
    ends_s = time.monotonic() + seconds
    while True:
        got = holds()
        if got:
            return got
        check()
        if time.monotonic() > ends_s:
            raise Failure(f"waited {seconds:g} s until {what}")
        time.sleep(0.005)


class Server:
    """A program that serves HTTP on a Unix socket. It dies with this process. May be killed and started again."""

    def __init__(
        self, command: list[object], socket: pathlib.Path, log: pathlib.Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.command = command
        self.name = next(word for word in map(os.path.basename, map(str, command)) if word.startswith("larder"))
        self.socket = socket
        self.log = log
        self.environment = environment
        self._child: Child | None = None

    def spawn(self) -> None:
        environment = None if self.environment is None else {**os.environ, **self.environment}
        self._child = Child(self.command, self.log, env=environment)

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._child is not None
        return self._child.process

    @property
    def pid(self) -> int:
        return self.process.pid

    def returncode(self) -> int | None:
        return self.process.poll()

    def check(self) -> None:
        """Raises Failure if the program has ended by itself."""
        if self.returncode() is not None:
            raise Failure(f"{self.name} ended by itself with {self.returncode()}:\n{self.tail()}")

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]

    def serves(self) -> bool:
        try:
            return self.ask("GET", "/healthz").status == 200
        except BROKEN:
            return False

    def wait(self) -> None:
        wait_until(self.serves, START_S, f"{self.name} serves", self.check)

    def start(self) -> None:
        self.spawn()
        self.wait()

    def ask(self, method: str, target: str, body: object = None) -> Answer:
        return ask(UnixConnection(self.socket), method, target, body)

    def get(self, target: str) -> Any:
        answer = self.ask("GET", target)
        if answer.status != 200:
            raise Failure(f"{self.name} answered GET {target} with {answer.status}: {answer.body!r}")
        return answer.json()

    def kill(self) -> None:
        """SIGKILL. Raises Failure if the program had ended before."""
        self.check()
        process = self.process
        process.kill()
        if process.wait() != -signal.SIGKILL:
            raise Failure(f"{self.name} ended by itself with {process.returncode}:\n{self.tail()}")

    def end(self, seconds: float = END_S) -> None:
        """SIGTERM. Raises Failure unless the program ends with exit code 0."""
        self.check()
        process = self.process
        process.terminate()
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise Failure(f"{self.name} did not end within {seconds:g} s after SIGTERM:\n{self.tail()}") from None
        if code != 0:
            raise Failure(f"{self.name} ended with {code} after SIGTERM:\n{self.tail()}")

    def discard(self) -> None:
        """Ends the program, however it is."""
        if self._child is not None and self._child.process.poll() is None:
            self._child.process.kill()
            self._child.process.wait()


class Reader:
    """larder-test-reader: a job that reads a dataset epoch by epoch and compares every byte. See reader.cc."""

    def __init__(
        self,
        program: pathlib.Path,
        socket: pathlib.Path,
        files: pathlib.Path,
        log: pathlib.Path,
        job: str = "job",
        epochs: int = 0,
        pause_us: int = 0,
        seed: int = 1,
        dataset: str = "data",
        forbidden: str = "",
        **options: Any,
    ) -> None:
        self._log = log
        command = [program, socket, dataset, files, job, epochs, pause_us, seed, *([forbidden] if forbidden else [])]
        self._child = Child(command, log, **options)

    def check(self) -> None:
        code = self._child.process.poll()
        if code is not None:
            raise Failure(f"the reader ended with {code}: {self._log.read_text(errors='replace')[-2000:]}")

    def has_ended(self) -> bool:
        return self._child.process.poll() is not None

    def epochs(self) -> int:
        return self._log.read_text(errors="replace").count("\nepoch ")

    def bytes(self) -> int:
        """What it had read at the end of its last epoch."""
        return max((int(line.split()[3]) for line in self.output().splitlines() if line.startswith("epoch ")), default=0)

    def wait(self, seconds: float) -> int:
        """The exit code once it has ended: 0, 1: the daemon gave an error, 3: wrong bytes or samples."""
        return self._child.process.wait(seconds)

    def end(self) -> None:
        self.check()
        self._child.process.terminate()
        try:
            code = self._child.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.discard()
            raise Failure(f"the reader did not end on SIGTERM: {self._log.read_text(errors='replace')[-2000:]}") from None
        if code != 0:
            raise Failure(f"the reader ended with {code}: {self._log.read_text(errors='replace')[-2000:]}")

    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def discard(self) -> None:
        if self._child.process.poll() is None:
            self._child.process.kill()
            self._child.process.wait()


def write_files(folder: pathlib.Path, count: int, bytes_max: int, seed: int) -> int:
    """Writes files of random bytes in three classes. Returns the sum of their sizes."""
    draw = random.Random(seed)
    total = 0
    for i in range(count):
        path = folder / f"class_{i % 3}" / f"{i:05}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        total += path.write_bytes(draw.randbytes(draw.randrange(1, bytes_max)))
    return total


def larderd(campaign: Campaign, work: pathlib.Path, *options: object, environment: Mapping[str, str] | None = None) -> Server:
    command = [
        campaign.bin / "larderd", "--state-directory", work / "d", "--memory", "64 MiB", "--disk", "64 MiB",
        "--data-plane-threads", "1", "--log.level", "warn", *options,
    ]  # fmt: skip
    return Server(command, work / "d" / "admin.sock", work / "larderd.log", environment)


def allocator(
    campaign: Campaign,
    work: pathlib.Path,
    *options: object,
    lease: str = "1 s",
    environment: Mapping[str, str] | None = None,
) -> Server:
    command = [
        campaign.bin / "larder-allocator", "--state", work / "a", "--lease", lease, "--log.level", "warn",
        "--limits.requests-per-second-per-peer", "1000000", "--limits.request-burst-per-peer", "1000000", *options,
    ]  # fmt: skip
    return Server(command, work / "a" / "allocator.sock", work / "allocator.log", environment)


def add_data(
    daemon: Server, files: pathlib.Path, memory_bytes: int, disk_bytes: int, name: str = "data", follow_symlinks: bool = False
) -> None:
    """Adds a dataset and waits until it is indexed."""
    body: dict[str, Any] = {
        "name": name,
        "url": f"file://{files}",
        "mode": "0644",
        "quota": {"memory_bytes": memory_bytes, "disk_bytes": disk_bytes},
    }
    if follow_symlinks:
        body["remote"] = {"follow_symlinks": True}
    answer = daemon.ask("POST", "/v1/datasets", body)
    if answer.status != 202:
        raise Failure(f"the dataset was not added: {answer.status} {answer.body!r}")
    wait_until(lambda: daemon.ask("GET", f"/v1/datasets/{name}").status == 200, 60, "the dataset is indexed", daemon.check)


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident_bytes(pid: int) -> int:
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    return 0
