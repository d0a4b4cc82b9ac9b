"""A loader's behaviour when its `decode` raises."""

from __future__ import annotations

import collections
import itertools
import pathlib
import threading
from typing import Any

import larder.torch
import pytest
import torch
from epochs import keys_of


def undecodable(sample: larder.Sample) -> str:
    if sample.key in ("bee/0003.png", "cat/0004.png"):
        raise OSError("no image")
    return sample.key


def test_decode_error_names_its_sample_and_loses_nothing(raw: Any) -> None:
    says = rf'sample "(bee/0003|cat/0004).png" \(index \d+\) of dataset "{raw.name}" cannot be decoded: OSError: no im'
    bad = {"bee/0003.png", "cat/0004.png"}
    repaired: set[str] = set()

    def decode(sample: larder.Sample) -> str:
        return sample.key if sample.key in repaired else undecodable(sample)

    with larder.Loader(**raw.options(batch_size=16), decode=decode) as loader:
        walk = iter(loader)
        seen: list[str] = []
        while bad - repaired:
            with pytest.raises(larder.DecodeError, match=says) as raised:
                while True:
                    seen += next(walk)
            assert isinstance(raised.value.__cause__, OSError) and isinstance(raised.value, larder.Error)
            with pytest.raises(larder.DecodeError, match=says):
                next(walk)
            with larder.Loader(**raw.options(batch_size=16)) as resumed:
                resumed.load_state_dict(loader.state_dict())
                rest = keys_of(resumed)
                assert collections.Counter(seen + rest) == dict.fromkeys(raw.contents, 1)
            repaired |= bad & set(rest[:16])
        for batch in walk:
            seen += batch
        assert collections.Counter(seen) == dict.fromkeys(raw.contents, 1)
        assert loader.statistics().decode_errors == 0
    with larder.Dataset(**raw.options(), decode=undecodable) as dataset:
        index = sorted(raw.contents).index("bee/0003.png")
        for ask in (lambda: dataset[index], lambda: dataset.fetch([0, index])):
            with pytest.raises(larder.DecodeError, match=says):
                ask()


def test_pass_after_error_in_first_batch_repeats_the_epoch(raw: Any) -> None:
    with larder.Loader(**raw.options(batch_size=16)) as loader:
        order = keys_of(loader)
    repaired: list[bool] = []

    def decode(sample: larder.Sample) -> str:
        if not repaired:
            raise ValueError("not yet")
        return sample.key

    with larder.Loader(**raw.options(batch_size=16), decode=decode) as loader:
        with pytest.raises(larder.DecodeError, match="not yet"):
            next(iter(loader))
        repaired.append(True)
        assert [key for batch in loader for key in batch] == order


def test_skipped_decode_errors_are_counted(raw: Any) -> None:
    with larder.Loader(**raw.options(batch_size=16), decode=undecodable, decode_errors="skip") as loader:
        for epochs in (1, 2):
            decoded = [key for keys in loader for key in keys]
            assert sorted(decoded) == sorted(set(raw.contents) - {"bee/0003.png", "cat/0004.png"})
            assert loader.statistics().decode_errors == 2 * epochs
    with pytest.raises(larder.InvalidArgument, match="decode_errors is 'ignore'; it must be one of raise, skip"):
        larder.Loader(**raw.options(), decode_errors="ignore")


def labelled(sample: larder.Sample) -> tuple[str, int | None]:
    return undecodable(sample), sample.label


@pytest.mark.parametrize("num_workers", [0, 2])
def test_data_loader_error_names_sample_and_batch_is_retried(raw: Any, num_workers: int) -> None:
    with larder.Loader(**raw.options(batch_size=8, seed=2)) as plain:
        order = keys_of(plain)
    dataset = larder.torch.IterableDataset(**raw.options(batch_size=8, seed=2), decode=labelled)
    loader = larder.torch.DataLoader(dataset, num_workers=num_workers)
    walk = iter(loader)
    says = rf'(?s)sample "(bee/0003|cat/0004).png" \(index \d+\) of dataset "{raw.name}" cannot be decoded: OSError'
    seen: list[str] = []
    with pytest.raises(larder.DecodeError, match=says):
        while True:
            seen += next(walk)[0]
    state = loader.state_dict()
    with pytest.raises(larder.DecodeError, match=says):
        next(walk)
    assert loader.state_dict() == state
    resumed = larder.torch.DataLoader(larder.torch.IterableDataset(**raw.options(batch_size=8, seed=2)))
    resumed.load_state_dict(state)
    assert seen + [sample["__key__"] for batch in resumed for sample in batch] == order


@pytest.mark.parametrize("num_workers", [0, 2])
def test_decode_errors_skipped_in_workers_are_counted(raw: Any, num_workers: int) -> None:
    dataset = larder.torch.IterableDataset(
        **raw.options(batch_size=1, memory_budget="4MiB"), decode=labelled, decode_errors="skip"
    )
    loader = larder.torch.DataLoader(dataset, num_workers=num_workers)
    for epochs in (1, 2):
        keys = [key for keys, _ in loader for key in keys]
        assert sorted(keys) == sorted(set(raw.contents) - {"bee/0003.png", "cat/0004.png"})
        assert loader.statistics().decode_errors == 2 * epochs
    plain = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=num_workers)
    assert len([keys for keys, _ in plain]) == len(raw.contents) - 2


@pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_data_loader_iterator_continues_after_an_error(
    raw: Any, tmp_path: pathlib.Path, num_workers: int, persistent: bool
) -> None:
    with larder.Loader(**raw.options(batch_size=8)) as plain:
        order = keys_of(plain)
    broken = tmp_path / "broken"
    broken.touch()

    def decode(sample: larder.Sample) -> str:
        if sample.key == order[100] and broken.exists():
            raise OSError("no image")
        return sample.key

    dataset = larder.torch.IterableDataset(**raw.options(batch_size=8, memory_budget="4MiB"), decode=decode)
    loader = larder.torch.DataLoader(dataset, num_workers=num_workers, persistent_workers=persistent)
    walk = iter(loader)
    seen: list[str] = []
    with pytest.raises(larder.DecodeError, match="no image"):
        for keys in walk:
            seen += keys
    assert seen == order[:96]
    broken.unlink()
    for keys in walk:
        seen += keys
    assert seen == order and loader.epoch == 1


def test_transform_and_collate_make_the_batches(raw: Any) -> None:
    thread = threading.get_ident()
    calls = []

    def transform(value: tuple[str, bytes]) -> tuple[str, int]:
        calls.append(threading.get_ident())
        return value[0], len(value[1])

    def collate(values: list[tuple[str, int]]) -> dict[str, int]:
        calls.append(threading.get_ident())
        return dict(values)

    sizes = {key: len(content) for key, content in raw.contents.items()}
    options = raw.options(batch_size=16)
    with larder.Loader(**options, decode=lambda s: (s.key, bytes(s.bytes)), transform=transform, collate=collate) as loader:
        batches = list(loader)
    assert [len(batch) for batch in batches] == [16] * 13 + [2]
    assert {key: size for batch in batches for key, size in batch.items()} == sizes
    assert set(calls) == {thread} and len(calls) == len(sizes) + 14
    with larder.Loader(**options, transform=lambda sample: sample.key) as loader:
        assert sorted(key for keys in loader for key in keys) == sorted(sizes), "without decode it gets the sample"
    with larder.Loader(**options, collate=lambda samples: {s.key: bytes(s.bytes) for s in samples}) as loader:
        assert {key: data for batch in loader for key, data in batch.items()} == raw.contents


def test_failing_transform_names_its_sample_and_failing_collate_comes_as_it_is(raw: Any) -> None:
    says = rf'sample "(bee/0003|cat/0004).png" \(index \d+\) of dataset "{raw.name}" cannot be transformed: OSError'
    with larder.Loader(**raw.options(batch_size=16), transform=undecodable) as loader:
        with pytest.raises(larder.DecodeError, match=says):
            list(loader)
    tries = itertools.count()

    def collate(keys: list[str]) -> list[str]:
        if next(tries) % 2 == 0:
            raise KeyError("a shape")
        return keys

    options = raw.options(batch_size=16)
    with larder.Loader(**options, transform=undecodable, collate=collate, decode_errors="skip") as loader:
        batches = iter(loader)
        keys = []
        for _ in range(len(loader)):
            with pytest.raises(KeyError, match="a shape"):
                next(batches)
            keys += next(batches)
        assert sorted(keys) == sorted(set(raw.contents) - {"bee/0003.png", "cat/0004.png"}), "each batch came again"
        assert loader.statistics().decode_errors == 2


def test_collate_cannot_end_the_epoch(raw: Any) -> None:
    def collate(keys: list[str]) -> str:
        return next(iter([]))

    with larder.Loader(**raw.options(batch_size=16), collate=collate) as loader:
        batches = iter(loader)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="collate raised StopIteration"):
                next(batches)


def test_collate_never_gets_an_empty_batch(raw: Any) -> None:
    lengths: list[int] = []

    def collate(keys: list[str]) -> list[str]:
        lengths.append(len(keys))
        return keys

    left = sorted(set(raw.contents) - {"bee/0003.png", "cat/0004.png"})
    options = {"transform": undecodable, "collate": collate, "decode_errors": "skip"}
    with larder.Loader(**raw.options(batch_size=1), **options) as loader:
        for epochs in (1, 2):
            assert sorted(key for keys in loader for key in keys) == left
            assert loader.statistics().decode_errors == 2 * epochs
    with larder.Mixture({raw.name: 1}, batch_size=1, socket=raw.options()["socket"], **options) as mixture:
        assert sorted(key for keys in mixture for key in keys) == left
        assert mixture.statistics().decode_errors == 2
    assert set(lengths) == {1}


def test_iterable_dataset_counts_a_decode_error_once_where_collate_fails(raw: Any) -> None:
    tries = itertools.count()

    def collate(keys: list[str]) -> list[str]:
        if next(tries) % 2 == 0:
            raise KeyError("a shape")
        return keys

    dataset = larder.torch.IterableDataset(
        **raw.options(batch_size=16), decode=undecodable, collate=collate, decode_errors="skip"
    )
    batches = iter(dataset)
    keys: list[str] = []
    for _ in range(len(dataset)):
        with pytest.raises(KeyError, match="a shape"):
            next(batches)
        keys += next(batches)
    assert sorted(keys) == sorted(set(raw.contents) - {"bee/0003.png", "cat/0004.png"})
    assert dataset.statistics().decode_errors == 2
