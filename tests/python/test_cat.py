"""`larder cat` and `larder dataset ls-samples`: what a dataset holds, without a program."""

from __future__ import annotations

import os
import pathlib
import subprocess
from collections.abc import Callable
from typing import Any

from cli_answers import checked
from conftest import Daemon, Data
from format_cases import DATA


def cat(data: Data, *words: object) -> bytes:
    command = [data.daemon.programs / "larder", "--admin-socket", data.daemon.state / "admin.sock", "cat", data.name]
    return subprocess.run([*command, *map(str, words)], stdout=subprocess.PIPE, check=True, timeout=60).stdout


def listed(data: Data, *words: object) -> list[dict[str, Any]]:
    answer = checked("dataset ls-samples", data.daemon.command("--json", "dataset", "ls-samples", data.name, *words))
    assert answer["dataset"] == data.name and answer["sample_count"] == len(data.contents)
    samples: list[dict[str, Any]] = answer["samples"]
    return samples


def test_file_is_printed_by_path_and_by_index(raw: Data) -> None:
    samples = listed(raw, "--count", 1000)
    assert [sample["index"] for sample in samples] == list(range(len(raw.contents)))
    assert {sample["object"]: sample["bytes"] for sample in samples} == {
        key: len(content) for key, content in raw.contents.items()
    }
    for sample in samples[::40]:
        key = sample["object"]
        assert raw.classes[raw.labels[key]] == sample["class"] and sample["label"] == raw.labels[key]
        assert cat(raw, key) == cat(raw, sample["index"]) == raw.contents[key]


def test_fields_of_a_sample_in_a_shard_are_printed(shards: Data) -> None:
    for sample in listed(shards, "--from", 100, "--count", 3):
        about = checked("cat", shards.daemon.command("--json", "cat", shards.name, sample["index"]))
        key = about["key"]
        assert {field["name"]: field["bytes"] for field in about["fields"]} == {
            "jpg": len(shards.contents[key]), "cls": 1, "txt": len(key), "nil": 0,
        }  # fmt: skip
        assert cat(shards, sample["index"], "--field", "txt") == key.encode()
        assert cat(shards, sample["index"]) == shards.contents[key], "the first field"
        archive = (shards.directory / sample["object"]).read_bytes()
        lies = archive[sample["offset"] : sample["offset"] + sample["bytes"]]
        assert shards.contents[key] in lies and f"{key}.jpg".encode() in lies


def test_list_says_what_comes_next(raw: Data) -> None:
    ran = raw.daemon.try_command("dataset", "ls-samples", raw.name, "--from", "207")
    assert (len(ran.stdout.splitlines()), ran.stderr) == (1 + 3, ""), "to the end"
    ran = raw.daemon.try_command("dataset", "ls-samples", raw.name, "--count", "5")
    assert len(ran.stdout.splitlines()) == 1 + 5 and ran.stderr == "5 of 210 samples; the next: --from 5\n"
    assert listed(raw, "--from", 9999) == []


def test_what_is_not_there_is_named(raw: Data, shards: Data) -> None:
    for data, words, says in (
        (raw, ["210"], "has the samples 0 to 209, no 210"),
        (raw, ["ant/nobody.png"], "has no object ant/nobody.png, and it is no index"),
        (raw, ["0", "--field", "jpg"], 'sample 0 has no field "jpg": it has "png"'),
        (shards, ["train-000.tar"], "holds several samples"),
    ):
        ran = data.daemon.try_command("cat", data.name, *words)
        assert (ran.stdout, says in ran.stderr) == ("", True), ran.stderr
        assert ran.returncode == (2 if "several" in says else 4)


def test_name_that_is_no_utf8_is_escaped_in_json_and_in_tables(
    daemon: Daemon, tmp_path: pathlib.Path, add: Callable[..., str]
) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9.bin")).write_bytes(b"coffee")
    (tmp_path / "tea \u00fc.bin").write_bytes(b"tea")
    data = Data(add(tmp_path), daemon, tmp_path, {"1": b"", "2": b""}, {}, [])
    assert {sample["object"] for sample in listed(data)} == {"caf\\xe9.bin", "tea \u00fc.bin"}
    printed = data.daemon.try_command("dataset", "ls-samples", data.name).stdout
    assert "caf\\xe9.bin" in printed and "tea \u00fc.bin" in printed


def test_name_made_of_digits_is_a_path_first(daemon: Daemon, tmp_path: pathlib.Path, add: Callable[..., str]) -> None:
    for name in ("1", "7"):
        (tmp_path / name).write_bytes(b"file " + name.encode())
    data = Data(add(tmp_path), daemon, tmp_path, {}, {}, [])
    assert (cat(data, "1"), cat(data, "7"), cat(data, "0")) == (b"file 1", b"file 7", b"file 1")


def test_cat_reads_through_the_cache(daemon: Daemon, tmp_path: pathlib.Path, add: Callable[..., str]) -> None:
    (tmp_path / "a.bin").write_bytes(b"kept")
    data = Data(add(tmp_path), daemon, tmp_path, {}, {}, [])
    assert cat(data, "a.bin") == b"kept"
    (tmp_path / "a.bin").unlink()
    assert cat(data, "a.bin") == b"kept"


def test_sample_in_a_compressed_block_has_no_size_until_it_is_read(daemon: Daemon, add: Callable[..., str]) -> None:
    name = add(DATA / "mds_zstd")
    answer = checked("dataset ls-samples", daemon.command("--json", "dataset", "ls-samples", name, "--count", "2"))
    assert [sample["bytes"] for sample in answer["samples"]] == [None, None]
    table = daemon.command("dataset", "ls-samples", name, "--count", "1")
    assert table.splitlines()[1].split()[1] == "-"
    about = checked("cat", daemon.command("--json", "cat", name, "1"))
    assert about["index"] == 1 and {"name": "id", "bytes": 8, "encoding": "int"} in about["fields"]


def test_control_characters_of_names_do_not_reach_the_terminal(daemon: Daemon, tmp_path: pathlib.Path) -> None:
    names = [b"esc\x1b]0;title\x07", b"line\nfeed", b"c1 \xc2\x9b31m", b"byte \x9b", "\u00fcber".encode()]
    for name in names:
        (tmp_path / os.fsdecode(name)).write_bytes(b"content")
    daemon.command("dataset", "add", "odd-names", tmp_path)
    try:
        larder = [daemon.programs / "larder", "--admin-socket", daemon.state / "admin.sock"]
        words = [*larder, "dataset", "ls-samples", "odd-names"]
        table = subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout
        shown = {line.split(maxsplit=4)[4].rsplit(maxsplit=1)[0] for line in table.splitlines()[1:]}
        assert shown == {
            rb"esc\x1b]0;title\x07", rb"line\nfeed", rb"c1 \xc2\x9b31m", rb"byte \x9b", "\u00fcber".encode()
        }  # fmt: skip
        refused = subprocess.run([*larder, "cat", "odd-names", "\x1b[31m"], stderr=subprocess.PIPE).stderr
        assert rb"has no object \x1b[31m" in refused
    finally:
        daemon.command("dataset", "rm", "odd-names")


def test_output_that_cannot_be_written_is_an_error(raw: Data) -> None:
    larder = [raw.daemon.programs / "larder", "--admin-socket", raw.daemon.state / "admin.sock"]
    listing = ["dataset", "ls-samples", raw.name]
    for words in (["cat", raw.name, "0"], listing, ["--json", *listing]):
        with open("/dev/full", "wb") as full:
            ran = subprocess.run([*larder, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
        assert (ran.returncode, "standard output" in ran.stderr) == (1, True), ran.stderr


def test_list_does_not_begin_below_zero(raw: Data) -> None:
    ran = raw.daemon.try_command("dataset", "ls-samples", raw.name, "--from", "-1")
    assert (ran.returncode, ran.stdout) == (2, "") and "--from" in ran.stderr
