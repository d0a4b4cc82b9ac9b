"""`larder mount`: a dataset as a directory that any program reads through the node's cache."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import mmap
import os
import pathlib
import random
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator

import page
import pytest
from conftest import Daemon, Data
from PIL import Image

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can let other users into a mount"),
    pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="this machine has no FUSE"),
]

WITHOUT_RIGHTS = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all")


class Mount:
    """A mount in a process of its own, which `end` waits for."""

    def __init__(self, daemon: Daemon, dataset: str, directory: pathlib.Path, *options: str) -> None:
        self.directory = directory
        with contextlib.suppress(FileExistsError):
            directory.mkdir()
        self.log = directory.parent / f"{directory.name}.log"
        words = [
            daemon.programs / "larder", "mount", dataset, directory, "--socket", daemon.socket,
            "--admin-socket", daemon.state / "admin.sock", *options,
        ]  # fmt: skip
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        if not self.line:
            self.process.wait()
            pytest.fail(self.log.read_text())

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait()


@pytest.fixture
def mount(tmp_path: pathlib.Path) -> Iterator[Callable[..., Mount]]:
    """Mounts datasets; the mounts end with the test."""
    mounts: list[Mount] = []

    def start(daemon: Daemon, dataset: str, *options: str) -> Mount:
        mounts.append(Mount(daemon, dataset, tmp_path / f"mount{len(mounts)}", *options))
        return mounts[-1]

    yield start
    for one in mounts:
        if one.process.poll() is None:
            one.end()
        subprocess.run(["umount", "--lazy", "--quiet", one.directory], stderr=subprocess.DEVNULL)


def contents_below(directory: pathlib.Path) -> dict[str, bytes]:
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def test_raw_dataset_has_its_files_at_their_paths(raw: Data, mount: Callable[..., Mount]) -> None:
    mounted = mount(raw.daemon, raw.name)
    assert contents_below(mounted.directory) == raw.contents
    # Twice: the kernel answers from what it keeps.
    assert sorted(os.listdir(mounted.directory)) == raw.classes
    for key, content in raw.contents.items():
        about = (mounted.directory / key).stat()
        assert about.st_size == len(content)
        assert about.st_mtime_ns == (raw.directory / key).stat().st_mtime_ns
    assert not (mounted.directory / "ant" / "none").exists()
    with pytest.raises(OSError) as refused:
        (mounted.directory / "ant" / "new").write_bytes(b"x")
    assert refused.value.errno == errno.EROFS
    shell = subprocess.run(["diff", "--recursive", raw.directory, mounted.directory], capture_output=True, text=True)
    assert shell.stdout == ""
    assert mounted.end() == 0
    assert os.listdir(mounted.directory) == []


def test_parts_of_files_are_read_at_any_offset(raw: Data, mount: Callable[..., Mount]) -> None:
    mounted = mount(raw.daemon, raw.name)
    draw = random.Random(5)
    for key in draw.sample(sorted(raw.contents), 40):
        content = raw.contents[key]
        with open(mounted.directory / key, "rb", buffering=0) as file:
            for _ in range(10):
                at, count = draw.randrange(len(content) + 10), draw.randrange(1, 9000)
                assert os.pread(file.fileno(), count, at) == content[at : at + count]


def test_file_larger_than_a_readers_memory(
    own_daemon: Daemon, tmp_path: pathlib.Path, mount: Callable[..., Mount]
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    large = random.Random(1).randbytes(70 << 20)
    (files / "large").write_bytes(large)
    own_daemon.command("dataset", "add", "mixed", files)
    mounted = mount(own_daemon, "mixed")
    assert (mounted.directory / "large").read_bytes() == large


def test_file_may_be_mapped(raw: Data, mount: Callable[..., Mount]) -> None:
    key, content = max(raw.contents.items(), key=lambda item: len(item[1]))
    mounted = mount(raw.daemon, raw.name)
    with open(mounted.directory / key, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
        assert mapped[:] == content
        mapped.close()
        with pytest.raises(OSError) as refused:
            mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        assert refused.value.errno == errno.ENODEV
    cached = mount(raw.daemon, raw.name, "--kernel-cache")
    with open(cached.directory / key, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        assert mapped[:] == content
        mapped.close()


def test_tar_is_a_directory_of_its_members(shards: Data, mount: Callable[..., Mount]) -> None:
    mounted = mount(shards.daemon, shards.name)
    # A member is found without listing its directory.
    key = sorted(shards.contents)[77]
    assert (mounted.directory / f"train-{key[:3]}.tar" / f"{key}.jpg").read_bytes() == shards.contents[key]
    expected: dict[str, bytes] = {}
    for key, content in shards.contents.items():
        base = f"train-{key[:3]}.tar/{key}"
        expected |= {f"{base}.jpg": content, f"{base}.cls": b"%d" % shards.labels[key]}
        expected |= {f"{base}.txt": key.encode(), f"{base}.nil": b""}
    assert contents_below(mounted.directory) == expected
    assert not (mounted.directory / "train-000.tar" / "none.jpg").exists()


def test_packed_samples_are_files_by_index(
    daemon: Daemon, raw: Data, tmp_path: pathlib.Path, mount: Callable[..., Mount]
) -> None:
    daemon.command("dataset", "pack", raw.directory, tmp_path / "packed", "--format", "larder", "--compression", "zstd")
    daemon.command("dataset", "add", "packed-for-mount", tmp_path / "packed", "--quota-memory", "16MiB")
    mounted = mount(daemon, "packed-for-mount")
    (shard,) = os.listdir(mounted.directory)
    found = contents_below(mounted.directory / shard)
    assert sorted(found[name] for name in found if name.endswith(".png")) == sorted(raw.contents.values())
    assert (mounted.directory / shard / "000000007.png").read_bytes() == found["000000007.png"]
    for absent in ("000000007.jpg", "000000210.png", "7.png"):
        assert not (mounted.directory / shard / absent).exists()
    assert mounted.end() == 0
    daemon.command("dataset", "rm", "packed-for-mount")


def test_mounts_share_the_cache(own_daemon: Daemon, make_raw: Callable[..., Data], mount: Callable[..., Mount]) -> None:
    data = make_raw(own_daemon)
    first, second = mount(own_daemon, data.name), mount(own_daemon, data.name)
    assert contents_below(first.directory) == data.contents

    def read_from_remote() -> int:
        (job,) = json.loads(own_daemon.command("--json", "jobs"))["jobs"]
        return int(job["counters"]["bytes_remote"])

    # Every block was admitted: the quota holds all of them.
    before = read_from_remote()
    assert before > 0
    assert contents_below(second.directory) == data.contents
    assert read_from_remote() == before


def test_other_users_are_let_in_as_the_dataset_says(
    own_daemon: Daemon, open_directory: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    (files / "a.bin").write_bytes(b"a")
    own_daemon.command("dataset", "add", "open", files, "--mode", "444")
    own_daemon.command("dataset", "add", "closed", files, "--mode", "440")
    for name, options, lets_in in (
        ("open", ["--allow-other"], True),
        ("closed", ["--allow-other"], False),
        ("open", [], False),
    ):
        mounted = Mount(own_daemon, name, open_directory / f"{name}{len(options)}", *options)
        read = subprocess.run([*WITHOUT_RIGHTS, "cat", mounted.directory / "a.bin"], capture_output=True)
        assert (read.stdout == b"a") == lets_in, read
        assert (mounted.directory / "a.bin").stat().st_mode & 0o777 == (0o444 if name == "open" else 0o440)
        assert mounted.end() == 0


def test_reads_wait_for_a_daemon_that_comes_back(
    own_daemon: Daemon, make_raw: Callable[..., Data], mount: Callable[..., Mount]
) -> None:
    data = make_raw(own_daemon)
    mounted = mount(own_daemon, data.name)
    own_daemon.end(signal.SIGKILL)
    found: dict[str, bytes] = {}
    reading = threading.Thread(target=lambda: found.update(contents_below(mounted.directory)))
    reading.start()
    time.sleep(0.3)
    assert reading.is_alive()
    own_daemon.start()
    reading.join()
    assert found == data.contents


def test_read_fails_if_the_daemon_stays_away(
    own_daemon: Daemon, make_raw: Callable[..., Data], mount: Callable[..., Mount]
) -> None:
    data = make_raw(own_daemon)
    mounted = mount(own_daemon, data.name, "--timeout", "1")
    own_daemon.end(signal.SIGKILL)
    with pytest.raises(OSError) as failed:
        (mounted.directory / "ant" / "0000.png").read_bytes()
    assert failed.value.errno == errno.EIO
    assert "lost the Larder daemon" in mounted.log.read_text()
    own_daemon.start()
    assert contents_below(mounted.directory) == data.contents


Waiting = Callable[[int], tuple[Mount, "list[subprocess.Popen[bytes]]"]]


@pytest.fixture
def make_wait(own_daemon: Daemon, make_raw: Callable[..., Data], mount: Callable[..., Mount]) -> Waiting:
    """Starts programs that each read another file of a mount whose daemon is away."""

    def start(count: int) -> tuple[Mount, list[subprocess.Popen[bytes]]]:
        data = make_raw(own_daemon)
        mounted = mount(own_daemon, data.name, "--timeout", "600")
        own_daemon.end(signal.SIGKILL)
        paths = [mounted.directory / key for key in sorted(data.contents)[:count]]
        nowhere = subprocess.DEVNULL
        readers = [subprocess.Popen(["cat", path], stdout=nowhere, stderr=nowhere) for path in paths]
        time.sleep(0.5)
        return mounted, readers

    return start


def test_reader_and_mount_can_be_ended_while_a_read_waits(make_wait: Waiting) -> None:
    mounted, readers = make_wait(2)
    assert [reader.poll() for reader in readers] == [None, None]
    readers[0].terminate()
    assert readers[0].wait() == -signal.SIGTERM
    assert mounted.end() == 0
    assert readers[1].wait() == 1
    assert os.listdir(mounted.directory) == []


def test_every_waiting_reader_can_be_killed(make_wait: Waiting) -> None:
    mounted, readers = make_wait(60)
    assert (mounted.directory / "ant").is_dir()
    for reader in readers:
        reader.terminate()
    assert {reader.wait() for reader in readers} == {-signal.SIGTERM}


def test_handled_signal_does_not_end_a_read(
    own_daemon: Daemon, make_raw: Callable[..., Data], mount: Callable[..., Mount]
) -> None:
    data = make_raw(own_daemon)
    mounted = mount(own_daemon, data.name)
    key, content = next(iter(data.contents.items()))
    own_daemon.end(signal.SIGKILL)
    program = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGUSR1, lambda *_: None)\n"
        "file = os.open(sys.argv[1], os.O_RDONLY)\n"
        "print('reading', flush=True)\n"
        "os.write(2, os.read(file, 1 << 20))\n"
    )
    # The C library's own retries must not hide an EINTR, so the signal's handler returns to the read itself.
    reader = subprocess.Popen([sys.executable, "-c", program, mounted.directory / key], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert reader.stdout is not None and reader.stdout.readline() == b"reading\n"
    for _ in range(3):
        time.sleep(0.2)
        reader.send_signal(signal.SIGUSR1)
    assert reader.poll() is None
    own_daemon.start()
    assert reader.communicate()[1] == content


def test_daemon_with_few_sessions_serves_many_readers(
    larder_bin: pathlib.Path, tmp_path: pathlib.Path, make_raw: Callable[..., Data], mount: Callable[..., Mount]
) -> None:
    daemon = Daemon(larder_bin, tmp_path / "few", "--session.count-max", "3")
    daemon.start()
    data = make_raw(daemon)
    mounted = mount(daemon, data.name, "--timeout", "2")
    keys = sorted(data.contents)[:48]
    readers = [subprocess.Popen(["cat", mounted.directory / key], stdout=subprocess.PIPE) for key in keys]
    assert [reader.communicate()[0] for reader in readers] == [data.contents[key] for key in keys]
    assert mounted.end() == 0
    daemon.end()


def misses_of(daemon: Daemon) -> int:
    (job,) = json.loads(daemon.command("--json", "jobs"))["jobs"]
    return int(job["counters"]["misses"])


def test_uncached_file_is_fetched_once(own_daemon: Daemon, tmp_path: pathlib.Path, mount: Callable[..., Mount]) -> None:
    files = tmp_path / "files"
    files.mkdir()
    part_files, ahead = 127, 64  # groups of 1, 2, 4, ... 64 files are as long as a part; one more group is fetched ahead
    stride = part_files + ahead
    last = 8 * stride
    names = [f"{i:04}.bin" for i in range(last + 1)]
    for i, name in enumerate(names):
        (files / name).write_bytes(i.to_bytes(4, "big") * 64)
    own_daemon.command("dataset", "add", "uncached", files, "--quota-memory", "0", "--quota-disk", "0")
    mounted = mount(own_daemon, "uncached")
    with open(mounted.directory / names[-1], "rb", buffering=0) as file:
        # Longer than samples of closed files are kept.
        for at in range(3):
            assert os.pread(file.fileno(), 4, 4 * at) == last.to_bytes(4, "big")
            time.sleep(1.5)
    assert misses_of(own_daemon) == 1
    # Eight programs that each read their part in order.
    for i in range(part_files):
        for part in range(8):
            at = stride * part + i
            assert (mounted.directory / names[at]).read_bytes()[:4] == at.to_bytes(4, "big")
    assert 8 * part_files + 1 <= misses_of(own_daemon) <= len(names)


def test_mount_that_waits_for_a_daemon_can_be_ended(larder_bin: pathlib.Path, tmp_path: pathlib.Path) -> None:
    directory = tmp_path / "waiting"
    directory.mkdir()
    for number in (signal.SIGINT, signal.SIGTERM):
        words = [larder_bin / "larder", "mount", "any", directory, "--socket", tmp_path / "none", "--timeout", "600"]
        waiting = subprocess.Popen(words, stderr=subprocess.PIPE)
        time.sleep(0.5)
        assert waiting.poll() is None
        waiting.send_signal(number)
        assert waiting.wait() != 0


def test_unmount_leaves_other_file_systems_alone(raw: Data, tmp_path: pathlib.Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", other], check=True)
    try:
        for directory in (other, tmp_path):
            refused = raw.daemon.try_command("unmount", directory)
            assert refused.returncode == 4 and "is no mount of larder mount" in refused.stderr, refused
        assert os.path.ismount(other)
    finally:
        subprocess.run(["umount", other], check=True)


def test_process_that_ends_leaves_a_later_mount_alone(raw: Data, mount: Callable[..., Mount]) -> None:
    first = mount(raw.daemon, raw.name)
    with open(first.directory / "ant" / "0000.png", "rb"):
        raw.daemon.command("unmount", "--lazy", first.directory)
        second = Mount(raw.daemon, raw.name, first.directory)
        assert first.end() == 0
    assert contents_below(first.directory) == raw.contents
    assert second.end() == 0


def test_tar_with_unusual_members(own_daemon: Daemon, tmp_path: pathlib.Path, mount: Callable[..., Mount]) -> None:
    tars = tmp_path / "tars"
    tars.mkdir()
    members = {"./a.txt": b"a", "d/b.txt": b"b", "c.TXT": b"c", "long" * 70 + ".txt": b"long", "z.txt": b"z"}
    with tarfile.open(tars / "x.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    own_daemon.command("dataset", "add", "unusual", tars, "--format", "webdataset")
    mounted = mount(own_daemon, "unusual")
    expected = {"x.tar/a.txt": b"a", "x.tar/d_b.txt": b"b", "x.tar/c.txt": b"c", "x.tar/z.txt": b"z"}
    assert contents_below(mounted.directory) == expected


def test_open_file_does_not_hold_up_the_end(raw: Data, mount: Callable[..., Mount]) -> None:
    mounted = mount(raw.daemon, raw.name)
    with open(mounted.directory / "ant" / "0000.png", "rb", buffering=0) as file:
        busy = raw.daemon.try_command("unmount", mounted.directory)
        assert busy.returncode == 1 and "is in use" in busy.stderr, busy
        assert mounted.end() == 0
        with pytest.raises(OSError) as ended:
            file.read()
        assert ended.value.errno in (errno.ENOTCONN, errno.ECONNABORTED)


def test_mount_in_the_background(raw: Data, tmp_path: pathlib.Path) -> None:
    directory = tmp_path / "background"
    directory.mkdir()
    options = ["--detach", "--socket", raw.daemon.socket, "--log", tmp_path / "log"]
    started = json.loads(raw.daemon.command("--json", "mount", raw.name, directory, *options))
    assert started["dataset"] == raw.name and started["directory"] == str(directory)
    assert contents_below(directory) == raw.contents
    again = raw.daemon.try_command("mount", raw.name, directory, *options)
    assert again.returncode == 5 and "is not empty" in again.stderr, again
    raw.daemon.command("unmount", directory)
    assert os.listdir(directory) == []
    # The process ends with the mount.
    while os.path.exists(f"/proc/{started['pid']}"):
        time.sleep(0.01)


def test_mount_of_a_killed_process_is_replaced(raw: Data, mount: Callable[..., Mount]) -> None:
    mounted = mount(raw.daemon, raw.name)
    assert mounted.end(signal.SIGKILL) == -signal.SIGKILL
    with pytest.raises(OSError) as gone:
        os.listdir(mounted.directory)
    assert gone.value.errno == errno.ENOTCONN
    again = Mount(raw.daemon, raw.name, mounted.directory)
    assert contents_below(mounted.directory) == raw.contents
    assert again.end() == 0


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["none", "."], 4, "none"),
        (["RAW", "absent"], 4, "absent is no directory"),
        (["RAW", ".", "--timeout", "0"], 2, "--timeout"),
        (["RAW"], 2, "DIRECTORY"),
    ],
)
def test_wrong_uses_are_refused(raw: Data, tmp_path: pathlib.Path, words: list[str], status: int, says: str) -> None:
    words = [raw.name if word == "RAW" else str(tmp_path / word) if word in (".", "absent") else word for word in words]
    refused = raw.daemon.try_command("mount", *words, "--socket", raw.daemon.socket)
    assert refused.returncode == status and says in refused.stderr, refused


def test_random_reads_hit_what_is_cached(own_daemon: Daemon, tmp_path: pathlib.Path, mount: Callable[..., Mount]) -> None:
    """Uniform caching holds: a random reader hits c/d."""
    files = tmp_path / "files"
    files.mkdir()
    draw = random.Random(3)
    names = [f"{i:04}.bin" for i in range(2000)]
    for name in names:
        (files / name).write_bytes(draw.randbytes(8192))
    own_daemon.command("dataset", "add", "uniform", files, "--quota-memory", "8MiB")
    mounted = mount(own_daemon, "uniform")

    def epoch() -> None:
        draw.shuffle(names)
        for name in names:
            assert len((mounted.directory / name).read_bytes()) == 8192

    def counts() -> tuple[int, int]:
        (job,) = json.loads(own_daemon.command("--json", "jobs"))["jobs"]
        return job["counters"]["memory_hits"], job["counters"]["misses"]

    epoch()
    (dataset,) = json.loads(own_daemon.command("--json", "dataset", "ls"))["datasets"]
    assert 0.45 < dataset["cached_ratio"] < 0.55, dataset
    hits, misses = counts()
    epoch()
    hits, misses = counts()[0] - hits, counts()[1] - misses
    assert hits / (hits + misses) == pytest.approx(dataset["cached_ratio"], abs=0.01)


def test_page_does_what_it_says(
    repository: pathlib.Path, larder_bin: pathlib.Path, open_directory: pathlib.Path
) -> None:
    home = open_directory / "home"  # a short path, as the daemon's sockets are below it
    (home / "mnt").mkdir(parents=True)
    for name in ("cat", "dog"):
        (home / "data" / "pets" / name).mkdir(parents=True)
        (home / "data" / "pets" / name / "0.png").write_bytes(os.urandom(1000))

    def local(text: str) -> str:
        return text.replace("/data/", f"{home}/data/").replace("/mnt/", f"{home}/mnt/").replace("1GiB", "16MiB")

    steps = [
        page.Command(step.line, local(step.text), tuple(map(local, step.shown)))
        for step in page.commands(repository / "docs" / "mount.md")
    ]
    assert len(steps) >= 7
    for step, ran in page.run(steps, home, larder_bin, HOME=str(home)).items():
        assert ran.status == 0, f"line {step.line}: {step.text}\n{ran.output}"
        if step.shown:
            assert page.shapes(ran.output) == page.shapes("\n".join(step.shown)), f"line {step.line}"


def test_bench_prints_what_the_page_says(repository: pathlib.Path, larder_bin: pathlib.Path, tmp_path: pathlib.Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    for i in range(80):
        Image.new("RGB", (20, 20), (i, i, i)).save(images / f"{i}.png")
    script = repository / "bench" / "mount.py"
    words = [sys.executable, script, "--quick", "--json", "--programs", larder_bin, "--images", images]
    ran = subprocess.run(words, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    result = json.loads(ran.stdout)
    for name in ("1 MiB files", "16 MiB files", "images, read", "images, decoded"):
        assert all(result[name][key] > 0 for key in ("larder", "minimal", "local", "ratio")), result
    assert result["listing"]["files"] == 10_000 and result["listing"]["seconds"] > 0
    words.remove("--json")
    shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert "times the minimal program's" in shown and "ls -R of 10,000 files" in shown
