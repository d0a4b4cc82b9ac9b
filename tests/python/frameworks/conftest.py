"""Runs the examples of loader/python/examples in the environment of tests/python/framework_env.py."""

from __future__ import annotations

import os
import pathlib
import subprocess
from collections.abc import Callable
from typing import Any

import framework_env
import pytest

KILLER = pathlib.Path(__file__).parent / "killer"


@pytest.fixture(scope="session")
def framework_python() -> pathlib.Path:
    found = framework_env.interpreter()
    if found is None:
        pytest.fail("the environment is not there; tests/python/framework_env.py --install makes it")
    return found


@pytest.fixture(scope="session")
def framework_path(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return framework_env.python_path(tmp_path_factory.mktemp("packages") / "path")


@pytest.fixture
def run_framework(
    framework_python: pathlib.Path, framework_path: pathlib.Path, repository: pathlib.Path
) -> Callable[..., str]:
    """Runs a Python program with the given arguments and returns its standard output."""

    def run(daemon: Any, *arguments: object, kill_after: int = 0, directory: pathlib.Path | None = None) -> str:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("LARDER_")} | {
            "PYTHONPATH": f"{KILLER}:{framework_path}",
            "LARDER_SOCKET": daemon.socket,
            "LARDER_TEST_KILL_AFTER": str(kill_after),
            "CUDA_VISIBLE_DEVICES": "",
            "HF_HUB_OFFLINE": "1",
            "RAY_DEDUP_LOGS": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        ran = subprocess.run(
            [framework_python, *map(str, arguments)],
            cwd=directory or repository / "loader" / "python" / "examples",
            env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=500,
        )  # fmt: skip
        if kill_after > 0:
            assert ran.returncode != 0, f"was not killed:\n{ran.stdout}"
        else:
            assert ran.returncode == 0, f"{ran.stdout[-3000:]}\n{ran.stderr[-5000:]}"
        return ran.stdout

    return run
