"""Batches and views keep their memory as long as they live, and that memory always has the right bytes."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import larder
import numpy
import pytest


@pytest.fixture
def batch(raw: Any) -> larder.Batch:
    return next(iter(larder.Loader(**raw.options(batch_size=32, seed=9))))


def test_batch_is_a_sequence(raw: Any, batch: larder.Batch) -> None:
    assert isinstance(batch, Sequence)
    assert len(batch) == 32 and repr(batch) == "<larder.Batch of 32 samples>"
    keys = [sample.key for sample in batch]
    assert batch[0].key == keys[0] and batch[-1].key == keys[-1]
    assert [sample.key for sample in batch[4:20:5]] == keys[4:20:5]
    assert [sample.key for sample in batch[::-1]] == keys[::-1]
    assert batch.nbytes == sum(len(raw.contents[key]) for key in keys)
    for wrong in (32, -33):
        with pytest.raises(IndexError):
            batch[wrong]
    with pytest.raises(TypeError, match="integers and slices"):
        batch["png"]
    with pytest.raises(BufferError):
        memoryview(batch)


def test_sample_gives_its_fields_and_names_missing_ones(batch: larder.Batch) -> None:
    sample = batch[3]
    assert "png" in sample and "jpg" not in sample and 3 not in sample
    with pytest.raises(KeyError, match=f'sample "{sample.key}" has no field "jpg"; it has png'):
        sample["jpg"]
    with pytest.raises(TypeError, match="field"):
        sample[0]
    assert repr(sample) == f"<larder.Sample {sample.index} {sample.key!r}>"


def test_views_are_read_only(batch: larder.Batch) -> None:
    view = batch[0].bytes
    assert view.readonly and view.format == "B" and view.ndim == 1 and view.contiguous
    with pytest.raises(TypeError):
        view[0] = 0
    array = batch[0].numpy()
    assert array.dtype == numpy.uint8 and array.ndim == 1 and not array.flags.writeable
    with pytest.raises(ValueError):
        array.flags.writeable = True


def test_numpy_shares_memory_with_sample(raw: Any, batch: larder.Batch) -> None:
    for sample in batch:
        array = sample.numpy()
        assert array.tobytes() == raw.contents[sample.key]
        assert sample.numpy("png").shape == (len(raw.contents[sample.key]),)
        other = numpy.frombuffer(sample.bytes, numpy.uint8)
        assert array.__array_interface__["data"] == other.__array_interface__["data"]


def test_views_outlive_batches_and_loaders(raw: Any) -> None:
    loader = larder.Loader(**raw.options(batch_size=16))
    held: list[tuple[str, Any]] = []
    for batch in loader:
        sample = batch[len(held) % len(batch)]
        held.append((sample.key, [sample.bytes, sample.numpy(), sample.bytes[1:], sample][len(held) % 4]))
    del batch, sample
    loader.close()
    del loader
    gc.collect()
    for i, (key, view) in enumerate(held):
        expected = raw.contents[key]
        if i % 4 == 3:
            view = view.bytes
        assert bytes(view) == (expected[1:] if i % 4 == 2 else expected)


def test_released_batch_keeps_views_valid(raw: Any, batch: larder.Batch) -> None:
    sample = batch[2]
    view = sample.bytes
    expected = raw.contents[sample.key]
    assert not batch.released
    assert not batch.release(), "a view is left"
    assert batch.released
    assert view == expected
    view.release()
    assert batch.release()
    assert repr(batch) == "<larder.Batch, released>" and repr(sample) == "<larder.Sample, released>"
    for use in (
        lambda: len(batch),
        lambda: batch[0],
        lambda: list(batch),
        lambda: batch.samples_bytes(),
        lambda: batch.labels(),
        lambda: batch.indices(),
        lambda: batch.nbytes,
        lambda: batch.__enter__(),
        lambda: sample.bytes,
        lambda: sample.key,
        lambda: sample["png"],
        lambda: "png" in sample,
        lambda: sample.fields,
        lambda: sample.numpy(),
    ):
        with pytest.raises(ValueError, match="released"):
            use()


def test_calls_keep_no_reference_to_a_batch(batch: larder.Batch) -> None:
    before = sys.getrefcount(batch)
    for use in (
        lambda: batch.samples_bytes(),
        lambda: [(s.key, s.label, s.index, s.bytes, s.fields, s["png"], s.numpy(), "png" in s) for s in batch],
        lambda: batch[2:5],
        lambda: (batch.labels(), batch.indices(), batch.nbytes, repr(batch), repr(batch[0])),
        lambda: pytest.raises(KeyError, batch.samples_bytes, "none"),
        lambda: pytest.raises(KeyError, batch[0].numpy, "none"),
        lambda: pytest.raises(BufferError, memoryview, batch),
    ):
        used = use()
        del used
        gc.collect()
        assert sys.getrefcount(batch) == before


def test_with_block_releases_the_batch(batch: larder.Batch) -> None:
    with batch as same:
        assert same is batch and len(batch) == 32
    assert batch.released


def test_small_budget_suffices_when_batches_are_dropped(raw: Any) -> None:
    with larder.Loader(**raw.options(batch_size=8, memory_budget="2MiB")) as loader:
        for _ in range(5):
            assert sum(len(view) > 0 for batch in loader for view in batch.samples_bytes()) > 100


def test_no_space_error_blames_kept_batches(daemon: Any, make_raw: Callable[..., Any]) -> None:
    data = make_raw(daemon, per_class=200)
    daemon.command("quota", "set", data.name, "--memory", "0", "--disk", "0")  # so that every block comes through slots
    with larder.Loader(**data.options(batch_size=8, memory_budget="1MiB")) as loader:
        kept = []
        walk = iter(loader)
        with pytest.raises(larder.NoSpace, match="release batches sooner, or raise the memory budget"):
            for batch in walk:
                kept.append(batch)
        seen = [sample.key for batch in kept for sample in batch]
        assert all(sample.bytes == data.contents[sample.key] for batch in kept for sample in batch)
        del batch
        kept.clear()
        seen += [sample.key for batch in walk for sample in batch]
        assert sorted(seen) == sorted(data.contents)


def test_loader_refuses_second_thread_but_any_thread_may_drop_batches(
    start_daemon: Callable[[], Any], make_raw: Callable[..., Any]
) -> None:
    daemon = start_daemon()
    data = make_raw(daemon, per_class=300)  # far more than the budget
    loader = larder.Loader(**data.options(batch_size=4, memory_budget="1MiB"))
    iterator = iter(loader)
    batches = [next(iterator)]
    seen = [sample.key for sample in batches[0]]
    daemon.send(signal.SIGSTOP)  # so that the reading thread waits inside the loader

    def walk() -> None:
        for batch in iterator:
            seen.extend(sample.key for sample in batch)

    walker = threading.Thread(target=walk)
    walker.start()
    try:
        refused = 0
        while refused < 10:
            assert walker.is_alive()
            time.sleep(0.01)
            try:
                loader.state_dict()
                refused = 0
            except RuntimeError as error:
                assert "another thread" in str(error)
                refused += 1
        assert loader.epoch == 0 and loader.statistics().samples >= 4  # these work from any thread at any time
        view = batches[0][0].bytes
        key = batches[0][0].key
        batches.clear()
        assert view == data.contents[key]
        view.release()
    finally:
        daemon.send(signal.SIGCONT)
        walker.join()
    assert sorted(seen) == sorted(data.contents)
    assert sum(len(batch) for batch in loader) == len(data.contents)


def test_epochs_continue_while_one_batch_or_view_is_kept(daemon: Any, tmp_path: Any) -> None:
    for i in range(60):
        (tmp_path / f"{i:02}.bin").write_bytes(bytes([i]) * 100_000)
    daemon.command("dataset", "add", "uncached", f"file://{tmp_path}", "--quota-memory", "0", "--quota-disk", "0")
    options = {"dataset": "uncached", "socket": daemon.socket, "batch_size": 8, "memory_budget": "3MiB"}
    with larder.Loader(**options) as loader:
        kept = None
        for _ in range(6):
            keys = []
            for batch in loader:
                keys += [sample.key for sample in batch]
                if kept is None:
                    kept = batch[0].bytes
                    kept_bytes = bytes(kept)
            assert len(keys) == len(set(keys)) == 60
        assert kept == kept_bytes
