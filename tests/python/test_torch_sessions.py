"""When larder.torch opens and ends sessions, and the states that a dataset itself gives."""

from __future__ import annotations

import json
import time
from typing import Any

import larder
import pytest
from epochs import keys_of

torch = pytest.importorskip("torch")
import larder.torch  # noqa: E402


def sessions(daemon: Any) -> int:
    answer = json.loads(daemon.command("--json", "jobs"))
    return sum(job["sessions"] for job in answer["jobs"])


def until_no_session(daemon: Any) -> None:
    while sessions(daemon) > 0:
        time.sleep(0.05)


@pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_closed_data_loader_ends_its_sessions(raw: Any, daemon: Any, num_workers: int, persistent: bool) -> None:
    whole = keys_of(larder.torch.IterableDataset(**raw.options(batch_size=8)))
    dataset = larder.torch.IterableDataset(**raw.options(batch_size=8, memory_budget="4MiB"))
    with larder.torch.DataLoader(dataset, num_workers=num_workers, persistent_workers=persistent) as loader:
        loop = iter(loader)
        begun = keys_of([next(loop), next(loop)])
        assert sessions(daemon) > 0
    until_no_session(daemon)
    with pytest.raises(RuntimeError, match="close"):
        next(loop)
    loader.load_state_dict(loader.state_dict())
    assert begun + keys_of(loader) == whole
    loader.close()
    until_no_session(daemon)


def test_closed_map_dataset_ends_its_session(raw: Any, daemon: Any) -> None:
    with larder.torch.MapDataset(**raw.options()) as dataset:
        first = dataset[0]
        assert sessions(daemon) == 1
    until_no_session(daemon)
    assert dataset[0] == first
    dataset.close()


def test_iterable_dataset_state_is_its_position(raw: Any, daemon: Any) -> None:
    with larder.torch.IterableDataset(**raw.options(batch_size=8, seed=3)) as dataset:
        beginning = dataset.state_dict()
        whole = keys_of(dataset)
        dataset.load_state_dict(beginning)
        assert dataset.state_dict() == beginning
        loop = iter(dataset)
        begun = keys_of([next(loop) for _ in range(5)])
        state = dataset.state_dict()
        begun += keys_of([next(loop)])
        later = dataset.state_dict()
    until_no_session(daemon)
    assert dataset.state_dict() == later != state
    with pytest.raises(RuntimeError, match="close"):
        next(loop)
    dataset.load_state_dict(later)
    assert begun + keys_of(dataset) == whole
    dataset.load_state_dict(state)
    assert begun[: 5 * 8] + keys_of(dataset) == whole
    dataset.close()


def test_iterable_dataset_reads_the_next_epoch_in_each_pass(raw: Any) -> None:
    with larder.Loader(**raw.options(batch_size=8, seed=3)) as loader:
        orders = [[sample.key for batch in loader for sample in batch] for _ in range(4)]
    with larder.torch.IterableDataset(**raw.options(batch_size=8, seed=3)) as dataset:
        assert keys_of(dataset) == orders[0]
        ended = dataset.state_dict()
        older = iter(dataset)
        next(older)
        assert keys_of(dataset) == orders[2]
        with pytest.raises(RuntimeError, match="this pass is over"):
            next(older)
        iter(dataset)  # a pass without a batch does not count
        assert keys_of(dataset) == orders[3]
        dataset.load_state_dict(ended)
        assert keys_of(dataset) == orders[1]
        assert keys_of(dataset) == orders[2]


def test_dataset_state_is_refused_after_reads_in_workers(raw: Any) -> None:
    dataset = larder.torch.IterableDataset(**raw.options(batch_size=8))
    before = dataset.state_dict()
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=2)
    next(iter(loader))
    with pytest.raises(RuntimeError, match="larder.torch.DataLoader"):
        dataset.state_dict()
    dataset.set_epoch(0)
    assert dataset.state_dict() == before


def test_pass_that_fails_in_its_first_batch_does_not_count(raw: Any) -> None:
    fails = [True]

    def decode(sample: larder.Sample) -> str:
        if fails:
            raise OSError("not yet")
        return sample.key

    with larder.torch.IterableDataset(**raw.options(batch_size=8), decode=decode) as dataset:
        beginning = dataset.state_dict()
        with pytest.raises(larder.DecodeError, match="not yet"):
            next(iter(dataset))
        assert dataset.state_dict() == beginning
        fails.clear()
        whole = [key for keys in dataset for key in keys]
    with larder.Loader(**raw.options(batch_size=8)) as loader:
        assert whole == [sample.key for batch in loader for sample in batch]
