"""The result of `cmake --install` works without the source tree: programs, and the loader for C++ programs."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import subprocess
from typing import Any

import pytest


@pytest.fixture(scope="module")
def installed(larder_bin: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    prefix = tmp_path_factory.mktemp("usr")
    subprocess.run(["cmake", "--install", larder_bin.parent, "--prefix", prefix], check=True, capture_output=True)
    return prefix


def cmake_variable(build: pathlib.Path, name: str) -> str:
    found = re.search(rf"^{name}:\w+=(.*)$", (build / "CMakeCache.txt").read_text(), re.MULTILINE)
    return found[1] if found else ""


def test_cpp_program_reads_through_the_installed_loader(
    installed: pathlib.Path, raw: Any, repository: pathlib.Path, larder_bin: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    sanitizers = cmake_variable(larder_bin.parent, "LARDER_SANITIZE")
    compiler = cmake_variable(larder_bin.parent, "CMAKE_CXX_COMPILER")
    flags = f"-fsanitize={sanitizers}" if sanitizers else ""
    source = tmp_path / "source"
    source.mkdir()
    for file in (repository / "loader" / "examples").iterdir():
        (source / file.name).write_bytes(file.read_bytes())
    configure = [
        *("cmake", "-G", "Ninja", "-S", source, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={installed}"),
        *(f"-DCMAKE_CXX_COMPILER={compiler}", f"-DCMAKE_CXX_FLAGS={flags}"),
    ]
    for command in (configure, ["cmake", "--build", tmp_path / "build"]):
        ran = subprocess.run(command, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stdout + ran.stderr
    commands = (tmp_path / "build" / "build.ninja").read_text()
    assert str(repository) not in commands, "the example is built from the source tree"

    read = subprocess.run(
        [tmp_path / "build" / "read-epochs", raw.name, "2", "16"],
        env={"LARDER_SOCKET": raw.daemon.socket},
        capture_output=True,
        text=True,
    )
    assert read.returncode == 0, read.stderr
    samples, size = len(raw.contents), sum(map(len, raw.contents.values()))
    assert [line.split(" samples/s")[0].rsplit(", ", 1)[0] for line in read.stdout.splitlines()] == [
        f"epoch {epoch}: {samples} samples, {size} bytes" for epoch in range(2)
    ]


def test_reader_that_is_process_1_ends_at_sigterm(larder_bin: pathlib.Path, raw: Any) -> None:
    """As a container's only process, which has no default for signals."""
    with subprocess.Popen(
        ["unshare", "--pid", "--fork", "--kill-child", larder_bin / "read-epochs", raw.name, str(10**9)],
        env=os.environ | {"LARDER_SOCKET": str(raw.daemon.socket)}, stdout=subprocess.PIPE,
    ) as running:  # fmt: skip
        try:
            assert running.stdout is not None
            assert running.stdout.readline().startswith(b"epoch 0: ")
            (reader,) = pathlib.Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
            os.kill(int(reader), signal.SIGTERM)
            # Reads on, so that a reader that does not end is not stopped by a full pipe either.
            running.communicate(timeout=60)
            assert running.returncode == 128 + signal.SIGTERM
        finally:
            running.kill()


def test_programs_use_the_installed_scripts(installed: pathlib.Path, tmp_path: pathlib.Path) -> None:
    trace = tmp_path / "jobs.csv"
    trace.write_text("submit_s,duration_s,gpus\n0,600,1\n60,900,1\n")
    script = installed / "share" / "larder" / "tools" / "simulate" / "plot_simulation.py"
    script.write_text("import sys\nprint('the installed one', file=sys.stderr)\nsys.exit(3)\n")
    ran = subprocess.run(
        [installed / "bin" / "larder", "simulate", trace, "--gpus", "2", "--plot", tmp_path / "plots"],
        capture_output=True,
        text=True,
    )
    assert ran.returncode != 0
    assert "the installed one" in ran.stderr


def test_daemon_names_its_missing_checker(installed: pathlib.Path, tmp_path: pathlib.Path) -> None:
    checker = installed / "bin" / "larder-check-lmdb"
    away = checker.rename(tmp_path / "away")
    try:
        ran = subprocess.run(
            [installed / "bin" / "larderd", "--state-directory", tmp_path / "state"],
            capture_output=True,
            text=True,
            timeout=60,
        )
    finally:
        away.rename(checker)
    assert ran.returncode == 1
    assert f"{checker}, which is installed with this one: No such file or directory" in ran.stderr


def test_installed_units_and_examples_match_the_programs(installed: pathlib.Path) -> None:
    for name in ("larderd", "larder-allocator", "larder-slurm"):
        unit = (installed / "lib" / "systemd" / "system" / f"{name}.service").read_text()
        assert f"ExecStart={installed}/bin/{name} " in unit
    for name in ("larderd", "larder-allocator"):
        example = installed / "share" / "larder" / "examples" / f"{name}.example.toml"
        checked = subprocess.run(
            [installed / "bin" / name, "--check", "--config", example], capture_output=True, text=True
        )
        assert checked.returncode == 0, checked.stderr
    json.loads((installed / "share" / "larder" / "examples" / "grafana-dashboard.json").read_text())
    assert (installed / "share" / "larder" / "examples" / "larder-allocator-jobs.conf").exists()
    for name in ("burst_buffer.lua", "job_submit.lua"):
        assert (installed / "share" / "larder" / "slurm" / name).exists()
    for name in ("prolog", "epilog", "task_prolog"):
        assert os.access(installed / "share" / "larder" / "slurm" / name, os.X_OK)
    slurm = installed / "share" / "larder" / "slurm" / "larder-slurm.example.toml"
    script = installed / "job.sh"
    script.write_text("#BB_LUA larder dataset=images\n")
    environment = subprocess.run(
        [installed / "bin" / "larder-slurm", "--config", slurm, "environment", "7", script], capture_output=True, text=True
    )
    assert environment.stdout.startswith("ok\nLARDER_JOB=slurm-7\n"), environment.stdout


def test_man_pages_and_completion_are_where_man_and_shells_look(installed: pathlib.Path) -> None:
    share = installed / "share"
    found = subprocess.run(
        ["man", "--where", "larder-dataset-add", "larderd"], env={"MANPATH": str(share / "man"), "PATH": os.environ["PATH"]},
        capture_output=True, text=True,
    )  # fmt: skip
    assert found.stdout.split() == [str(share / "man/man1/larder-dataset-add.1"), str(share / "man/man8/larderd.8")]
    loaded = subprocess.run(
        ["bash", "-c", ". /usr/share/bash-completion/bash_completion; _completion_loader larderd; complete -p larderd"],
        env={"XDG_DATA_DIRS": str(share), "HOME": "/nonexistent", "PATH": os.environ["PATH"]},
        capture_output=True, text=True,
    )  # fmt: skip
    assert loaded.stdout == "complete -F _larder larderd\n", loaded.stderr
    fish = subprocess.run(
        ["fish", "--no-config", "-c", "set fish_complete_path $argv[1] $fish_complete_path; complete -C 'larder versi'",
         str(share / "fish/vendor_completions.d")],
        env={"PATH": f"{installed / 'bin'}:{os.environ['PATH']}", "HOME": str(installed)}, capture_output=True, text=True,
    )  # fmt: skip
    assert fish.stdout.startswith("version\t"), fish.stderr
    assert (share / "zsh/site-functions/_larder").read_text().startswith("#compdef larder larderd ")
