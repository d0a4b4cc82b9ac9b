"""The programs of docs/frameworks.md, run unchanged."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable
from typing import Any

import pytest

PAGE = pathlib.Path(__file__).resolve().parents[3] / "docs" / "frameworks.md"
PROGRAMS = re.findall(r"^## ([^\n]+)\n+```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def pets(
    start_daemon: Callable[..., Any], make_raw: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Any:
    directory = tmp_path_factory.mktemp("pets")
    for i in range(48):
        (directory / f"{i:02}.bin").write_bytes(bytes([i]) * (40 + i))
    daemon = start_daemon()
    daemon.command("dataset", "add", "pets", f"file://{directory}", "--format", "raw", "--quota-memory", "16MiB")
    return daemon


def test_page_has_programs() -> None:
    assert [name for name, _ in PROGRAMS] == ["Lightning", "Hugging Face Trainer", "Accelerate", "JAX with Grain"]


@pytest.mark.parametrize("program", [pytest.param(text, id=name) for name, text in PROGRAMS])
def test_program_runs(run_framework: Callable[..., str], pets: Any, program: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "program.py").write_text(program)
    run_framework(pets, tmp_path / "program.py", directory=tmp_path)


def test_page_names_the_versions(repository: pathlib.Path) -> None:
    locked = (repository / "tests" / "python" / "framework_packages.txt").read_text()
    for name in ("pytorch-lightning", "transformers", "accelerate", "Ray", "JAX", "Grain"):
        version = re.search(rf"{name} (\d+\.\d+\.\d+)", PAGE.read_text())
        assert version is not None and re.search(rf"^{name.lower()}=={version[1]} ", locked, re.MULTILINE), name
