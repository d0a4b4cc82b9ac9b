"""tools/image: its archives hold all that the programs need."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
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
        """Runs a program of an archive, with nothing of this machine's files."""
        if image not in self.containers:
            made = self.buildah("from", f"oci-archive:{self.archives}/{image}.tar")
            assert made.returncode == 0, made.stderr
            self.containers[image] = made.stdout.strip()
        return self.buildah("run", "--isolation", "chroot", self.containers[image], "--", *command)


@pytest.fixture(scope="module")
def images(
    larder_bin: pathlib.Path, repository: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Images]:
    directory = tmp_path_factory.mktemp("i")
    kubernetes.build_larder_kubernetes()
    ran = subprocess.run(
        ["tools/image", "--build", larder_bin.parent, "--output", directory / "archives"],
        cwd=repository, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    yield Images(directory / "archives", directory / "storage")
    shutil.rmtree(directory, ignore_errors=True)  # some hundred megabytes


def test_programs_run_from_the_archive(images: Images, larder_bin: pathlib.Path) -> None:
    for name in ("larderd", "larder-allocator", "larder"):
        wanted = subprocess.run([larder_bin / name, "--version"], capture_output=True, text=True)
        ran = images.run("larder", name, "--version")
        assert (ran.returncode, ran.stdout) == (0, wanted.stdout), ran.stderr
    ran = images.run("larder-kubernetes", "larder-kubernetes", "--help")
    assert ran.returncode == 0 and "usage: larder-kubernetes MODE" in ran.stdout, ran.stderr


def test_chart_names_the_images_as_the_archives_do(images: Images, repository: pathlib.Path) -> None:
    values = (repository / "scheduler" / "engines" / "kubernetes" / "chart" / "values.yaml").read_text()
    for image in ("larder", "larder-kubernetes"):
        found = re.search(rf": ({image}:[\d.]+)$", values, re.M)
        assert found
        index = subprocess.run(
            ["tar", "-xOf", images.archives / f"{image}.tar", "index.json"], capture_output=True, text=True, check=True
        )
        assert f'"{found[1]}"' in index.stdout


def test_missing_program_is_named(images: Images, repository: pathlib.Path, tmp_path: pathlib.Path) -> None:
    ran = subprocess.run(
        ["tools/image", "--build", tmp_path, "--output", tmp_path, "larder"],
        cwd=repository, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert ran.returncode == 1
    assert ran.stderr == f"tools/image: {tmp_path}/bin/larder is missing: build it first, or give --build\n"
