"""`larder doctor`: what it measures, what it finds wrong, and what it leaves behind."""

from __future__ import annotations

import contextlib
import os
import pathlib
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from cli_answers import checked
from conftest import Daemon, Data
from servers import S3, FaultProxy, Nginx

FAST = ("--seconds", "0.05")


@pytest.fixture
def doctor(larder_bin: pathlib.Path, tmp_path: pathlib.Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `larder doctor` where no daemon answers."""

    def run(*arguments: object, prefix: tuple[str, ...] = (), **options: object) -> subprocess.CompletedProcess[str]:
        words = [*prefix, larder_bin / "larder", "doctor", *FAST, *arguments]
        around = {**os.environ, "HOME": str(tmp_path), **options.pop("environment", {})}  # type: ignore[arg-type]
        return subprocess.run(list(map(str, words)), env=around, capture_output=True, text=True, timeout=120, **options)  # type: ignore[call-overload]

    return run


def findings(ran: subprocess.CompletedProcess[str]) -> dict[str, dict]:
    """The findings by check, of a run with --json."""
    answer = checked("doctor", ran.stdout)
    assert answer["to_do"] == sum(found["verdict"] == "to do" for found in answer["findings"])
    assert ran.returncode == (1 if answer["to_do"] else 0), ran.stderr
    return {found["check"]: found for found in answer["findings"]}


def test_every_dataset_of_daemon_is_measured(daemon: Daemon, raw: Data) -> None:
    ran = daemon.try_command("doctor", *FAST, "--json")
    by_check = findings(ran)
    assert by_check["daemon"]["verdict"] == "good"
    assert by_check["io_uring"]["values"] == {"works": True, "daemon_io": "io_uring"}
    measured = [found for found in checked("doctor", ran.stdout)["findings"] if found["check"] == "remote"]
    own = next(found for found in measured if found["subject"] == raw.name)
    assert own["verdict"] == "good" and own["values"]["objects_read_from"] == len(raw.contents)
    assert [rate["reads_at_once"] for rate in own["values"]["rates"]] == [1, 4, 16, 64]
    assert all(rate["bytes_per_second"] > 0 for rate in own["values"]["rates"])
    assert by_check["disk"]["subject"] == str(daemon.state) and by_check["disk"]["values"]["write_bytes_per_second"] > 0
    assert "larder-doctor" not in daemon.command("jobs"), "looking at a dataset is no job"


def test_a_line_for_people_is_good_or_says_what_to_do(daemon: Daemon, raw: Data) -> None:
    ran = daemon.try_command("doctor", *FAST, raw.name, "no-such-dataset")
    *lines, last = ran.stdout.splitlines()
    assert any(line.startswith("good         remote      " + raw.name) for line in lines), ran.stdout
    wrong = next(line for line in lines if "no-such-dataset" in line)
    assert wrong.startswith("to do        remote ") and ". To do: " in wrong
    assert ran.returncode == 1 and last.startswith("to do: ")
    for line in lines:
        assert line.startswith(("good ", "not checked ")) != (". To do: " in line), line


def test_nothing_is_left_in_the_state_directory(
    doctor: Callable[..., subprocess.CompletedProcess[str]], tmp_path: pathlib.Path
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    assert findings(doctor("--json", "--state", state))["disk"]["verdict"] == "good"
    absent = findings(doctor("--json", "--state", tmp_path / "not" / "there"))["disk"]
    assert list(tmp_path.iterdir()) == [state] and list(state.iterdir()) == []
    assert absent["verdict"] == "good" and absent["found"].endswith(f"measured in {tmp_path}")


@contextlib.contextmanager
def mounted(directory: pathlib.Path, *arguments: object) -> Iterator[pathlib.Path]:
    directory.mkdir()
    subprocess.run(["mount", *map(str, arguments), directory], check=True)
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", directory], check=True)


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")


@as_root
def test_file_systems_that_are_no_disk_say_what_to_do(
    doctor: Callable[..., subprocess.CompletedProcess[str]], tmp_path: pathlib.Path
) -> None:
    with mounted(tmp_path / "memory", "-t", "tmpfs", "tmpfs") as directory:
        disk = findings(doctor("--json", "--state", directory / "state"))["disk"]
    assert (disk["verdict"], disk["values"]["file_system"]) == ("to do", "tmpfs")
    assert "which is memory" in disk["found"] and "--memory" in disk["advice"]

    (tmp_path / "lower").mkdir()
    with mounted(tmp_path / "over", "-t", "tmpfs", "tmpfs") as upper:
        for name in ("upper", "work"):
            (upper / name).mkdir()
        layers = f"lowerdir={tmp_path / 'lower'},upperdir={upper / 'upper'},workdir={upper / 'work'}"
        with mounted(tmp_path / "container", "-t", "overlay", "overlay", "-o", layers) as directory:
            disk = findings(doctor("--json", "--state", directory))["disk"]
    assert (disk["verdict"], disk["values"]["file_system"]) == ("to do", "overlay")
    assert "reads" in disk["found"] and "container" in disk["advice"], "it is measured all the same"


@as_root
@pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="this machine has no FUSE")
def test_file_system_of_a_program_is_no_disk(
    doctor: Callable[..., subprocess.CompletedProcess[str]], daemon: Daemon, raw: Data, tmp_path: pathlib.Path
) -> None:
    directory = tmp_path / "mounted"
    directory.mkdir()
    words = [daemon.programs / "larder", "mount", raw.name, directory, "--socket", daemon.socket]
    words += ["--admin-socket", daemon.state / "admin.sock"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as mount:
        assert mount.stdout is not None and mount.stdout.readline()
        try:
            disk = findings(doctor("--json", "--state", directory))["disk"]
        finally:
            mount.terminate()
    assert disk["verdict"] == "to do" and disk["values"]["file_system"].startswith("fuse"), disk
    assert "which a program serves" in disk["found"] and "--state" in disk["advice"]


@pytest.fixture
def slow_disk(tmp_path: pathlib.Path) -> Iterator[Callable[[], None]]:
    """Limits a child's reads from the disk of tmp_path to 8 MB/s; to be run in the child."""
    device = os.stat(tmp_path).st_dev
    name = f"{os.major(device)}:{os.minor(device)}"
    group = pathlib.Path(f"/sys/fs/cgroup/blkio/larder-test-{os.getpid()}")
    if not os.access(group.parent / "cgroup.procs", os.W_OK) or not os.path.exists(f"/sys/dev/block/{name}/queue"):
        pytest.skip("no control group can limit the disk of the tests here")
    group.mkdir()
    (group / "blkio.throttle.read_bps_device").write_text(f"{name} 8000000")
    yield lambda: (group / "cgroup.procs").write_text(str(os.getpid())) and None
    group.rmdir()


def test_disk_slower_than_the_remote_says_how_slow_both_are(
    doctor: Callable[..., subprocess.CompletedProcess[str]],
    serve_directory: Callable[..., Nginx],
    slow_disk: Callable[[], None],
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "a.tar").write_bytes(os.urandom(3_000_000))
    (tmp_path / "state").mkdir()
    url = f"{serve_directory(tmp_path).http}/a.tar"
    disk = findings(doctor("--json", url, "--state", tmp_path / "state", preexec_fn=slow_disk))["disk"]
    values = disk["values"]
    read, remote = values["random_read_bytes_per_second"], values["remote_bytes_per_second"]
    assert read < remote and values["useful_part"] == pytest.approx(read / (read + remote))
    assert disk["verdict"] == "to do" and "the disk will limit jobs" in disk["found"] and url in disk["found"]
    assert f"at most {values['useful_part'] * 100:.0f}% of a dataset" in disk["advice"]


def test_remote_is_read_as_larderd_reads_it(
    doctor: Callable[..., subprocess.CompletedProcess[str]],
    serve_directory: Callable[..., Nginx],
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "a.tar").write_bytes(os.urandom(3_000_000))
    server = serve_directory(tmp_path)
    remote = findings(doctor("--json", f"{server.http}/a.tar"))["remote"]
    assert remote["verdict"] == "good" and remote["values"]["retries"] == 0
    ranges = [request.range for request in server.requests_at_rest() if request.range not in ("", "-")]
    assert len(ranges) >= 16 + 4, "small reads, and reads for each rate"
    assert len(server.requests()) == remote["values"]["requests"]


def test_bucket_is_measured_with_the_users_credentials(
    doctor: Callable[..., subprocess.CompletedProcess[str]], s3: S3
) -> None:
    s3.client.create_bucket("doctored")
    for name in "ab":
        s3.client.put("doctored", f"images/{name}", os.urandom(200_000))
    words = ("--json", "s3://doctored/images", "--endpoint", s3.endpoint)
    remote = findings(doctor(*words, environment=s3.environment()))["remote"]
    assert (remote["verdict"], remote["values"]["objects_read_from"]) == ("good", 2), remote
    stranger = {**s3.environment(), "AWS_SECRET_ACCESS_KEY": "wrong"}
    refused = findings(doctor(*words, environment=stranger))["remote"]
    assert refused["verdict"] == "to do" and "credentials" in refused["advice"], refused


def test_overloaded_and_dead_remotes_say_what_to_do(
    doctor: Callable[..., subprocess.CompletedProcess[str]],
    serve_directory: Callable[..., Nginx],
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "a.tar").write_bytes(os.urandom(100_000))
    proxy = FaultProxy(serve_directory(tmp_path).port, probabilities={"slow_down": 0.2})
    overloaded = findings(doctor("--json", f"{proxy.endpoint}/a.tar"))["remote"]
    proxy.stop()
    assert overloaded["values"]["overloads"] > 0 and "remote.connections" in overloaded["advice"]
    dead = findings(doctor("--json", f"{proxy.endpoint}/a.tar"))["remote"]
    assert dead["verdict"] == "to do" and proxy.endpoint.removeprefix("http://") in dead["subject"] + dead["found"]
    assert "network" in dead["advice"]


def test_refused_io_uring_is_explained(
    doctor: Callable[..., subprocess.CompletedProcess[str]], repository: pathlib.Path
) -> None:
    without = (sys.executable, str(repository / "tests" / "servers" / "without_io_uring.py"))
    by_check = findings(doctor("--json", prefix=without))
    assert by_check["io_uring"]["verdict"] == "to do" and "seccomp" in by_check["io_uring"]["advice"]
    assert by_check["memlock"]["verdict"] == "not checked"
    assert by_check["disk"]["verdict"] == "good", "it is measured through threads"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_small_limit_on_locked_memory_says_how_to_raise_it(
    doctor: Callable[..., subprocess.CompletedProcess[str]], open_directory: pathlib.Path
) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (8 << 20, 8 << 20))

    nobody = 65534
    (open_directory / "state").mkdir(mode=0o700)
    words = ("--json", "--state", open_directory / "state")
    ran = doctor(*words, user=nobody, group=nobody, extra_groups=[], preexec_fn=limit, environment={"HOME": "/"})
    by_check = findings(ran)
    assert by_check["memlock"]["verdict"] == "to do" and "LimitMEMLOCK" in by_check["memlock"]["advice"]
    assert "8.00 MiB" in by_check["memlock"]["found"]
    assert "as the daemon's user" in by_check["disk"]["advice"], "nobody may not write there"


def test_loader_of_this_python_has_the_same_version(doctor: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    path = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    loader = findings(doctor("--json", environment={"PATH": path}))["loader"]
    assert loader["verdict"] == "good" and loader["values"]["loader"] in loader["found"]
