"""`larder up`: daemon and allocator in one process, and automatic quotas."""

from __future__ import annotations

import http.server
import json
import os
import pathlib
import signal
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from epochs import read_epoch, wait_until, write_files

MIB = 1 << 20


class Up:
    def __init__(self, programs: pathlib.Path, state: pathlib.Path, *options: str, disk: str | None = "16 MiB") -> None:
        self.larder = programs / "larder"
        self.state = state
        self.errors = ""
        self.process = subprocess.Popen(
            [self.larder, "up", "--json", "--state", state, "--memory", "8 MiB", *(("--disk", disk) if disk else ()), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        self.endpoints: dict[str, Any] = json.loads(line)

    def words(self, *arguments: object) -> list[str]:
        options = ["--admin-socket", self.endpoints["admin_socket"], "--allocator", self.endpoints["allocator"]]
        return [str(self.larder), *options, *map(str, arguments)]

    def run(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.words(*arguments), capture_output=True, text=True)

    def log(self) -> str:
        """The standard error of `larder up`, once `end` has returned."""
        return self.errors

    def command(self, *arguments: object) -> str:
        ran = self.run(*arguments)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    def quota_bytes(self, name: str) -> int:
        quota = json.loads(self.command("--json", "quota", "get", name))
        return int(quota["memory_bytes"] + quota["disk_bytes"])

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        _, self.errors = self.process.communicate(timeout=60)
        return self.process.returncode


@pytest.fixture
def start_up(larder_bin: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Up]]:
    started: list[Up] = []

    def start(*options: str, state: pathlib.Path | None = None, disk: str | None = "16 MiB") -> Up:
        started.append(Up(larder_bin, state or tmp_path_factory.mktemp("up"), *options, disk=disk))
        return started[-1]

    yield start
    for up in started:
        if up.process.poll() is None:
            up.end()


def test_only_its_user_and_root_administer(start_up: Callable[..., Up]) -> None:
    up = start_up()
    assert stat.S_IMODE(os.stat(up.endpoints["admin_socket"]).st_mode) == 0o600


def test_quotas_are_set_automatically(start_up: Callable[..., Up], tmp_path: pathlib.Path) -> None:
    up = start_up()
    added = up.command("dataset", "add", "files", write_files(tmp_path / "files", 64))
    assert "quota set" not in added
    # The whole dataset fits, so its quota covers it before any job has read a byte.
    wait_until(lambda: up.quota_bytes("files") >= 64 * (1 << 16))
    assert read_epoch(up.endpoints["socket"], "files").bytes == 64 * (1 << 16)
    wait_until(lambda: json.loads(up.command("--json", "dataset", "info", "files"))["cached_ratio"] == 1)
    assert "files" in up.command("plan")
    assert up.end() == 0


def test_quota_set_by_hand_holds_until_released(start_up: Callable[..., Up], tmp_path: pathlib.Path) -> None:
    up = start_up()
    up.command("dataset", "add", "files", write_files(tmp_path / "files", 64))
    up.command("dataset", "add", "others", write_files(tmp_path / "others", 480))
    up.command("quota", "set", "files", "--memory", "1 MiB", "--disk", "0")
    # The other dataset gets the rest of the node.
    wait_until(lambda: up.quota_bytes("others") > 22 * MIB)
    assert up.quota_bytes("files") == 1 * MIB
    assert up.end() == 0

    again = start_up(state=up.state)
    wait_until(lambda: json.loads(again.command("--json", "status"))["allocator"]["plan"] > 0)
    assert again.quota_bytes("files") == 1 * MIB
    again.command("quota", "set", "files", "--auto")
    wait_until(lambda: again.quota_bytes("files") > 4 * MIB)
    both = again.run("quota", "set", "files", "--auto", "--memory", "1 MiB")
    assert both.returncode == 2
    assert again.end() == 0


def test_rates_are_set_by_users_unless_the_remote_is_limited(
    start_up: Callable[..., Up], tmp_path: pathlib.Path
) -> None:
    files = write_files(tmp_path / "files", 64)
    up = start_up()
    up.command("dataset", "add", "files", files)
    up.command("job", "limit", "job-files", "--rate", "50MB/s", "--ahead")
    read_epoch(up.endpoints["socket"], "files", job="job-files")
    (job,) = json.loads(up.command("--json", "jobs"))["jobs"]
    assert job["remote_rate"] == 50e6
    assert up.end() == 0

    limited = start_up("--remote-bandwidth", "20 MB/s")
    limited.command("dataset", "add", "files", files)
    assert json.loads(limited.command("--json", "plan"))["remote_bytes_per_second"] == 20e6
    limited.command("quota", "set", "files", "--memory", "1 MiB", "--disk", "0")
    assert limited.quota_bytes("files") == MIB
    assert limited.end() == 0


def test_new_dataset_is_warmed_at_once_with_all_idle_bandwidth(
    start_up: Callable[..., Up], tmp_path: pathlib.Path
) -> None:
    up = start_up("--remote-bandwidth", "4 MB/s")
    write_files(tmp_path / "files", 160)
    up.command("dataset", "add", "files", tmp_path / "files")
    output = up.command("dataset", "warm", "files")
    assert "files has 160 blocks, 10.00 MiB; to fetch: 160 blocks, 10.00 MiB\n" in output
    assert "160 of 160 blocks are cached, 10.00 MiB of 10.00 MiB (100.0 %)" in output
    assert up.end() == 0
    lines = up.log().splitlines()
    # The quota is set once, and a few more times as sizes become known.
    assert sum("quota set" in line for line in lines) <= 5


def test_warm_reports_what_is_not_cached_and_why(start_up: Callable[..., Up], tmp_path: pathlib.Path) -> None:
    up = start_up()
    up.command("dataset", "add", "files", write_files(tmp_path / "files", 64), "--quota-memory", "1 MiB")
    small = up.command("dataset", "warm", "files")
    assert "its quota, 1.00 MiB of memory and 0 B of disk, has no room for more" in small
    assert "of 64 blocks are cached, " in small
    assert "blocks: its quota, 1.00 MiB of memory and 0 B of disk, has no room for them: larder quota set" in small
    # Uses another dataset, because "files" may have cached the blocks of 0007.bin by now.
    up.command("dataset", "add", "others", write_files(tmp_path / "others", 64), "--quota-memory", "6 MiB")
    (tmp_path / "others" / "0007.bin").unlink()
    lost = up.run("dataset", "warm", "others")
    assert lost.returncode == 1
    assert "63 of 64 blocks" in lost.stdout
    assert "not cached: 1 block: the remote did not deliver them" in lost.stdout
    assert "note: 0007.bin, 65536 B from offset 0: could not be read: it is gone from the remote" in lost.stdout
    assert up.end() == 0


def test_interrupted_warm_has_ended_when_its_command_ends(start_up: Callable[..., Up], tmp_path: pathlib.Path) -> None:
    up = start_up("--remote-bandwidth", "100 KB/s")
    up.command("dataset", "add", "files", write_files(tmp_path / "files", 160))
    for _ in range(3):
        warm = subprocess.Popen(
            up.words("dataset", "warm", "files"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert warm.stdout is not None and "to fetch: " in warm.stdout.readline()
        warm.send_signal(signal.SIGINT)
        _, errors = warm.communicate(timeout=60)
        assert errors.endswith("warming files was cancelled\n")
        assert warm.returncode == 1
    assert up.end() == 0


def test_quota_of_an_operator_overrides_automatic_quotas(start_up: Callable[..., Up], tmp_path: pathlib.Path) -> None:
    for options in ((), ("--remote-bandwidth", "20 MB/s")):
        up = start_up(*options)
        directory = tmp_path / f"files{len(options)}"
        write_files(directory, 320)
        for name in ("one", "two"):
            up.command("dataset", "add", name, directory)
        # The two datasets share the whole node and have cached nothing.
        wait_until(lambda: up.quota_bytes("one") + up.quota_bytes("two") > 22 * MIB)
        up.command("quota", "set", "one", "--memory", "7 MiB", "--disk", "13 MiB")
        assert up.quota_bytes("one") == 20 * MIB
        up.command("dataset", "add", "three", directory, "--quota-memory", "1 MiB", "--quota-disk", "2 MiB")
        reports = json.loads(up.command("--json", "status"))["allocator"]["reports"] + 3
        wait_until(lambda: json.loads(up.command("--json", "status"))["allocator"]["reports"] > reports)
        assert [up.quota_bytes(name) for name in ("one", "two", "three")] == [20 * MIB, 1 * MIB, 3 * MIB]
        refused = up.run("quota", "set", "two", "--memory", "1 MiB", "--disk", "2 MiB")
        assert refused.returncode == 1
        assert "a memory quota of 1.00 MiB is too large: at most 0 B (0 bytes) is free" in refused.stderr
        pinned = up.run("quota", "pin", "two", "1 TiB")
        assert pinned.returncode == 1
        assert "cannot have 1.00 TiB: at most 1.00 MiB is free" in pinned.stderr
        assert up.end() == 0


@pytest.fixture
def small_disk(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A file system of 100 MiB, which only the superuser may mount."""
    directory = tmp_path / "disk"
    directory.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100m", "tmpfs", directory], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"no tmpfs may be mounted: {mounted.stderr}")
    yield directory
    subprocess.run(["umount", directory], check=True)


def test_space_of_cached_blocks_counts_as_free_after_restart(
    small_disk: pathlib.Path, start_up: Callable[..., Up], tmp_path: pathlib.Path
) -> None:
    write_files(tmp_path / "files", 600)
    up = start_up(state=small_disk, disk=None)
    up.command("dataset", "add", "files", tmp_path / "files")
    up.command("quota", "set", "files", "--memory", "0 MiB", "--disk", "45 MiB")
    read_epoch(up.endpoints["socket"], "files")
    wait_until(lambda: json.loads(up.command("--json", "dataset", "info", "files"))["used"]["blocks"] == 600)
    assert up.end() == 0
    up = start_up(state=small_disk, disk=None)
    info = json.loads(up.command("--json", "dataset", "info", "files"))
    assert info["quota"]["disk_bytes"] == 45 << 20
    assert info["used"]["blocks"] == 600
    assert up.end() == 0


def test_warming_on_a_full_disk_fails_with_reason(
    small_disk: pathlib.Path, start_up: Callable[..., Up], tmp_path: pathlib.Path
) -> None:
    write_files(tmp_path / "files", 600)
    up = start_up(state=small_disk, disk="64 MiB")
    up.command("dataset", "add", "files", tmp_path / "files", "--quota-disk", "60 MiB")
    (small_disk / "ballast").write_bytes(bytes(60 << 20))
    full = up.run("dataset", "warm", "files")
    assert full.returncode == 1, full.stdout
    assert "to fetch: 600 blocks" in full.stdout
    assert "blocks: the cache disk is full: " in full.stdout
    assert "600 of 600" not in full.stdout
    wait_until(lambda: json.loads(up.command("--json", "dataset", "info", "files"))["disk_full"])
    result = json.loads(up.run("--json", "dataset", "warm", "files").stdout)["result"]
    assert result["kept"] is False
    assert result["cached_blocks"] + result["not_cached"]["disk_full"] == 600
    assert up.end() == 0
    assert "warming cached fewer blocks than planned" in up.log()


def test_second_up_on_one_state_directory_is_refused(start_up: Callable[..., Up], larder_bin: pathlib.Path) -> None:
    up = start_up()
    second = subprocess.run([larder_bin / "larder", "up", "--state", up.state], capture_output=True, text=True)
    assert second.returncode != 0
    assert str(up.state) in second.stderr
    assert up.run("plan").returncode == 0, "the allocator of the first one still answers"
    assert up.end(signal.SIGINT) == 0


def test_daemons_allocator_is_asked_if_none_is_named(start_up: Callable[..., Up], larder_bin: pathlib.Path) -> None:
    up = start_up()
    words = [larder_bin / "larder", "--admin-socket", up.endpoints["admin_socket"]]
    assert "objective" in subprocess.run([*words, "plan"], capture_output=True, text=True).stdout
    submitted = subprocess.run([*words, "job", "submit", "--", "true"], capture_output=True, text=True)
    assert submitted.returncode == 4
    assert "this allocator runs no jobs: its config has no [scheduler]" in submitted.stderr
    assert up.end() == 0
    alone = subprocess.run([*words, "plan"], capture_output=True, text=True)
    assert alone.returncode == 3
    assert "no daemon answers" in alone.stderr and "start one with `larder up`" in alone.stderr


def test_server_that_is_no_allocator_is_named(larder_bin: pathlib.Path) -> None:
    class NotFound(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

    with http.server.HTTPServer(("127.0.0.1", 0), NotFound) as server:
        threading.Thread(target=server.handle_request).start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        plan = subprocess.run([larder_bin / "larder", "plan", "--allocator", endpoint], capture_output=True, text=True)
    assert plan.returncode == 3
    assert plan.stderr.startswith(f"larder: {endpoint}: the server answered HTTP status 404, so no allocator listens there")


def test_status_describes_the_daemons_own_allocator(start_up: Callable[..., Up], larder_bin: pathlib.Path) -> None:
    up = start_up()
    words = [larder_bin / "larder", "--admin-socket", up.endpoints["admin_socket"], "--allocator", "/nowhere/a.sock", "status"]
    status = subprocess.run(words, capture_output=True, text=True).stdout
    assert f"{up.endpoints['allocator']}, up for" in status


def test_answers_say_who_sets_the_quota(start_up: Callable[..., Up], tmp_path: pathlib.Path) -> None:
    up = start_up()
    up.command("dataset", "add", "files", write_files(tmp_path / "files", 64))
    wait_until(lambda: up.run("quota", "pin", "files", "2MiB").returncode == 0)
    assert "note" not in up.command("quota", "pin", "files", "2MiB")
    up.command("quota", "set", "files", "--memory", "1MiB", "--disk", "0")
    assert "on this node it stays 1.00 MiB, as set by hand" in up.command("quota", "pin", "files", "3MiB")
    answer = up.command("quota", "set", "files", "--auto")
    assert answer == "the allocator sets the quota of files from its next plan on\n"
    wait_until(lambda: up.quota_bytes("files") == 3 * MIB)


def test_quota_list_and_plan_show_a_pin_in_its_units(start_up: Callable[..., Up], tmp_path: pathlib.Path) -> None:
    up = start_up()
    up.command("dataset", "add", "files", write_files(tmp_path / "files", 64))
    wait_until(lambda: up.run("quota", "pin", "files", "2MB").returncode == 0)
    wait_until(lambda: up.quota_bytes("files") == 2_000_000)
    assert up.command("quota", "ls").splitlines()[1].endswith("by a pin of 2.00 MB")
    (quota,) = json.loads(up.command("--json", "quota", "ls"))["quotas"]
    assert quota["pinned_bytes"] == 2_000_000 and quota["quota_held"] is False
    (row,) = (line for line in up.command("plan").splitlines() if line.startswith("files"))
    assert "2.00 MB" in row and "iB" not in row
    top = up.command("top", "--count", "1", "--interval", "0.1").splitlines()
    assert all("iB" not in line for line in top if line.startswith("files")), top


def test_remote_bandwidth_is_reset_to_no_limit(start_up: Callable[..., Up]) -> None:
    up = start_up()
    assert up.run("remote", "set", "--bandwidth", "0").returncode == 2
    up.command("remote", "set", "--bandwidth", "9MB/s")
    assert up.command("remote", "reset") == "remote bandwidth of all jobs together: no limit\n"


def test_background_up_serves_until_down(larder_bin: pathlib.Path, tmp_path: pathlib.Path) -> None:
    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run([larder_bin / "larder", *map(str, arguments)], capture_output=True, text=True, timeout=120)

    state = tmp_path / "state"
    assert run("down", "--state", state).stdout == f"no larder up runs on {state}\n"
    up = ("up", "-d", "--state", state, "--memory", "8 MiB", "--disk", "16 MiB")
    started = run(*up)
    try:
        assert started.returncode == 0, started.stderr
        assert f"{state}/up.log" in started.stdout
        status = run("--admin-socket", state / "admin.sock", "status")
        assert "up for" in status.stdout and "allocator" in status.stdout
        again = run(*up)
        assert again.returncode == 5
        assert again.stderr.startswith(f"larder: larder up is already running on {state} (")
        assert again.stderr.endswith(f"larder down --state {state} stops it\n")
        assert "already" not in (state / "up.log").read_text()
        assert "but its file system has only" not in started.stdout
    finally:
        ended = run("down", "--state", state)
    assert ended.returncode == 0 and "is down" in ended.stdout
    assert run("--admin-socket", state / "admin.sock", "status").returncode == 3
    assert run("down", "--state", state).stdout == f"no larder up runs on {state}\n"


def test_up_prints_absolute_paths_for_a_relative_state(larder_bin: pathlib.Path, tmp_path: pathlib.Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [larder_bin / "larder", *arguments, "--state", "./cache"]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)

    started = run("up", "-d", "--json", "--memory", "8 MiB", "--disk", "16 MiB")
    try:
        assert started.returncode == 0, started.stderr
        endpoints = json.loads(started.stdout)
        directory = tmp_path / "cache"
        assert endpoints["state_directory"] == str(directory)
        assert endpoints["socket"] == str(directory / "larderd.sock")
        assert endpoints["admin_socket"] == str(directory / "admin.sock")
        assert endpoints["allocator"] == str(directory / "allocator.sock")
        assert endpoints["log"] == str(directory / "up.log")
    finally:
        ended = run("down")
    assert ended.returncode == 0, ended.stderr


def test_up_says_that_its_disk_is_larger_than_the_file_system(larder_bin: pathlib.Path, tmp_path: pathlib.Path) -> None:
    state = ("--state", tmp_path / "state")
    up = [larder_bin / "larder", "up", "-d", *state, "--memory", "8 MiB", "--disk", "900 PiB"]
    started = subprocess.run(up, capture_output=True, text=True, timeout=120)
    subprocess.run([larder_bin / "larder", "down", *state], check=True, capture_output=True, timeout=120)
    assert "900.00 PiB, but its file system has only " in started.stdout


def test_background_up_that_cannot_start_says_why(larder_bin: pathlib.Path, tmp_path: pathlib.Path) -> None:
    wrong = tmp_path / "file"
    wrong.touch()
    ran = subprocess.run(
        [larder_bin / "larder", "up", "-d", "--state", tmp_path / "state", "--memory", "8 MiB", "--socket", wrong / "x"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ran.returncode != 0
    assert "ended before it was ready" in ran.stderr and str(wrong) in ran.stderr
    much = subprocess.run(
        [larder_bin / "larder", "up", "-d", "--state", tmp_path / "state", "--memory", "900 TiB"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert much.returncode == 2 and "more than there is" in much.stderr


def test_daemon_waits_for_a_late_allocator_without_warning(
    start_daemon: Callable[..., Any], tmp_path: pathlib.Path
) -> None:
    daemon = start_daemon("--allocator.endpoint", str(tmp_path / "allocator.sock"))
    wait_until(lambda: "waiting for the allocator" in daemon.log.read_text())
    before = daemon.log.read_text().split("waiting for the allocator")[0]
    assert " warning " not in before and " error " not in before, before


def test_remote_bandwidth_is_refused_with_an_allocator_elsewhere(
    larder_bin: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    words = [larder_bin / "larder", "up", "--state", tmp_path, "--remote-bandwidth", "1 GB"]
    words += ["--memory", "8 MiB", "--disk", "16 MiB", "--allocator.endpoint", "127.0.0.1:1"]
    refused = subprocess.run(words, capture_output=True, text=True, timeout=10)
    assert refused.returncode == 2
    assert "--remote-bandwidth: the allocator at 127.0.0.1:1 divides the remote bandwidth" in refused.stderr
