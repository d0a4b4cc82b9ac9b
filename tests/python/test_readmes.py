"""The examples of the READMEs, run unchanged."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
from typing import Any

import page
import PIL.Image
import pytest


@pytest.fixture(scope="module", params=["at the root", "in class directories"])
def pets(request: pytest.FixtureRequest, start_daemon: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A daemon with the datasets "pets" and "birds" of images of several sizes."""
    directory = tmp_path_factory.mktemp("pets")
    for i in range(40):
        place = directory / ("cat" if i % 2 else "dog") if request.param == "in class directories" else directory
        place.mkdir(exist_ok=True)
        PIL.Image.new("RGB", (8 + i, 30), (i, 2 * i, 3 * i)).save(place / f"{i:02}.png")
    daemon = start_daemon()
    for name in ("pets", "birds"):
        daemon.command("dataset", "add", name, f"file://{directory}", "--quota-memory", "16MiB")
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


# These commands build the programs, which takes minutes. test_quickstart.py runs tools/quickstart with built programs.
BUILDING = {"tools/quickstart [DIRECTORY | URL]", "tools/test"}


def test_commands_run(repository: pathlib.Path, larder_bin: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (tmp_path / "data" / "pets").mkdir(parents=True)
    PIL.Image.new("RGB", (8, 30)).save(tmp_path / "data" / "pets" / "1.png")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LARDER_")}
    environment = kept | {"HOME": str(tmp_path), "PATH": f"{larder_bin}:{os.environ['PATH']}"}
    lines = [re.sub(r"\s+# .*$", "", line) for _, block in page.blocks(repository / "README.md") for line in block]
    assert BUILDING < set(lines)
    commands = [line for line in lines if line not in BUILDING]
    assert len(commands) == 2
    for command in [*commands, "larder down"]:
        local_command = command.replace("/data/", f"{tmp_path}/data/")
        ran = subprocess.run(["bash", "-c", local_command], env=environment, capture_output=True, text=True)
        assert ran.returncode == 0, f"{command}\n{ran.stdout}{ran.stderr}"
