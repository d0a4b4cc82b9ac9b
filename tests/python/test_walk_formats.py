"""docs/formats.md as a user follows it: runs each command and Python example on data of the formats it names."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
from typing import Any

import numpy
import page
import pytest
from format_cases import DATA
from servers import S3


def write_megatron(directory: pathlib.Path) -> None:
    """Writes five documents of 1,000 int32 tokens each as a Megatron indexed dataset."""
    directory.mkdir()
    documents = [numpy.arange(1000, dtype="int32") + 1000 * i for i in range(5)]
    (directory / "corpus.bin").write_bytes(b"".join(one.tobytes() for one in documents))
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 4, len(documents), len(documents) + 1)
    lengths = numpy.full(len(documents), 1000, "int32")
    pointers = numpy.arange(len(documents), dtype="int64") * 4000
    (directory / "corpus.idx").write_bytes(head + lengths.tobytes() + pointers.tobytes() + numpy.arange(len(documents) + 1).tobytes())


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The data that the page has in /data."""
    data = tmp_path_factory.mktemp("data")
    shutil.copytree(DATA / "mds", data / "c4-mds")
    write_megatron(data / "tokens")
    write_megatron(data / "text")
    for name in ("cat", "dog"):
        (data / "images" / name).mkdir(parents=True)
        for i in range(3):
            (data / "images" / name / f"{i}.png").write_bytes(os.urandom(1000))
    return data


@pytest.fixture(scope="module")
def walk(
    repository: pathlib.Path, larder_bin: pathlib.Path, start_daemon: Any, data: pathlib.Path, own_s3: S3, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, dict[page.Command, page.Ran]]:
    own_s3.client.create_bucket("training")
    for file in (DATA / "mds").iterdir():
        own_s3.client.put("training", f"c4-mds/{file.name}", file.read_bytes())
    daemon = start_daemon()
    steps = [
        page.Command(step.line, step.text.replace("/data/", f"{data}/").replace("1GiB", "64MiB").replace("256MiB", "64MiB"))
        for step in page.commands(repository / "docs" / "formats.md")
    ]
    environment = {"LARDER_ADMIN_SOCKET": str(daemon.state / "admin.sock"), "AWS_ENDPOINT_URL": own_s3.endpoint} | own_s3.environment()
    return daemon, page.run(steps, tmp_path_factory.mktemp("walk"), larder_bin, **environment)


def test_every_command_does_what_the_page_says(walk: tuple[Any, dict[page.Command, page.Ran]], data: pathlib.Path) -> None:
    _, ran = walk
    assert len(ran) >= 7
    for step, result in ran.items():
        assert result.status == 0, f"line {step.line}: {step.text}\n{result.output}"
    assert sorted(path.name for path in data.iterdir()) == ["c4", "c4-mds", "images", "shards", "text", "text-packed", "tokens"]


def test_python_examples_run(walk: tuple[Any, dict[page.Command, page.Ran]], repository: pathlib.Path) -> None:
    daemon, _ = walk
    examples = re.findall(r"^```python\n(.*?)^```$", (repository / "docs" / "formats.md").read_text(), re.MULTILINE | re.DOTALL)
    assert len(examples) == 2
    # The second example uses the imports of the first.
    run = subprocess.run(
        [sys.executable, "-c", "\n".join(examples)],
        env={**os.environ, "LARDER_SOCKET": daemon.socket}, capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
