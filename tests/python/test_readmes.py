"""The Python examples of the READMEs, run as they stand there."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
from typing import Any

import PIL.Image
import pytest


@pytest.fixture(scope="module", params=["at the root", "in class directories"])
def pets(request: pytest.FixtureRequest, start_daemon: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A daemon with a dataset "pets" of images of several sizes."""
    directory = tmp_path_factory.mktemp("pets")
    for i in range(40):
        place = directory / ("cat" if i % 2 else "dog") if request.param == "in class directories" else directory
        place.mkdir(exist_ok=True)
        PIL.Image.new("RGB", (8 + i, 30), (i, 2 * i, 3 * i)).save(place / f"{i:02}.png")
    daemon = start_daemon()
    daemon.command("dataset", "add", "pets", f"file://{directory}", "--quota-memory", "16MiB")
    return daemon


@pytest.mark.parametrize("readme", ["README.md", "loader/python/README.md"])
def test_python_examples_run(pets: Any, repository: pathlib.Path, readme: str) -> None:
    examples = re.findall(r"^```python\n(.*?)^```$", (repository / readme).read_text(), re.MULTILINE | re.DOTALL)
    assert len(examples) >= (3 if readme.startswith("loader") else 1)
    for example in examples:
        ran = subprocess.run(
            [sys.executable, "-c", example],
            env={**os.environ, "LARDER_SOCKET": pets.socket},
            capture_output=True,
            text=True,
        )
        assert ran.returncode == 0, f"{example}\n{ran.stdout}{ran.stderr}"
