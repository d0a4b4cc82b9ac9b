"""Datasets written by each format's own writer and read back through a real daemon: the samples are those the writer
was given.

The files are in tests/data/formats. generate.py there made them and knows their contents.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import warnings
from collections.abc import Callable
from typing import Any

import larder
import numpy
import pytest
from format_cases import BLOCKS, CASES, DATA, MODES, check, generate, same, with_sorted_keys
from servers import S3, Nginx


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("case", CASES)
def test_samples_are_read_back_as_written(daemon: Any, add: Callable[..., str], case: str, block: str) -> None:
    name = add(DATA / case, "--block", block)
    options: dict[str, Any] = {"dataset": name, "socket": daemon.socket}
    assert ["format", CASES[case][0]] in [line.split() for line in daemon.command("dataset", "info", name).splitlines()]
    for mode in MODES:
        with larder.Loader(**options, **mode, batch_size=7, decode=larder.decode) as loader:
            for _ in range(2):  # from the remote, then from the cache
                seen = collections.Counter(check(value, case) for batch in loader for value in batch)
                assert seen == dict.fromkeys(range(generate.SAMPLES), 1)
    with larder.Dataset(**options, decode=larder.decode) as dataset:
        assert len(dataset) == generate.SAMPLES
        backwards = dataset.fetch(range(len(dataset) - 1, -1, -1))
        assert sorted(check(value, case) for value in backwards) == list(range(generate.SAMPLES))
        assert same(with_sorted_keys(dataset[5]), with_sorted_keys(backwards[-6]))


names = itertools.count()


def documents() -> list[numpy.ndarray]:
    return [generate.document(i) for i in range(generate.SAMPLES)]


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize(
    ("case", "dtype"), [("megatron_int32", "int32"), ("megatron_uint16", "uint16"), ("litdata_tokens", "int32")]
)
def test_documents_are_arrays_of_tokens_without_a_copy(
    daemon: Any, add: Callable[..., str], case: str, dtype: str, block: str
) -> None:
    name = add(DATA / case, "--block", block)
    expected = sorted(document.astype(dtype).tobytes() for document in documents())
    for mode in MODES:
        seen = []
        with larder.Loader(name, socket=daemon.socket, batch_size=7, **mode) as loader:
            for batch in loader:
                for sample in batch:
                    tokens = sample.numpy()
                    assert tokens.dtype == dtype and not tokens.flags.owndata and not tokens.flags.writeable
                    assert tokens.ctypes.data == numpy.frombuffer(sample["tokens"], "uint8").ctypes.data
                    seen.append(tokens.tobytes())
                    decoded = larder.decode(sample)
                    assert decoded.dtype == dtype and (decoded == tokens).all() and decoded.flags.owndata
        assert sorted(seen) == expected


@pytest.mark.parametrize("tokens", [1, 100, 129])
@pytest.mark.parametrize(("case", "dtype"), [("megatron_int32", "int32"), ("litdata_tokens", "int32")])
def test_windows_are_consecutive_parts_of_each_files_tokens(
    daemon: Any, add: Callable[..., str], case: str, dtype: str, tokens: int
) -> None:
    name = add(DATA / case, "--tokens-per-sample", str(tokens), "--block", "2KiB")
    assert f"samples of {tokens} tokens" in daemon.command("dataset", "info", name)
    parts = [documents()[:30], documents()[30:]] if case.startswith("megatron") else None
    expected = []
    if parts is None:
        # The documents of each chunk, as its index.json counts them.
        left = iter(documents())
        chunks = json.loads((DATA / case / "index.json").read_text())["chunks"]
        parts = [list(itertools.islice(left, chunk["chunk_size"])) for chunk in chunks]
    for part in parts:
        stream = numpy.concatenate(part).astype(dtype)
        expected += [stream[at : at + tokens].tobytes() for at in range(0, len(stream) - tokens + 1, tokens)]
    with larder.Loader(name, socket=daemon.socket, batch_size=16, shuffle=False) as loader:
        got = [sample.numpy().tobytes() for batch in loader for sample in batch]
    assert got == expected
    for mode in MODES:
        with larder.Loader(name, socket=daemon.socket, batch_size=16, **mode) as loader:
            for _ in range(2):  # from the remote, then from the cache
                got = [sample.numpy().tobytes() for batch in loader for sample in batch]
                assert sorted(got) == sorted(expected)
                assert (got == expected) is not mode["shuffle"]


def test_columns_have_fields_encodings_and_types(daemon: Any, add: Callable[..., str]) -> None:
    name = add(DATA / "mds")
    with larder.Dataset(name, socket=daemon.socket) as dataset:
        sample = dataset[0]
        assert sample.encodings["id"] == "int" and sample.encodings["fixed"] == "ndarray:int32:2,3"
        assert sample.numpy("id").dtype == "int64" and sample.numpy("fixed").dtype == "int32"
        assert sample.numpy("any").dtype == "uint8" and sample.structure is None
        assert sample.key == "shard.00000.mds"
    name = add(DATA / "litdata")
    with larder.Dataset(name, socket=daemon.socket) as dataset:
        sample = dataset[0]
        assert list(sample.fields)[:7] == ["id", "score", "good", "name", "raw", "pair.0", "pair.1.0"]
        assert sample.numpy("vector").dtype == "int64" and sample.structure is not None


def test_tensor_shares_memory_with_sample(daemon: Any, add: Callable[..., str]) -> None:
    import larder.torch
    import torch

    name = add(DATA / "megatron_int32", "--tokens-per-sample", "64", "--block", "2KiB")
    with larder.Loader(name, socket=daemon.socket, batch_size=4) as loader, warnings.catch_warnings():
        warnings.simplefilter("error")
        for batch in loader:
            for sample in batch:
                tokens = larder.torch.tensor(sample)
                assert tokens.dtype == torch.int32 and tokens.shape == (64,)
                assert tokens.data_ptr() == sample.numpy().ctypes.data
                assert (tokens.numpy() == sample.numpy()).all()


@pytest.mark.parametrize("case", ["mds_zstd", "litdata", "tfrecord"])
def test_dataloader_workers_decode(daemon: Any, add: Callable[..., str], case: str) -> None:
    import larder.torch

    name = add(DATA / case, "--block", "2KiB")
    # Decodes in the worker, because torch converts arrays to tensors on their way to the main process.
    def decode(sample: larder.Sample) -> int:
        return check(larder.decode(sample), case)

    dataset = larder.torch.IterableDataset(name, socket=daemon.socket, batch_size=8, decode=decode)
    loader = larder.torch.DataLoader(dataset, num_workers=2)
    for _ in range(2):
        seen = collections.Counter(int(number) for batch in loader for number in batch)
        assert seen == dict.fromkeys(range(generate.SAMPLES), 1)


def test_compressed_dataset_continues_after_daemon_is_killed(
    start_daemon: Callable[..., Any], tmp_path: pathlib.Path
) -> None:
    daemon = start_daemon()
    daemon.command("dataset", "add", "z", f"file://{DATA / 'mds_zstd'}", "--quota-disk", "16MiB")
    with larder.Loader("z", socket=daemon.socket, batch_size=1, decode=larder.decode, seed=5) as loader:
        seen = []
        for [value] in loader:
            seen.append(check(value, "mds_zstd"))
            if len(seen) % 25 == 0:
                daemon.end(signal.SIGKILL)
                daemon.start()
        assert sorted(seen) == list(range(generate.SAMPLES))
        assert loader.statistics().reconnects > 0
    daemon.end()


def test_tensors_of_old_and_new_litdata_are_decoded() -> None:
    values = numpy.arange(6, dtype="int16").reshape(2, 3)
    decode = larder.litdata.decoder("tensor", "")
    assert decode is not None
    for order in "<>":
        header = struct.pack(f"{order}4I", 13, 2, 2, 3)
        assert same(decode(memoryview(header + values.tobytes())), values)
        with pytest.raises(larder.Corrupt):
            decode(memoryview(header + values.tobytes()[1:]))


def test_truncated_or_unknown_json_leaves_are_errors() -> None:
    decode = larder.litdata_json.decode
    assert decode(memoryview(b'{"a": [1]}')) == {"a": [1]}
    good = b"\x05\x01\x00\x00\x00\x01\x00\x00\x00k\x08" + bytes(8)
    assert decode(memoryview(good)) == {"k": 0}
    for bad in [good[:length] for length in range(1, len(good))] + [
        good + b"x", b"\x01\xff\xff\xff\xff", b"\x06\xff\xff\xff\xff\x00\x00\x00\x00", b"\x05\x01\x00\x00\x00\x00\x00\x00\x00\x0c",
    ]:  # fmt: skip
        with pytest.raises(larder.Corrupt):
            decode(memoryview(bad))


def test_record_without_an_example_is_corrupt_or_empty() -> None:
    for record in (b"\x0a\xff", b"\x0a\x05abc", b"\x08\x80", b"\x0b", b"\x0a\x02\x08\x01"):
        with contextlib.suppress(larder.Corrupt):
            assert larder.tfrecord.features(memoryview(record)) == {}
    with pytest.raises(larder.Corrupt):
        larder.tfrecord.features(memoryview(b"\x0a\x05abc"))


# --- over the network

WEB_PATHS = {
    "mds": "/mds",
    "mds_zstd": "/mds_zstd",
    "litdata": "/litdata",
    "litdata_new_zstd": "/litdata_new_zstd",
    "litdata_new_frames": "/litdata_new_frames",
    "tfrecord": "/tfrecord/train-{00000..00002}-of-00003.tfrecord",
}


@pytest.fixture(scope="module")
def bucket(s3: S3) -> str:
    s3.client.create_bucket("formats")
    s3.client.upload("formats", DATA, "data/")
    return "formats"


@pytest.mark.parametrize("case", WEB_PATHS)
def test_samples_are_read_back_over_http(
    daemon: Any, serve_directory: Callable[..., Nginx], add_url: Callable[..., str], case: str
) -> None:
    name = add_url(serve_directory(DATA).http + WEB_PATHS[case], "--block", "4KiB")
    with larder.Loader(name, socket=daemon.socket, batch_size=7, decode=larder.decode) as loader:
        for _ in range(2):
            seen = collections.Counter(check(value, case) for batch in loader for value in batch)
            assert seen == dict.fromkeys(range(generate.SAMPLES), 1)


@pytest.mark.parametrize("case", ["mds", "mds_zstd", "litdata", "tfrecord"])
def test_samples_are_read_back_over_http_without_ranges(
    daemon: Any, serve_directory: Callable[..., Nginx], add_url: Callable[..., str], case: str
) -> None:
    name = add_url(serve_directory(DATA, "--no-ranges").http + WEB_PATHS[case], "--block", "object")
    with larder.Loader(name, socket=daemon.socket, batch_size=7, decode=larder.decode) as loader:
        for _ in range(2):
            seen = collections.Counter(check(value, case) for batch in loader for value in batch)
            assert seen == dict.fromkeys(range(generate.SAMPLES), 1)


def test_blocks_within_files_need_ranges(
    daemon: Any, serve_directory: Callable[..., Nginx], tmp_path: pathlib.Path
) -> None:
    daemon.command("dataset", "pack", DATA / "mds", tmp_path / "packed", "--format", "larder")
    (tmp_path / "packed" / "list.txt").write_text("shard-000000.larder\n")
    for url in (
        serve_directory(tmp_path / "packed", "--no-ranges").http + "/list.txt",
        serve_directory(DATA, "--no-ranges").http + "/litdata_new_frames",
    ):
        ran = daemon.try_command("dataset", "add", f"formats{next(names)}", url, "--block", "object")
        assert ran.returncode != 0 and "parts of them" in ran.stdout + ran.stderr


@pytest.fixture(scope="module")
def s3_daemon(start_daemon: Callable[..., Any], s3: S3) -> Any:
    os.environ.update(s3.environment())
    try:
        return start_daemon()
    finally:
        for key in s3.environment():
            del os.environ[key]


@pytest.mark.parametrize("case", [*CASES, "megatron_int32"])
def test_samples_are_read_back_from_s3(s3_daemon: Any, s3: S3, bucket: str, case: str) -> None:
    name = f"formats{next(names)}"
    s3_daemon.command(
        "dataset", "add", name, f"s3://{bucket}/data/{case}", "--endpoint", s3.endpoint, "--block", "4KiB"
    )  # fmt: skip
    with larder.Loader(name, socket=s3_daemon.socket, batch_size=7, decode=larder.decode) as loader:
        values = [value for batch in loader for value in batch]
    if case in CASES:
        assert sorted(check(value, case) for value in values) == list(range(generate.SAMPLES))
    else:
        assert sorted(value.tobytes() for value in values) == sorted(document.tobytes() for document in documents())
    s3_daemon.command("dataset", "rm", name)


# --- refused and damaged data


def refusal(daemon: Any, directory: pathlib.Path, *options: str) -> str:
    ran = subprocess.run(
        daemon._command("dataset", "add", f"formats{next(names)}", f"file://{directory}", *options),
        capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode != 0
    return ran.stdout + ran.stderr


def copy(tmp_path: pathlib.Path, case: str) -> pathlib.Path:
    return pathlib.Path(shutil.copytree(DATA / case, tmp_path / case))


def test_pickled_columns_are_refused_by_name(daemon: Any, tmp_path: pathlib.Path) -> None:
    root = copy(tmp_path, "mds")
    index = root / "index.json"
    index.write_text(index.read_text().replace('"ndarray:float32"', '"pkl"'))
    assert 'column "typed"' in refusal(daemon, root) and "unsafe" in refusal(daemon, root)
    root = copy(tmp_path, "litdata")
    index = root / "index.json"
    index.write_text(index.read_text().replace('"tensor"', '"pickle"'))
    assert 'leaf "matrix"' in refusal(daemon, root)


@pytest.mark.parametrize("case", ["mds_zstd", "litdata_zstd"])
def test_damaged_compressed_file_is_named_in_one_error(
    daemon: Any, add: Callable[..., str], tmp_path: pathlib.Path, case: str
) -> None:
    root = copy(tmp_path, case)
    victim = sorted(path for path in root.iterdir() if path.name != "index.json")[1]
    damaged = bytearray(victim.read_bytes())
    damaged[7:10] = b"\xff\xff\xff"  # the header of the first block
    victim.write_bytes(damaged)
    name = add(root)
    with larder.Loader(name, socket=daemon.socket, batch_size=5) as loader, pytest.raises(larder.Corrupt) as raised:
        for _ in loader:
            pass
    assert victim.name in str(raised.value) and "decompressed" in str(raised.value)
    with larder.Loader(name, socket=daemon.socket, batch_size=5, skip_failed=True) as loader:
        count = sum(len(batch) for batch in loader)
        assert 0 < count < generate.SAMPLES and loader.statistics().skipped_samples == generate.SAMPLES - count


def test_decompression_bomb_is_refused(daemon: Any, tmp_path: pathlib.Path) -> None:
    root = copy(tmp_path, "mds_zstd")
    index = root / "index.json"
    changed = json.loads(index.read_text())
    changed["shards"][2]["raw_data"]["bytes"] = 1 << 40
    index.write_text(json.dumps(changed))
    assert "shard.00002.mds.zstd" in refusal(daemon, root)


def test_array_record_that_is_not_read_is_refused_by_name(daemon: Any, tmp_path: pathlib.Path) -> None:
    says = refusal(daemon, DATA / "array_record_brotli")
    assert "train.array_record-00000-of-00002: at offset" in says and "compressed with brotli" in says
    root = copy(tmp_path, "array_record_groups")
    victim = root / "train.array_record-00001-of-00002"
    good = victim.read_bytes()
    for bad in (good[:65536], good[:-1], good[:65536] + bytes(65536)):
        victim.write_bytes(bad)
        assert "train.array_record-00001-of-00002: at offset" in refusal(daemon, root)


def test_damaged_group_of_records_is_refused_when_read(
    daemon: Any, add: Callable[..., str], tmp_path: pathlib.Path
) -> None:
    root = copy(tmp_path, "array_record_groups")
    victim = root / "train.array_record-00000-of-00002"
    data = bytearray(victim.read_bytes())
    data[64 + 40 + 3] ^= 0xFF  # where the compressed sizes of the first group's records begin
    victim.write_bytes(data)
    name = add(root)
    with larder.Loader(name, socket=daemon.socket, batch_size=5, decode=larder.decode) as loader:
        with pytest.raises(larder.Error, match="train.array_record-00000-of-00002"):
            list(loader)
    with larder.Loader(name, socket=daemon.socket, batch_size=5, skip_failed=True) as loader:
        assert sum(len(batch) for batch in loader) == generate.SAMPLES - 7
        assert loader.statistics().skipped_samples == 7


def test_damaged_frame_table_is_refused_with_file_and_offset(daemon: Any, tmp_path: pathlib.Path) -> None:
    root = copy(tmp_path, "litdata_new_frames")
    victim = root / "chunk-0-1.bin"
    good = victim.read_bytes()
    for at in (3, 12, 20, 24 + 7, len(good)):  # the magic, the counts, an offset, the end
        victim.write_bytes(good[:at] + b"\xff" + good[at + 1 :])
        says = refusal(daemon, root)
        assert "chunk-0-1.bin: at offset" in says, at


def test_damaged_record_is_found_by_its_checksum(
    daemon: Any, add: Callable[..., str], tmp_path: pathlib.Path
) -> None:
    root = copy(tmp_path, "tfrecord")
    victim = root / "train-00001-of-00003.tfrecord"
    damaged = bytearray(victim.read_bytes())
    damaged[40] ^= 1
    victim.write_bytes(damaged)
    name = add(root)
    with larder.Loader(name, socket=daemon.socket) as loader, pytest.raises(larder.Corrupt) as raised:
        for _ in loader:
            pass
    assert victim.name in str(raised.value) and "checksum" in str(raised.value)
    with larder.Loader(name, socket=daemon.socket, skip_failed=True) as loader:
        assert sum(len(batch) for batch in loader) == generate.SAMPLES - 1


def test_damaged_indexes_are_refused_with_their_file(daemon: Any, tmp_path: pathlib.Path) -> None:
    root = copy(tmp_path, "megatron_int32")
    index = root / "part1.idx"
    index.write_bytes(index.read_bytes()[:-9])
    assert "part1.idx" in refusal(daemon, root)
    (root / "part1.idx").unlink()
    assert "part1.bin" in refusal(daemon, root, "--format", "megatron")
    root = copy(tmp_path, "mds")
    shard = root / "shard.00001.mds"
    shard.write_bytes(shard.read_bytes()[:-1])
    assert "shard.00001.mds" in refusal(daemon, root)
    for compression in ("gzip", "zlib"):
        refused = refusal(daemon, DATA / f"tfrecord_tensorflow_{compression}")
        assert "train-00000-of-00003.tfrecord" in refused and f"it is compressed with {compression}" in refused
    assert "tokens" in refusal(daemon, DATA / "mds", "--tokens-per-sample", "8")


def test_given_format_overrides_detection(daemon: Any, add: Callable[..., str]) -> None:
    name = add(DATA / "mds", "--format", "raw")
    with larder.Dataset(name, socket=daemon.socket) as dataset:
        assert dataset[0].key == "index.json"
