"""The daemons' messages to systemd, received on a socket like systemd's own, and systemd's verdict on their units."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import uuid
from collections.abc import Iterator, Sequence

import pytest
from http_api import UnixConnection

DAEMONS = ("larderd", "larder-allocator")
UNITS = (*DAEMONS, "larder-slurm")


class Manager:
    """The socket that $NOTIFY_SOCKET names."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)

    def next_message(self, process: subprocess.Popen[bytes]) -> bytes:
        """Waits for the next message. The test fails if the process ends without one."""
        self._socket.settimeout(0.1)
        while True:
            ended = process.poll() is not None
            try:
                return self._socket.recv(4096)
            except TimeoutError:
                assert not ended, f"it ended with {process.returncode} and said nothing"

    def is_silent(self) -> bool:
        self._socket.setblocking(False)
        try:
            self._socket.recv(4096)
        except BlockingIOError:
            return True
        return False

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[Manager]:
    made = Manager(str(tmp_path / "notify") if request.param == "path" else f"@larder-{uuid.uuid4()}")
    yield made
    made.close()


def run(programs: pathlib.Path, name: str, manager: Manager, *options: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [programs / name, *map(str, options)],
        env=os.environ | {"NOTIFY_SOCKET": manager.address},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def options_of(name: str, directory: pathlib.Path) -> tuple[Sequence[object], pathlib.Path]:
    """The options to run the daemon in the directory, and its HTTP socket."""
    if name == "larderd":
        return ("--state-directory", directory, "--memory", "16 MiB", "--disk", "16 MiB"), directory / "admin.sock"
    return ("--socket", directory / "socket", "--remote-bandwidth", "1 GB/s"), directory / "socket"


@pytest.mark.parametrize("name", DAEMONS)
def test_systemd_is_notified_of_ready_and_stopping(
    larder_bin: pathlib.Path, name: str, manager: Manager, tmp_path: pathlib.Path
) -> None:
    options, http_socket = options_of(name, tmp_path)
    process = run(larder_bin, name, manager, *options)
    try:
        assert manager.next_message(process) == b"READY=1"
        process.send_signal(signal.SIGHUP)  # like `systemctl reload` right after the start
        connection = UnixConnection(http_socket)
        connection.request("GET", "/healthz")
        assert connection.getresponse().status == 200, "a ready daemon answers the first request"
        connection.close()
        process.send_signal(signal.SIGTERM)
        assert manager.next_message(process) == b"STOPPING=1"
        assert process.wait() == 0
    finally:
        process.kill()  # if it has not ended
        process.wait()
    assert manager.is_silent()


@pytest.mark.parametrize("name", DAEMONS)
def test_daemon_that_cannot_start_is_never_ready(
    larder_bin: pathlib.Path, name: str, manager: Manager, tmp_path: pathlib.Path
) -> None:
    options, _ = options_of(name, tmp_path / "no such directory" / "within")
    (tmp_path / "no such directory").touch()
    assert run(larder_bin, name, manager, *options).wait() != 0
    assert manager.is_silent()


@pytest.mark.parametrize("name", UNITS)
def test_unit_uses_only_existing_options(
    larder_bin: pathlib.Path, repository: pathlib.Path, name: str
) -> None:
    unit = (repository / "tools" / f"{name}.service").read_text()
    is_ready_by_message = re.search(r"^Type=notify$", unit, re.MULTILINE) is not None
    assert is_ready_by_message == (name in DAEMONS), "systemd waits until a daemon says that it is ready"
    command = re.search(rf"^ExecStart=/usr/bin/{name} (.*)$", unit, re.MULTILINE)
    assert command
    shown = subprocess.run([larder_bin / name, "--help"], capture_output=True, text=True, check=True).stdout
    for option in re.findall(r"(?<!\S)--[\w.-]+", command[1]):
        assert re.search(rf"{re.escape(option)}(?![\w.-])", shown), option


def test_restart_of_the_allocator_spares_jobs(repository: pathlib.Path) -> None:
    unit = (repository / "tools" / "larder-allocator.service").read_text()
    assert re.search(r"^KillMode=process$", unit, re.MULTILINE)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_jobs_drop_in_removes_the_sandbox(larder_bin: pathlib.Path, repository: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """systemd itself says which settings protect the system from the service."""
    name = "larder-allocator.service"
    unit = (repository / "tools" / name).read_text()
    (tmp_path / name).write_text(unit.replace("/usr/bin/larder-allocator", str(larder_bin / "larder-allocator")))

    def protections() -> set[str]:
        ran = subprocess.run(
            ["systemd-analyze", "security", "--offline=true", "--json=short", tmp_path / name],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return {row["name"] for row in json.loads(ran.stdout) if row["set"]}

    assert {"PrivateDevices=", "MemoryDenyWriteExecute=", "ProtectHome=", "Delegate="} <= protections()
    (tmp_path / f"{name}.d").mkdir()
    shutil.copy(repository / "tools" / "larder-allocator-jobs.conf", tmp_path / f"{name}.d" / "jobs.conf")
    # These are defaults of services, and break no job.
    assert protections() <= {"AmbientCapabilities=", "KeyringMode=", "NotifyAccess="}
    ran = subprocess.run(["systemd-analyze", "verify", tmp_path / name], capture_output=True, text=True)
    assert [line for line in (ran.stdout + ran.stderr).splitlines() if name in line] == []


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("name", UNITS)
def test_systemd_accepts_the_unit(
    larder_bin: pathlib.Path, repository: pathlib.Path, name: str, tmp_path: pathlib.Path
) -> None:
    unit = (repository / "tools" / f"{name}.service").read_text()

    def complaints(text: str) -> list[str]:
        file = tmp_path / f"{name}.service"
        file.write_text(text.replace(f"/usr/bin/{name}", str(larder_bin / name)))
        ran = subprocess.run(["systemd-analyze", "verify", file], capture_output=True, text=True)
        return [line for line in (ran.stdout + ran.stderr).splitlines() if f"{name}.service" in line]

    assert complaints(unit) == []
    assert complaints(unit.replace("ProtectClock=yes", "ProtectTheClock=yes")), "it reports unknown settings"
