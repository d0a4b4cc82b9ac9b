"""`MapDataset`: samples by index, for torch's samplers."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch.utils.data

import larder
from larder import _larder, options
from larder.closing import Closing
from larder.torch.samples import copy_sample


class MapDataset(torch.utils.data.Dataset[Any], Closing):
    """Samples by index. Each process opens a session of its own on first use, after the fork.

    A sample is `decode(sample)`, called with a `larder.Sample` whose views are valid only during the call; without
    `decode`, `copy_sample(sample)`, a dict.

    Reading many samples at once is much faster than one by one: `dataset[[3, 1, 4]]` is a list of samples. Torch 2 does
    this by itself (`__getitems__`). With older versions, use a batch sampler as the sampler:

        sampler = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(dataset), 256, drop_last=False)
        loader = torch.utils.data.DataLoader(dataset, sampler=sampler, batch_size=None, collate_fn=default_collate)

    The arguments are those of `larder.Dataset`; `memory_budget` is that of each process.
    """

    def __init__(
        self,
        dataset: str,
        *,
        job: str | None = None,
        memory_budget: int | str | None = None,
        reconnect_timeout_s: float = 30,
        socket: str | None = None,
        decode: Callable[[larder.Sample], Any] | None = None,
    ) -> None:
        self._connection = options.connection(dataset, job, socket, memory_budget, reconnect_timeout_s)
        self._decode = copy_sample if decode is None else decode
        self._core: larder.Dataset | None = None
        self._core_pid = 0
        self._count: int | None = None
        self._class_names: list[str] = []

    def _read_metadata(self) -> int:
        # The main process of a DataLoader with workers needs no session, only the count and the class names.
        if self._count is None:
            sampling = options.sampling(
                batch_size=1,
                seed=0,
                shuffle=True,
                shuffle_window_blocks=1,
                rank=0,
                world_size=1,
                worker=0,
                worker_count=1,
                drop_last=False,
                skip_failed=False,
                deal="automatic",
                first_epoch=0,
            )
            planner = _larder.Loader(**self._connection, **sampling, plan_only=True)
            self._count, self._class_names = planner.sample_count(), planner.class_names()
        return self._count

    def __len__(self) -> int:
        return self._read_metadata()

    @property
    def class_names(self) -> list[str]:
        """Names of the classes; `sample.label` is an index into this list."""
        self._read_metadata()
        return self._class_names

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, (list, tuple)):
            return self.__getitems__(index)
        return self._session()[int(index)]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        return list(self._session().fetch(indices))

    def statistics(self) -> larder.Statistics:
        """Running totals of this process."""
        return self._core.statistics() if self._core is not None else larder.Statistics()

    def close(self) -> None:
        """Ends this process's session; the next use opens another. Workers' sessions end with the workers."""
        self._core = None

    def _session(self) -> larder.Dataset:
        if self._core is None or self._core_pid != os.getpid():
            self._core = larder.Dataset(
                self._connection["dataset"],
                job=self._connection["job"] or None,
                memory_budget=self._connection["memory_budget_bytes"] or None,
                reconnect_timeout_s=self._connection["reconnect_timeout_s"],
                socket=self._connection["socket"] or None,
                decode=self._decode,
            )
            self._core_pid = os.getpid()
            if torch.utils.data.get_worker_info() is not None:
                self._core.set_training_loop(None)  # the loop's waits for this worker are unknown
        return self._core

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_core": None, "_core_pid": 0}
