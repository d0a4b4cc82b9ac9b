"""larder.grain.DataSource, which Grain reads in many threads. tests/python/frameworks reads it with Grain itself."""

from __future__ import annotations

import concurrent.futures
import pickle
from collections.abc import Callable
from typing import Any

import larder.grain
import pytest


def decode(sample: larder.Sample) -> tuple[str, bytes]:
    return sample.key, bytes(sample.bytes)


def test_threads_get_the_samples_that_they_ask_for(raw: Any) -> None:
    with larder.Dataset(**raw.options(), decode=decode) as dataset:
        expected = list(dataset[:])
    with larder.grain.DataSource(**raw.options(), decode=decode) as source:
        assert len(source) == len(expected) and repr(source) == f"larder.grain.DataSource('{raw.name}')"
        indices = [(i * 37) % len(expected) for i in range(4 * len(expected))]
        with concurrent.futures.ThreadPoolExecutor(16) as threads:
            assert list(threads.map(source.__getitem__, indices)) == [expected[i] for i in indices]
        assert source._getitems([5, 0, 5]) == [expected[5], expected[0], expected[5]]
        with pytest.raises(IndexError, match="sample 999 is not among"):
            source[999]


def test_sample_without_decode_keeps_its_bytes(raw: Any) -> None:
    with larder.grain.DataSource(**raw.options()) as source:
        samples = source._getitems(range(20))
        assert {sample.key: bytes(sample.bytes) for sample in samples}.items() <= raw.contents.items()


def test_copy_in_another_process_opens_a_session(raw: Any) -> None:
    with larder.grain.DataSource(**raw.options(), decode=decode) as source:
        copy = pickle.loads(pickle.dumps(source))
        assert type(copy) is larder.grain.DataSource and copy[3] == source[3]
        copy.close()


def test_sample_that_fails_fails_only_its_thread(daemon: Any, make_raw: Callable[..., Any]) -> None:
    data = make_raw(daemon, per_class=20)
    (data.directory / "bee" / "0007.png").write_bytes(b"changed")
    with larder.grain.DataSource(**data.options(), decode=decode) as source:

        def read(index: int) -> str:
            try:
                return source[index][0]
            except larder.ObjectChanged:
                return "changed"

        with concurrent.futures.ThreadPoolExecutor(16) as threads:
            read_keys = list(threads.map(read, list(range(60)) * 3))
    assert read_keys.count("changed") == 3 and set(read_keys) - {"changed"} == set(data.contents) - {"bee/0007.png"}


def test_daemon_that_is_away_is_waited_for_once(own_daemon: Any, make_raw: Callable[..., Any]) -> None:
    class Source(larder.grain.DataSource):
        sizes: list[int] = []

        def _read(self, requests: Any) -> None:
            self.sizes.append(len(requests))
            super()._read(requests)

    data = make_raw(own_daemon, per_class=20)
    with Source(**data.options(), reconnect_timeout_s=0.2) as source:
        own_daemon.end()
        with pytest.raises(larder.Unavailable):
            source._getitems(range(16))
        assert source.sizes == [16]
