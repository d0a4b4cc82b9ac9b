"""larder.torch with torch's DataLoader machinery and a real daemon."""

from __future__ import annotations

import collections
import json
import pathlib
from collections.abc import Callable
from typing import Any

import larder
import pytest
from epochs import keys_of

torch = pytest.importorskip("torch")
import larder.torch  # noqa: E402


def decode(sample: larder.Sample) -> tuple[str, Any]:
    return sample.key, torch.frombuffer(bytearray(sample.bytes), dtype=torch.uint8)


def uncollated(samples: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    return samples


def plain_order(data: Any, epoch: int, **options: object) -> list[str]:
    with larder.Loader(**data.options(**options), first_epoch=epoch) as loader:
        return [sample.key for batch in loader for sample in batch]


@pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), (2, False), (2, True), (4, True)])
def test_epochs_are_complete_and_in_order(raw: Any, num_workers: int, persistent: bool) -> None:
    dataset = larder.torch.IterableDataset(**raw.options(batch_size=8, seed=4, memory_budget="4MiB"))
    assert dataset.sample_count == len(raw.contents) and dataset.class_names == raw.classes
    loader = larder.torch.DataLoader(dataset, num_workers=num_workers, persistent_workers=persistent)
    for epoch in range(3):
        assert loader.epoch == epoch and len(loader) == 27
        batches = list(loader)
        assert len(batches) == 27
        assert keys_of(batches) == plain_order(raw, epoch, batch_size=8, seed=4)
        for batch in batches:
            for sample in batch:
                assert sample["png"] == raw.contents[sample["__key__"]]
                assert sample["__label__"] == raw.labels[sample["__key__"]]
    assert loader.epoch == 3
    statistics = loader.statistics()
    assert statistics.samples == 3 * len(raw.contents)
    assert statistics.bytes == 3 * sum(map(len, raw.contents.values()))
    assert statistics.stall_s == loader.stall_s > 0


def test_decode_and_collate_run_in_workers(raw: Any) -> None:
    dataset = larder.torch.IterableDataset(**raw.options(batch_size=16), decode=decode, collate=uncollated)
    loader = larder.torch.DataLoader(dataset, num_workers=2)
    seen = {key: pixels for batch in loader for key, pixels in batch}
    assert seen.keys() == raw.contents.keys()
    for key, pixels in seen.items():
        assert pixels.numpy().tobytes() == raw.contents[key]


def exhausted(samples: list[Any]) -> Any:
    return next(iter([]))


@pytest.mark.parametrize("workers", [0, 2])
def test_collate_cannot_end_the_epoch(raw: Any, workers: int) -> None:
    dataset = larder.torch.IterableDataset(**raw.options(batch_size=16), decode=decode, collate=exhausted)
    with larder.torch.DataLoader(dataset, num_workers=workers) as loader:
        with pytest.raises(RuntimeError, match="collate raised StopIteration"):
            next(iter(loader))


def test_decoded_values_are_collated_like_torch(raw: Any) -> None:
    dataset = larder.torch.IterableDataset(
        **raw.options(batch_size=10), decode=lambda sample: (torch.full((2, 3), len(sample.bytes)), sample.label)
    )
    sizes, labels = next(iter(larder.torch.DataLoader(dataset)))
    assert sizes.shape == (10, 2, 3) and labels.shape == (10,) and labels.dtype == torch.int64


@pytest.mark.parametrize("name", ["raw", "shards"])
@pytest.mark.parametrize("first_workers", [0, 3])
@pytest.mark.parametrize("then_workers", [0, 2])
def test_state_is_exact_while_workers_are_ahead(
    request: pytest.FixtureRequest, name: str, first_workers: int, then_workers: int
) -> None:
    data = request.getfixturevalue(name)

    def make(num_workers: int, batch_size: int) -> larder.torch.DataLoader:
        dataset = larder.torch.IterableDataset(**data.options(batch_size=batch_size, seed=6, memory_budget="8MiB"))
        return larder.torch.DataLoader(dataset, num_workers=num_workers)

    loader = make(first_workers, 6)
    keys_of(loader)  # reads an epoch, so that the state belongs to a later one
    seen: list[str] = []
    iterator = iter(loader)
    for _ in range(7):
        seen += keys_of([next(iterator)])
    state = json.loads(json.dumps(loader.state_dict()))
    del iterator

    resumed = make(then_workers, 10)
    resumed.load_state_dict(state)
    assert resumed.epoch == 1
    length = len(resumed)
    rest = list(resumed)
    assert len(rest) == length
    assert collections.Counter(seen + keys_of(rest)) == dict.fromkeys(data.contents, 1)
    assert sorted(keys_of(resumed)) == sorted(data.contents)  # and the next epoch is whole
    assert resumed.epoch == 3


@pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), (2, False), (2, True)])
@pytest.mark.parametrize("left_after", [1, 7, 27])
def test_loop_left_early_ends_its_epoch(raw: Any, num_workers: int, persistent: bool, left_after: int) -> None:
    dataset = larder.torch.IterableDataset(**raw.options(batch_size=8, seed=2, memory_budget="4MiB"))
    loader = larder.torch.DataLoader(dataset, num_workers=num_workers, persistent_workers=persistent)
    for epoch in range(2):
        for count, batch in enumerate(loader, start=1):
            if count == left_after:
                break
        assert loader.epoch == epoch and count == left_after
    assert keys_of(loader) == plain_order(raw, 2, batch_size=8, seed=2)


@pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_pass_after_a_resumed_one_is_the_next_epoch(raw: Any, num_workers: int, persistent: bool) -> None:
    def make() -> larder.torch.DataLoader:
        dataset = larder.torch.IterableDataset(**raw.options(batch_size=8, seed=2, memory_budget="4MiB"))
        return larder.torch.DataLoader(dataset, num_workers=num_workers, persistent_workers=persistent)

    loader = make()
    walk = iter(loader)
    begun = [next(walk) for _ in range(27)]
    for taken in (1, 26, 27):
        with make() as other:
            other_walk = iter(other)
            for _ in range(taken):
                next(other_walk)
            loader.load_state_dict(other.state_dict())
        assert len(loader) == 27 - taken
        assert keys_of(begun[:taken]) + keys_of(loader) == plain_order(raw, 0, batch_size=8, seed=2)
        assert keys_of(loader) == plain_order(raw, 1, batch_size=8, seed=2)
    loader.close()


def test_pass_without_a_batch_does_not_count(raw: Any) -> None:
    loader = larder.torch.DataLoader(larder.torch.IterableDataset(**raw.options(batch_size=8)), num_workers=2)
    iter(loader)
    assert keys_of(loader) == plain_order(raw, 0, batch_size=8)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_iterator_continues_until_next_pass_and_stays_exhausted(raw: Any, num_workers: int) -> None:
    loader = larder.torch.DataLoader(larder.torch.IterableDataset(**raw.options(batch_size=8)), num_workers=num_workers)
    kept = iter(loader)
    begun = keys_of([next(kept), next(kept)])
    for batch in kept:
        begun += keys_of([batch])
        break
    assert begun + keys_of(kept) == plain_order(raw, 0, batch_size=8)
    for end in (loader.__iter__, lambda: loader.start_epoch(1), loader.close):
        older = iter(loader)
        next(older)
        newer = end()
        with pytest.raises(RuntimeError, match="this pass is over: another one began"):
            next(older)
        assert next(kept, None) is None
        del newer


def test_samples_without_a_label_are_collated(add: Callable[..., str], daemon: Any, tmp_path: pathlib.Path) -> None:
    for i in range(10):
        (tmp_path / f"{i}.bin").write_bytes(bytes([i]))
    name = add(tmp_path, "--format", "raw")
    dataset = larder.torch.IterableDataset(
        name, socket=daemon.socket, batch_size=4, shuffle=False, decode=lambda s: (torch.tensor(s.bytes[0]), s.label)
    )
    batches = list(larder.torch.DataLoader(dataset, num_workers=2))
    assert [values.tolist() for values, _ in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [labels for _, labels in batches] == [[None] * 4, [None] * 4, [None] * 2]
    mapped = torch.utils.data.DataLoader(
        larder.torch.MapDataset(name, socket=daemon.socket), batch_size=5, collate_fn=larder.torch.collate
    )
    assert [batch["__label__"] for batch in mapped] == [[None] * 5] * 2


def test_collate_equals_torch_except_for_missing_values() -> None:
    point = collections.namedtuple("point", "x y")
    numbers, texts = larder.torch.collate([(1, "a"), (2, "b")])
    assert numbers.tolist() == [1, 2] and texts == ("a", "b")
    assert larder.torch.collate([{"a": [1, None]}, {"a": [2, 3]}])["a"][0].tolist() == [1, 2]
    assert larder.torch.collate([{"a": [1, None]}, {"a": [2, 3]}])["a"][1] == [None, 3]
    points = larder.torch.collate([point(1, None), point(2, None)])
    assert type(points) is point and points.x.tolist() == [1, 2] and points.y == [None, None]
    assert larder.torch.collate([None, None]) == [None, None]
    assert larder.torch.collate([(1, None), (2,)]) == [(1, None), (2,)]


def test_two_loaders_of_one_dataset_are_independent(raw: Any) -> None:
    dataset = larder.torch.IterableDataset(**raw.options(batch_size=8))
    first, second = (larder.torch.DataLoader(dataset, num_workers=1) for _ in range(2))
    second.start_epoch(5)
    mixed = [(keys_of([a]), keys_of([b])) for a, b in zip(first, second)]
    assert [key for a, _ in mixed for key in a] == plain_order(raw, 0, batch_size=8)
    assert [key for _, b in mixed for key in b] == plain_order(raw, 5, batch_size=8)


def test_ranks_come_from_torch_distributed(raw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    seen = collections.Counter()
    states = []
    for rank in range(2):
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)
        dataset = larder.torch.IterableDataset(**raw.options(batch_size=8, memory_budget="4MiB"))
        loader = larder.torch.DataLoader(dataset, num_workers=2)
        for count, batch in enumerate(loader):
            seen.update(keys_of([batch]))
            if count == 4:
                break
        states.append(loader.state_dict())
    assert states[0] == states[1] and len(seen) == 2 * 5 * 8
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: False)
    alone = larder.torch.DataLoader(larder.torch.IterableDataset(**raw.options(batch_size=8)), num_workers=3)
    alone.load_state_dict(states[0])
    seen.update(keys_of(alone))
    assert seen == dict.fromkeys(raw.contents, 1)


def test_spawned_workers_read_every_epoch(raw: Any) -> None:
    dataset = larder.torch.IterableDataset(**raw.options(batch_size=32))
    loader = larder.torch.DataLoader(
        dataset, num_workers=2, persistent_workers=True, multiprocessing_context="spawn"
    )
    for epoch in range(2):
        assert keys_of(loader) == plain_order(raw, epoch, batch_size=32)


def test_plain_torch_dataloader_reads_every_epoch(raw: Any) -> None:
    dataset = larder.torch.IterableDataset(**raw.options(batch_size=8))
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=2)
    assert len(loader) == 27
    for epoch in (0, 1, 2):
        assert keys_of(loader) == plain_order(raw, epoch, batch_size=8)
    dataset.set_epoch(3)
    assert keys_of(loader) == plain_order(raw, 3, batch_size=8)
    next(iter(loader))
    dataset.set_epoch(0)
    next(iter(loader))
    assert keys_of(loader) == plain_order(raw, 1, batch_size=8)
    with larder.Loader(**raw.options(batch_size=8), first_epoch=2) as plain:
        walk = iter(plain)
        begun = [sample.key for _ in range(4) for sample in next(walk)]
        dataset.load_state_dict(plain.state_dict())
    assert begun + keys_of(loader) == plain_order(raw, 2, batch_size=8)
    assert keys_of(loader) == plain_order(raw, 3, batch_size=8)


def test_skipped_samples_leave_no_empty_batches(daemon: Any, make_raw: Callable[..., Any]) -> None:
    data = make_raw(daemon, per_class=6)
    (data.directory / "ant/0000.png").unlink()
    dataset = larder.torch.IterableDataset(**data.options(batch_size=1, skip_failed=True))
    left = sorted(set(data.contents) - {"ant/0000.png"})
    for num_workers in (0, 2):
        loader = larder.torch.DataLoader(dataset, num_workers=num_workers)
        for epoch in range(2):
            assert loader.epoch == epoch
            assert sorted(keys_of(loader)) == left
    assert sorted(keys_of(torch.utils.data.DataLoader(dataset, batch_size=None))) == left


def test_errors_in_workers_are_raised(daemon: Any, make_raw: Callable[..., Any]) -> None:
    data = make_raw(daemon, per_class=4)
    (data.directory / "bee/0001.png").write_bytes(b"changed")
    dataset = larder.torch.IterableDataset(**data.options(batch_size=2))
    with pytest.raises(larder.ObjectChanged, match="bee/0001.png"):
        keys_of(larder.torch.DataLoader(dataset, num_workers=2))


@pytest.mark.parametrize("wrong", ["batch_size", "sampler", "collate_fn", "drop_last"])
def test_data_loader_refuses_options_of_the_dataset(raw: Any, wrong: str) -> None:
    dataset = larder.torch.IterableDataset(**raw.options())
    with pytest.raises(larder.InvalidArgument, match=wrong):
        larder.torch.DataLoader(dataset, **{wrong: 2})


def test_invalid_arguments_are_named() -> None:
    with pytest.raises(larder.InvalidArgument, match="give both rank and world_size, or neither"):
        larder.torch.IterableDataset("pets", rank=1)
    with pytest.raises(larder.InvalidArgument, match="rank 3"):
        larder.torch.IterableDataset("pets", rank=3, world_size=2)
    with pytest.raises(larder.InvalidArgument, match="IterableDataset"):
        larder.torch.DataLoader([1, 2, 3])


def test_workers_of_one_pass_agree_on_its_number() -> None:
    board = larder.torch.shared.Board()
    assert [board.begin_pass(worker, key=7) for worker in (0, 2)] == [0, 0]  # worker 1 ended before the pass began
    assert [board.begin_pass(worker, key=8) for worker in (1, 2, 0)] == [1, 1, 1]
    assert [board.begin_pass(worker, key=8) for worker in (2, 0, 1)] == [2, 2, 2]  # persistent workers keep their key
    assert [board.begin_pass(worker, key=2**63 - 1) for worker in (0, 1)] == [3, 3]
    assert board.passes == 4
    board.state = b"another beginning"
    assert board.passes == 0 and board.begin_pass(1, key=8) == 0


# --- by index


@pytest.mark.parametrize("num_workers", [0, 2])
def test_map_dataset_gives_every_sample(raw: Any, num_workers: int) -> None:
    dataset = larder.torch.MapDataset(**raw.options())
    assert len(dataset) == len(raw.contents) and dataset.class_names == raw.classes
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=16, shuffle=True, num_workers=num_workers, collate_fn=lambda samples: samples
    )
    for _ in range(2):
        assert {s["__key__"]: s["png"] for batch in loader for s in batch} == raw.contents


@pytest.mark.parametrize("num_workers", [0, 2])
def test_map_dataset_is_read_by_batches(raw: Any, num_workers: int) -> None:
    dataset = larder.torch.MapDataset(**raw.options(), decode=decode)
    sampler = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(dataset), 32, drop_last=False)
    loader = torch.utils.data.DataLoader(
        dataset, sampler=sampler, batch_size=None, num_workers=num_workers, collate_fn=uncollated
    )
    sizes = [len(batch) for batch in loader]
    assert sizes == [32] * 6 + [18]
    assert sorted(key for batch in loader for key, _ in batch) == sorted(raw.contents)


def test_map_dataset_supports_getitems(raw: Any) -> None:
    dataset = larder.torch.MapDataset(**raw.options())
    order = sorted(raw.contents)
    assert [sample["__key__"] for sample in dataset.__getitems__([4, 2, 9])] == [order[i] for i in (4, 2, 9)]
    assert dataset[5]["png"] == raw.contents[order[5]]
    assert dataset.statistics().samples == 4
    with pytest.raises(IndexError):
        dataset[len(order)]
