"""When larder.torch opens and ends sessions, and the states that a dataset itself knows."""

from __future__ import annotations

import json
import time
from typing import Any

import larder
import pytest

torch = pytest.importorskip("torch")
import larder.torch  # noqa: E402


def keys_of(batches: Any) -> list[str]:
    return [sample["__key__"] for batch in batches for sample in batch]


def sessions(daemon: Any) -> int:
    answer = json.loads(daemon.command("--json", "jobs"))
    return sum(job["sessions"] for job in answer["jobs"])


def until_no_session(daemon: Any) -> None:
    while sessions(daemon) > 0:
        time.sleep(0.05)


@pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_a_data_loader_is_closed(raw: Any, daemon: Any, num_workers: int, persistent: bool) -> None:
    whole = keys_of(larder.torch.IterableDataset(**raw.options(batch_size=8)))
    dataset = larder.torch.IterableDataset(**raw.options(batch_size=8, memory_budget="4MiB"))
    with larder.torch.DataLoader(dataset, num_workers=num_workers, persistent_workers=persistent) as loader:
        loop = iter(loader)
        begun = keys_of([next(loop), next(loop)])
        assert sessions(daemon) > 0
    until_no_session(daemon)
    assert next(loop, None) is None
    assert begun + keys_of(loader) == whole  # the next loop starts again where this one was
    loader.close()
    until_no_session(daemon)


def test_a_map_dataset_is_closed(raw: Any, daemon: Any) -> None:
    with larder.torch.MapDataset(**raw.options()) as dataset:
        first = dataset[0]
        assert sessions(daemon) == 1
    until_no_session(daemon)
    assert dataset[0] == first
    dataset.close()


def test_an_iterable_dataset_knows_where_it_is(raw: Any, daemon: Any) -> None:
    with larder.torch.IterableDataset(**raw.options(batch_size=8, seed=3)) as dataset:
        beginning = dataset.state_dict()
        whole = keys_of(dataset)
        dataset.load_state_dict(beginning)
        assert dataset.state_dict() == beginning
        loop = iter(dataset)
        begun = keys_of([next(loop) for _ in range(5)])
        state = dataset.state_dict()
        next(loop)
        del loop
    until_no_session(daemon)
    dataset.load_state_dict(state)
    assert begun + keys_of(dataset) == whole


def test_a_dataset_does_not_know_what_workers_are_ahead(raw: Any) -> None:
    dataset = larder.torch.IterableDataset(**raw.options(batch_size=8))
    before = dataset.state_dict()
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=2)
    next(iter(loader))
    with pytest.raises(RuntimeError, match="larder.torch.DataLoader"):
        dataset.state_dict()
    dataset.set_epoch(0)
    assert dataset.state_dict() == before
