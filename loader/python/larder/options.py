"""Checks users' arguments and converts them to those of the extension."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from larder import _larder
from larder.errors import InvalidArgument

DEALS = ("automatic", "interleaved", "contiguous")
ORDERS = ("seeded", "shared")
DECODE_ERRORS = ("raise", "skip")


def whole_number(name: str, value: object, least: int = 0, most: int = 2**32 - 1) -> int:
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidArgument(f"{name} is {value!r}; it must be a whole number") from None
    if not least <= number <= most:
        raise InvalidArgument(f"{name} is {number}; it must be from {least} to {most}")
    return number


def size_bytes(name: str, value: int | str) -> int:
    if isinstance(value, str):
        try:
            return _larder.parse_bytes(value)
        except InvalidArgument as error:
            raise InvalidArgument(f"{name}: {error}") from None
    return whole_number(name, value, 1, 2**63 - 1)


def skips_decode_errors(decode_errors: str) -> bool:
    if decode_errors not in DECODE_ERRORS:
        raise InvalidArgument(f"decode_errors is {decode_errors!r}; it must be one of {', '.join(DECODE_ERRORS)}")
    return decode_errors == "skip"


def alone(
    decode_batch: Callable[[_larder.Batch], Any] | None, *, skip_errors: bool, **others: object
) -> Callable[[_larder.Batch], Any] | None:
    """`decode_batch`, if none of the arguments is given that work on single samples."""
    given = [name for name, value in others.items() if value is not None]
    if skip_errors:
        given.append('decode_errors="skip"')
    if decode_batch is not None and given:
        raise InvalidArgument(f"give decode_batch or {given[0]}, not both: decode_batch makes the whole batch")
    return decode_batch


def connection(
    dataset: str, job: str | None, socket: str | None, memory_budget: int | str | None, reconnect_timeout_s: float
) -> dict[str, Any]:
    for name, value in (("dataset", dataset), ("job", job)):
        if value is None and name == "job":
            continue
        if not isinstance(value, str) or not value:
            raise InvalidArgument(f"{name} is {value!r}; it must be a name")
    seconds = float(reconnect_timeout_s)
    if not 0 <= seconds <= 1e9:
        raise InvalidArgument(f"reconnect_timeout_s is {seconds}; it must be from 0 to 1e9 seconds")
    return {
        "dataset": dataset,
        "job": job or "",
        "socket": "" if socket is None else str(socket),
        "memory_budget_bytes": 0 if memory_budget is None else size_bytes("memory_budget", memory_budget),
        "reconnect_timeout_s": seconds,
    }


def sampling(
    *,
    batch_size: int,
    seed: int,
    shuffle: bool,
    shuffle_window_blocks: int,
    rank: int,
    world_size: int,
    worker: int,
    worker_count: int,
    drop_last: bool,
    skip_failed: bool,
    deal: str,
    first_epoch: int,
    order: str = "seeded",
) -> dict[str, Any]:
    if deal not in DEALS:
        raise InvalidArgument(f"deal is {deal!r}; it must be one of {', '.join(DEALS)}")
    if order not in ORDERS:
        raise InvalidArgument(f"order is {order!r}; it must be one of {', '.join(ORDERS)}")
    for name, value, count_name, count in (
        ("rank", rank, "world_size", world_size),
        ("worker", worker, "worker_count", worker_count),
    ):
        if whole_number(name, value) >= whole_number(count_name, count, 1):
            raise InvalidArgument(f"{name} {value} is not below {count_name} {count}")
    return {
        "batch_size": whole_number("batch_size", batch_size, 1),
        "seed": whole_number("seed", seed, 0, 2**64 - 1),
        "shuffle": bool(shuffle),
        "shuffle_window_blocks": whole_number("shuffle_window_blocks", shuffle_window_blocks, 1),
        "rank": whole_number("rank", rank),
        "world_size": whole_number("world_size", world_size, 1),
        "worker": whole_number("worker", worker),
        "worker_count": whole_number("worker_count", worker_count, 1),
        "drop_last": bool(drop_last),
        "skip_failed": bool(skip_failed),
        "deal": deal,
        "order": order,
        "first_epoch": whole_number("first_epoch", first_epoch, 0, 2**63 - 1),
    }
