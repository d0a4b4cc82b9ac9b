"""tools/image: its archives hold all that the programs need."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterator

import kubernetes
import pytest

MISSING = [name for name in ("buildah", "mmdebstrap") if shutil.which(name) is None]
pytestmark = [
    pytest.mark.skipif(kubernetes.find_go() is None, reason=kubernetes.GO_MISSING),
    pytest.mark.skipif(bool(MISSING), reason=f"{' and '.join(MISSING)} missing: run tools/install-packages image"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make the files of an image"),
    pytest.mark.control_plane,  # a sanitizer's runtime is no part of an image
]


USER = 65532  # of the images


@dataclasses.dataclass
class Images:
    """The archives, and a storage of their own for buildah."""

    archives: pathlib.Path
    storage: pathlib.Path
    containers: dict[str, str] = dataclasses.field(default_factory=dict)

    def buildah(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        storage = ("--root", self.storage / "root", "--runroot", self.storage / "run", "--storage-driver", "vfs")
        command = ["buildah", *map(str, (*storage, *arguments))]
        return subprocess.run(command, capture_output=True, text=True, timeout=300)

    def run(self, image: str, *command: str) -> subprocess.CompletedProcess[str]:
        """Runs a program of an archive as the image's user, with nothing of this machine's files."""
        return self.buildah("run", "--isolation", "chroot", self._container(image), "--", *command)

    def unpacked(self, image: str) -> pathlib.Path:
        mounted = self.buildah("mount", self._container(image))
        assert mounted.returncode == 0, mounted.stderr
        return pathlib.Path(mounted.stdout.strip())

    def _container(self, image: str) -> str:
        if image not in self.containers:
            made = self.buildah("from", f"oci-archive:{self.archives}/{image}.tar")
            assert made.returncode == 0, made.stderr
            self.containers[image] = made.stdout.strip()
        return self.containers[image]


@pytest.fixture(scope="module")
def images(
    larder_bin: pathlib.Path, repository: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Images]:
    directory = tmp_path_factory.mktemp("i")
    kubernetes.build_larder_kubernetes()
    try:
        build(repository, "--build", larder_bin.parent, "--output", directory / "archives")
        yield Images(directory / "archives", directory / "storage")
    finally:
        shutil.rmtree(directory, ignore_errors=True)  # some hundred megabytes


def build(repository: pathlib.Path, *arguments: object) -> None:
    """Runs tools/image. A build that takes too long ends with all its processes, and removes its files."""
    command = ["tools/image", "--cached", *map(str, arguments)]
    with subprocess.Popen(
        command, cwd=repository, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        try:
            _, errors = running.communicate(timeout=600)
        except BaseException:
            os.killpg(running.pid, signal.SIGTERM)
            running.communicate(timeout=60)
            raise
    assert running.returncode == 0, errors


def document(archive: tarfile.TarFile, name: str) -> dict:
    read = archive.extractfile(name)
    assert read is not None
    return json.load(read)


def layer_of(archive: pathlib.Path) -> list[tarfile.TarInfo]:
    """The entries of the image's only layer."""
    with tarfile.open(archive) as outer:
        manifest = document(outer, blob(document(outer, "index.json")["manifests"][0]))
        (layer,) = manifest["layers"]
        with tarfile.open(fileobj=outer.extractfile(blob(layer))) as inner:
            return inner.getmembers()


def blob(descriptor: dict) -> str:
    return "blobs/" + descriptor["digest"].replace(":", "/")


def test_programs_run_from_the_archive(images: Images, larder_bin: pathlib.Path) -> None:
    for name in ("larderd", "larder-allocator", "larder"):
        wanted = subprocess.run([larder_bin / name, "--version"], capture_output=True, text=True)
        ran = images.run("larder", name, "--version")
        assert (ran.returncode, ran.stdout) == (0, wanted.stdout), ran.stderr
    ran = images.run("larder-kubernetes", "larder-kubernetes", "--help")
    assert ran.returncode == 0 and "usage: larder-kubernetes MODE" in ran.stdout, ran.stderr


def test_layer_has_only_libraries_programs_and_authorities(images: Images) -> None:
    entries = {entry.name.removeprefix("./").rstrip("/"): entry for entry in layer_of(images.archives / "larder.tar")}
    assert {entry.mode & 0o6000 for entry in entries.values()} == {0}, "no setuid or setgid"
    assert {name for name in entries if re.match(r"(usr/)?s?bin/", name)} == {
        f"usr/bin/{name}" for name in ("larder", "larderd", "larder-allocator", "larder-check-lmdb", "read-epochs")
    }
    assert {name for name, entry in entries.items() if name.startswith("etc/") and not entry.isdir()} == {
        f"etc/{name}"
        for name in ("group", "passwd", "ld.so.cache", "ld.so.conf", "ssl/certs/ca-certificates.crt", "ssl/openssl.cnf")
    }
    assert {name.split("/")[0] for name in entries} <= {"", "etc", "lib", "lib64", "tmp", "usr"}
    assert not [name for name in entries if "perl" in name and not name.startswith("usr/share/doc/")]
    unreadable = [name for name, entry in entries.items() if not entry.issym() and not entry.mode & 0o004]
    assert unreadable == [], "user 65532 runs the programs"


def test_second_build_is_the_same_also_with_a_strict_umask(
    images: Images, larder_bin: pathlib.Path, repository: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    before = os.umask(0o077)
    try:
        build(repository, "--build", larder_bin.parent, "--output", tmp_path, "larder")
    finally:
        os.umask(before)
    index = [
        subprocess.run(["tar", "-xOf", folder / "larder.tar", "index.json"], capture_output=True, check=True).stdout
        for folder in (images.archives, tmp_path)
    ]
    assert index[0] == index[1]


def test_daemon_serves_as_the_images_user_on_a_read_only_root(images: Images, tmp_path: pathlib.Path) -> None:
    """As the chart runs it. The daemon starts larder-check-lmdb by itself."""
    root = images.unpacked("larder")
    state = tmp_path / "state"
    state.mkdir()
    os.chown(state, USER, USER)
    script = f"""
        mount --bind {root} {root}
        mount --bind {state} {root}/tmp
        mkdir -p {root}/proc
        mount -t proc none {root}/proc
        mount -o remount,bind,ro {root}
        if touch {root}/written 2>/dev/null; then exit 3; fi
        exec chroot --userspec {USER}:{USER} {root} /usr/bin/larderd --state-directory=/tmp/state \\
            --socket=/tmp/larderd.sock --admin-socket=/tmp/admin.sock --memory=64MiB --disk=256MiB
    """
    with (
        open(tmp_path / "log", "w") as log,
        subprocess.Popen(["unshare", "--mount", "bash", "-ec", script], stdout=log, stderr=log) as running,
    ):
        try:
            deadline = time.monotonic() + 120
            while not (state / "admin.sock").exists() and running.poll() is None and time.monotonic() < deadline:
                time.sleep(0.1)
            is_served = (state / "admin.sock").is_socket()
        finally:
            running.terminate()
            running.wait(60)
    assert (is_served, running.returncode) == (True, 0), (tmp_path / "log").read_text()


def test_chart_names_the_images_as_the_archives_do(images: Images, repository: pathlib.Path) -> None:
    """With a host: containerd takes a name without one for an image of docker.io, and does not find it."""
    values = (repository / "scheduler/engines/kubernetes/chart/values.yaml").read_text()
    for image in ("larder", "larder-kubernetes"):
        with tarfile.open(images.archives / f"{image}.tar") as archive:
            (manifest,) = document(archive, "index.json")["manifests"]
        name = manifest["annotations"]["org.opencontainers.image.ref.name"]
        assert name.startswith(f"localhost/{image}:")
        assert f": {name}\n" in values


def test_program_is_built_for_its_image(images: Images, repository: pathlib.Path, tmp_path: pathlib.Path) -> None:
    build(repository, "--output", tmp_path, "larder-kubernetes")
    built, given = (layer_of(archives / "larder-kubernetes.tar") for archives in (tmp_path, images.archives))
    assert [(one.name, one.size) for one in built] == [(one.name, one.size) for one in given]


def test_missing_program_is_named(images: Images, repository: pathlib.Path, tmp_path: pathlib.Path) -> None:
    ran = subprocess.run(
        ["tools/image", "--build", tmp_path, "--output", tmp_path, "larder"],
        cwd=repository, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert ran.returncode == 1
    assert ran.stderr == f"tools/image: {tmp_path}/bin/larder is missing: build it first\n"


@pytest.mark.parametrize("has_mirror", [True, False])
def test_mirror_is_the_one_that_apt_has(
    images: Images, repository: pathlib.Path, tmp_path: pathlib.Path, has_mirror: bool
) -> None:
    """Whatever the name of its file in /etc/apt. A machine without one says so before it builds."""
    sources = tmp_path / "sources"
    sources.mkdir()
    if has_mirror:
        found = [path for path in pathlib.Path("/etc/apt").rglob("*") if path.suffix in (".list", ".sources")]
        for number, path in enumerate(found):
            shutil.copy(path, sources / f"{number}{path.suffix}")
    config = tmp_path / "apt.conf"
    config.write_text(f'Dir::Etc::sourcelist "/dev/null";\nDir::Etc::sourceparts "{sources}";\n')
    ran = subprocess.run(
        ["tools/image", "--build", tmp_path, "--output", tmp_path, "larder"],
        cwd=repository, capture_output=True, text=True, timeout=60, env=os.environ | {"APT_CONFIG": str(config)},
    )  # fmt: skip
    assert ran.returncode == 1
    missing = f"{tmp_path}/bin/larder is missing: build it first" if has_mirror else "apt has no mirror of Debian"
    assert ran.stderr.startswith(f"tools/image: {missing}")
