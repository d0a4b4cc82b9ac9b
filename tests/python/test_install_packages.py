"""tools/install-packages with a fake dpkg and a fake apt-get: it installs missing packages and nothing else."""

from __future__ import annotations

import os
import pathlib
import subprocess


def write_program(folder: pathlib.Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/bash\n{script}\n")
    (folder / name).chmod(0o755)


def run(repository: pathlib.Path, folder: pathlib.Path, known: list[str], group: str) -> tuple[int, str]:
    """Runs the script. Returns its exit code and the arguments of apt-get."""
    # Like dpkg-query, lists the packages it knows, and fails if one is unknown.
    write_program(
        folder,
        "dpkg-query",
        f"known=' {' '.join(known)} '; status=0; shift 3\n"
        'for name in "$@"; do\n'
        'if [[ $known == *" $name "* ]]; then echo "installed $name"; else status=1; fi\n'
        "done; exit $status",
    )
    write_program(folder, "apt-get", f'echo "$*" >>{folder}/asked')
    write_program(folder, "id", "echo 0")
    environment = os.environ | {"PATH": f"{folder}:/usr/bin:/bin"}
    ran = subprocess.run(
        [repository / "tools" / "install-packages", group], env=environment, capture_output=True, text=True
    )  # fmt: skip
    asked = folder / "asked"
    return ran.returncode, asked.read_text() if asked.exists() else ""


def test_missing_packages_are_installed(repository: pathlib.Path, tmp_path: pathlib.Path) -> None:
    code, asked = run(repository, tmp_path, ["fio"], "bench")
    assert code == 0
    install = asked.splitlines()[-1].split()
    assert "install" in install and "jq" in install and "fio" not in install


def test_nothing_is_installed_when_no_package_is_missing(repository: pathlib.Path, tmp_path: pathlib.Path) -> None:
    assert run(repository, tmp_path, ["openclipart-png"], "data") == (0, "")


def test_unknown_group_is_an_error(repository: pathlib.Path, tmp_path: pathlib.Path) -> None:
    code, asked = run(repository, tmp_path, [], "nonsense")
    assert (code, asked) == (2, "")
