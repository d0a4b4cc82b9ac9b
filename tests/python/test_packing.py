"""`larder dataset pack`: in every format, every field of every sample is read back unchanged."""

from __future__ import annotations

import collections
import itertools
import pathlib
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

import larder
import pytest
from format_cases import CASES, DATA, MODES, check, generate
from servers import FaultProxy, Nginx

packed_numbers = itertools.count()


@pytest.fixture
def pack(daemon: Any, tmp_path: pathlib.Path) -> Callable[..., pathlib.Path]:
    """Packs a directory into another, which is removed after the test."""

    def pack_one(source: pathlib.Path, *options: str) -> pathlib.Path:
        packed = tmp_path / f"packed{next(packed_numbers)}"
        daemon.command("dataset", "pack", str(source), str(packed), *options)
        return packed

    return pack_one


PACKINGS = [("--block", "sample"), ("--block", "2KiB", "--compression", "zstd:1"), ("--shard-size", "20KiB")]


# Rows of tables have no bytes that could be packed; test_litdata_rows.py has the refusal.
PACKED = [case for case in CASES if case != "litdata_arrow"]


@pytest.mark.parametrize("packing", PACKINGS, ids=["sample", "zstd", "shards"])
@pytest.mark.parametrize("case", PACKED)
def test_packed_samples_are_read_back_as_written(
    daemon: Any, add: Callable[..., str], pack: Callable[..., pathlib.Path], case: str, packing: tuple[str, ...]
) -> None:
    name = add(pack(DATA / case, "--format", "larder", *packing))
    options: dict[str, Any] = {"dataset": name, "socket": daemon.socket}
    assert ["format", "larder"] in [line.split() for line in daemon.command("dataset", "info", name).splitlines()]
    for mode in MODES:
        with larder.Loader(**options, **mode, batch_size=7, decode=larder.decode) as loader:
            for _ in range(2):
                seen = collections.Counter(check(value, case) for batch in loader for value in batch)
                assert seen == dict.fromkeys(range(generate.SAMPLES), 1)


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize(
    ("case", "dtype"), [("megatron_int32", "int32"), ("megatron_uint16", "uint16"), ("litdata_tokens", "int32")]
)
def test_packed_windows_are_arrays_of_tokens_without_a_copy(
    daemon: Any, add: Callable[..., str], pack: Callable[..., pathlib.Path], case: str, dtype: str, compression: str
) -> None:
    directory = add(DATA / case, "--tokens-per-sample", "33", "--block", "2KiB")
    windows = ["--tokens-per-sample", "33", "--block", "2KiB", "--compression", compression]
    packed = add(pack(DATA / case, "--format", "larder", *windows))
    taken = {}
    for name in (directory, packed):
        with larder.Loader(name, socket=daemon.socket, batch_size=7, seed=4) as loader:
            arrays = [sample.numpy() for batch in loader for sample in batch]
            assert all(array.dtype == dtype and array.shape == (33,) and not array.flags.owndata for array in arrays)
            taken[name] = sorted(array.tobytes() for array in arrays)
    assert taken[packed] == taken[directory]


def test_packing_to_tars_keeps_every_field(
    daemon: Any, add: Callable[..., str], pack: Callable[..., pathlib.Path]
) -> None:
    rows, tars = add(DATA / "mds"), add(pack(DATA / "mds", "--format", "webdataset"))
    fields: dict[str, list[dict[str, bytes]]] = {}
    for name in (rows, tars):
        with larder.Loader(name, socket=daemon.socket, batch_size=7, shuffle=False) as loader:
            fields[name] = [{key: bytes(sample[key]) for key in sample.fields} for batch in loader for sample in batch]
    assert len(fields[tars]) == len(fields[rows]) == generate.SAMPLES
    for row, tar in zip(fields[rows], fields[tars], strict=True):
        assert len(tar) == len(row)
        assert int(tar["id.cls"]) == int.from_bytes(row["id"], "little", signed=True)
        kept = {key.partition(".")[0]: value for key, value in tar.items() if not key.endswith(".cls")}
        assert kept == {key: value for key, value in row.items() if key in kept}


def test_packed_raw_trees_keep_their_labels(
    daemon: Any, add: Callable[..., str], pack: Callable[..., pathlib.Path], tmp_path: pathlib.Path
) -> None:
    for i in range(30):
        path = tmp_path / "tree" / f"class{i % 3}" / f"{i:02}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"text {i}")
    name = add(pack(tmp_path / "tree", "--format", "larder"))
    with larder.Loader(name, socket=daemon.socket, batch_size=7) as loader:
        found = {(bytes(sample["txt"]), bytes(sample["cls"])) for batch in loader for sample in batch}
    assert found == {(f"text {i}".encode(), str(i % 3).encode()) for i in range(30)}


def test_packing_over_http_requests_each_object_once(
    daemon: Any, add: Callable[..., str], serve_directory: Callable[..., Nginx], tmp_path: pathlib.Path
) -> None:
    server = serve_directory(DATA)
    daemon.command(
        "dataset", "pack", f"{server.http}/tfrecord/train-{{00000..00002}}-of-00003.tfrecord", tmp_path / "packed",
        "--format", "larder",
    )  # fmt: skip
    assert sum(one.range == "bytes=0-0" for one in server.requests()) == 3
    name = add(tmp_path / "packed")
    with larder.Loader(name, socket=daemon.socket, decode=larder.decode) as loader:
        assert sorted(check(value, "tfrecord") for batch in loader for value in batch) == list(range(generate.SAMPLES))


@pytest.mark.parametrize("fault", ["stall_before", "stall_body"])
def test_packing_from_a_silent_remote_can_be_interrupted(
    larder_bin: pathlib.Path,
    serve_directory: Callable[..., Nginx],
    fault_proxy: Callable[..., FaultProxy],
    tmp_path: pathlib.Path,
    fault: str,
) -> None:
    proxy = fault_proxy(serve_directory(DATA).port, stall_s=600, probabilities={fault: 1.0})
    shards = f"{proxy.endpoint}/tfrecord/train-{{00000..00002}}-of-00003.tfrecord"
    packing = subprocess.Popen(
        [larder_bin / "larder", "dataset", "pack", shards, tmp_path / "packed", "--format", "larder"],
        stderr=subprocess.PIPE,
        text=True,
    )
    while not proxy.injected().get(fault):
        assert packing.poll() is None
        time.sleep(0.02)
    packing.send_signal(signal.SIGINT)
    assert packing.stderr is not None and packing.stderr.read().endswith("was cancelled\n")
    assert packing.wait() == 1
    assert not (tmp_path / "packed").exists() or list((tmp_path / "packed").iterdir()) == []
