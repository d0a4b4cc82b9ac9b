"""The Go code of what follows Kubernetes, and of the check of histories: its own tests, and its format."""

from __future__ import annotations

import pathlib
import subprocess

import installed
import kubernetes
import pytest

pytestmark = pytest.mark.skipif(kubernetes.find_go() is None, reason=kubernetes.GO_MISSING)


def test_go_code_is_formatted_and_its_tests_pass(repository: pathlib.Path) -> None:
    go = kubernetes.find_go()
    assert go is not None
    module = repository / "scheduler" / "engines" / "kubernetes"
    folders = [module, repository / "tests" / "servers" / "kubernetes", kubernetes.LINEARIZABLE]
    formatted = subprocess.run([pathlib.Path(go).parent / "gofmt", "-l", *folders], capture_output=True, text=True)
    assert (formatted.returncode, formatted.stdout) == (0, "")
    for words, folder in (
        (["vet", "./..."], module), (["test", "./..."], module),
        (["vet", "."], kubernetes.LINEARIZABLE), (["test", "."], kubernetes.LINEARIZABLE),
    ):  # fmt: skip
        ran = subprocess.run(
            [go, *words], cwd=folder, env=installed.go_environment(), capture_output=True, text=True, timeout=600
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
