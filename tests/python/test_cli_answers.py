"""docs/cli-answers.yaml: it describes each command's --json, and what the commands print fits."""

from __future__ import annotations

import json
import pathlib
import subprocess
from typing import Any

import pytest
from cli_answers import DOCUMENT, checked
from conftest import Daemon, Data
from description import Description

# Texts that are no tables, and programs with descriptions of their own.
WITHOUT = {"completion", "man", "job logs"}


@pytest.fixture(scope="module")
def descriptions(repository: pathlib.Path) -> dict[str, Description]:
    return {name: Description(repository / "docs" / "openapi" / f"{name}.yaml") for name in ("larderd", "allocator")}


def commands(larder_bin: pathlib.Path, *words: str) -> set[str]:
    """The commands below the given one that have no commands below them."""
    printed = subprocess.check_output([larder_bin / "larder", "__complete", *words, ""], text=True)
    lines = [line.partition("\t") for line in printed.splitlines()]
    below = [name for name, tab, help_text in lines if tab and help_text]
    if not below:
        return {" ".join(words)}
    return {name for word in below for name in commands(larder_bin, *words, word)}


def test_every_command_is_described_once(larder_bin: pathlib.Path) -> None:
    every = {
        name
        for name in commands(larder_bin)
        if name not in WITHOUT and not name.startswith(("bench", "simulate"))
    }  # fmt: skip
    own, of_api = set(DOCUMENT["commands"]), set(DOCUMENT["same_as_api"])
    assert own | of_api == every and not own & of_api


def test_operations_exist(descriptions: dict[str, Description]) -> None:
    for operations in DOCUMENT["same_as_api"].values():
        for operation in operations:
            api, method, path = operation.split()
            assert (method, path) in descriptions[api].operations(), operation


def test_answers_fit(daemon: Daemon, raw: Data, descriptions: dict[str, Description], tmp_path: pathlib.Path) -> None:
    description = descriptions["larderd"]

    def ask(command: str, *words: object) -> Any:
        printed = daemon.command("--json", *command.split(), *words)
        if command in DOCUMENT["commands"]:
            return checked(command, printed)
        _, method, path = DOCUMENT["same_as_api"][command][0].split()
        response = description.resolved(description.operations()[method, path]["responses"]["200"])
        description.validate(json.loads(printed), response["content"]["application/json"]["schema"])
        return json.loads(printed)

    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.bin").write_bytes(b"x" * 1000)
    assert ask("dataset add", "described", tmp_path / "data")["state"] == "done"
    assert ask("quota set", "described", "--memory", "1MiB")["memory_bytes"] == 1 << 20
    assert ask("dataset warm", "described")["kind"] == "warm"
    for command in ("dataset index", "dataset verify", "dataset info", "quota get"):
        ask(command, "described")
    for command in ("status", "dataset ls", "quota ls", "jobs", "version"):
        ask(command)
    assert ask("top", "--count", "1", "--interval", "0.1")["outages"] == []
    assert ask("dataset pack", tmp_path / "data", tmp_path / "packed")["samples"] == 1
    assert ask("job limit", "described-job", "--rate", "1MB/s", "--ahead")["job"] == "described-job"
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    log = tmp_path / "mount.log"
    assert ask("mount", "described", mounted, "--detach", "--socket", daemon.socket, "--log", log)["directory"] == str(mounted)
    assert ask("unmount", mounted)["directory"] == str(mounted)
    ask("dataset rm", "described")
