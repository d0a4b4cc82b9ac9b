"""tools/quickstart on URLs, run to its end with programs that are already built."""

from __future__ import annotations

import io
import pathlib
import random
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable

import pytest
from PIL import Image
from remote_sources import environment, write_list
from servers import S3, Nginx

BUCKET = "quickstart-data"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Images in class directories, and tar shards of samples that quickstart cannot train on."""
    root = tmp_path_factory.mktemp("quickstart")
    for kind in ("ant", "bee", "cat"):
        (root / "images" / kind).mkdir(parents=True)
        for i in range(60):
            Image.effect_noise((20 + i, 30), 50).save(root / "images" / kind / f"{i:02}.png")
    write_list(root / "images")
    draw = random.Random(3)
    (root / "tars").mkdir()
    for shard in range(2):
        with tarfile.open(root / "tars" / f"{shard:03}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for i in range(40):
                member = tarfile.TarInfo(f"{shard}{i:03}.wav")
                member.size = 2000
                tar.addfile(member, io.BytesIO(draw.randbytes(2000)))
    write_list(root / "tars")
    return root


@pytest.fixture
def quickstart(
    repository: pathlib.Path, larder_bin: pathlib.Path, tmp_path: pathlib.Path
) -> Callable[..., str]:  # fmt: skip
    def run(*words: str, **variables: str) -> str:
        home = tmp_path / "home"
        home.mkdir()
        variables |= {"LARDER_BUILD": str(larder_bin.parent), "LARDER_PYTHON": sys.executable}
        ran = subprocess.run(
            [repository / "tools" / "quickstart", *words],
            cwd=tmp_path, env=environment(home, **variables), capture_output=True, text=True,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert list(home.rglob("*.sock")) == [], "it ends what it started"
        return ran.stdout

    return run


def check_training(says: str) -> None:
    assert "epoch 2 (stopped)" in says and "resumed in epoch 2 after 1 batches" in says
    assert "epoch 3: " in says
    assert "What to try next" in says


def test_directory_of_images_in_classes_is_trained_on(
    quickstart: Callable[..., str], root: pathlib.Path, tmp_path: pathlib.Path
) -> None:  # fmt: skip
    shutil.copytree(root / "images", tmp_path / "images", ignore=shutil.ignore_patterns("list.txt"))
    says = quickstart(str(tmp_path / "images"))
    check_training(says)
    assert "as tar shards" in says, "a local directory is packed, and trained on once more"


def test_images_over_http_are_trained_on(
    quickstart: Callable[..., str], serve_directory: Callable[..., Nginx], root: pathlib.Path
) -> None:
    says = quickstart(f"{serve_directory(root).http}/images/list.txt")
    check_training(says)
    assert "as tar shards" not in says


def test_images_in_s3_are_trained_on(quickstart: Callable[..., str], s3: S3, root: pathlib.Path) -> None:
    s3.client.create_bucket(BUCKET)
    s3.client.upload(BUCKET, root)
    s3.client.delete(BUCKET, "images/list.txt")
    check_training(quickstart(f"s3://{BUCKET}/images", "--endpoint", s3.endpoint, **s3.environment()))


def test_samples_without_images_are_read(
    quickstart: Callable[..., str], serve_directory: Callable[..., Nginx], root: pathlib.Path
) -> None:
    says = quickstart(f"{serve_directory(root).http}/tars/{{000..001}}.tar")
    assert "Reading two epochs" in says and "epoch 2: " in says and "fields wav" in says
    assert "What to try next" in says


def test_directory_without_classes_is_read(quickstart: Callable[..., str], tmp_path: pathlib.Path) -> None:
    (tmp_path / "files").mkdir()
    for i in range(30):
        (tmp_path / "files" / f"{i}.bin").write_bytes(bytes([i]) * 5000)
    says = quickstart(str(tmp_path / "files"))
    assert "Reading two epochs" in says and "epoch 2: " in says and "quickstart-shards" in says


def test_unreachable_url_is_named(
    larder_bin: pathlib.Path, repository: pathlib.Path, tmp_path: pathlib.Path,
    serve_directory: Callable[..., Nginx], root: pathlib.Path,
) -> None:  # fmt: skip
    variables = {"LARDER_BUILD": str(larder_bin.parent), "LARDER_PYTHON": sys.executable}
    ran = subprocess.run(
        [repository / "tools" / "quickstart", f"{serve_directory(root).http}/images/none.txt"],
        cwd=tmp_path, env=environment(tmp_path, **variables), capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode != 0 and "none.txt" in ran.stderr
    assert list(tmp_path.rglob("*.sock")) == []
