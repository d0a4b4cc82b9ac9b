"""The faults of the fault proxy, and the choice of the fault for each request.

The choice is a function of a seed and of the request, so that a run can be repeated whatever the order of its requests.
Only membership in a burst depends on the order.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import threading

# Faults that a client must survive by retrying (or by careful reading), and still get every byte.
TRANSIENT = {
    "reset_before": "connection reset before the response",
    "reset_body": "connection reset in the middle of the body",
    "truncated_body": "connection closed in the middle of the body, before Content-Length bytes",
    "close_after": "connection closed after a whole response that had promised to keep it",
    "stall_before": "nothing for --stall-s seconds, then the response",
    "stall_body": "nothing for --stall-s seconds in the middle of the body",
    "drip": "the body at --drip-bytes-per-s",
    "error_500": "500, for this request and the --burst-requests - 1 requests after it",
    "error_503": "503, for a burst of requests",
    "retry_after": "503 with Retry-After, for a burst of requests",
    "slow_down": "503 with S3's SlowDown, for a burst of requests",
    "range_shifted": "a Content-Range that begins and ends one byte late",
    "range_total": "a Content-Range with another total",
    "length_short": "a Content-Length one byte short, and the connection closed after the body",
    "length_long": "a Content-Length one byte long, and the connection closed after the body",
    "whole_object": "200 with the whole object in answer to a range; only the bytes of the range are right",
}
# Faults that no retry repairs: a client must detect and report them.
DECEITFUL = {
    "etag": "another ETag",
    "flip": "one bit of the body flipped",
}
NAMES = TRANSIENT | DECEITFUL
BURSTS = ("error_500", "error_503", "retry_after", "slow_down")
# Faults that need a response with a body, and faults that need a response to a range request.
BODY_FAULTS = ("reset_body", "truncated_body", "stall_body", "drip", "length_short", "length_long", "flip")
RANGE_FAULTS = ("range_shifted", "range_total", "whole_object")


@dataclasses.dataclass(frozen=True)
class Fate:
    """The fault of one request. `position`, in [0, 1), is the place in the body."""

    fault: str | None
    position: float


def check(probabilities: dict[str, float]) -> dict[str, float]:
    unknown = [name for name in probabilities if name not in NAMES]
    if unknown:
        raise ValueError(f"unknown faults {unknown}; known: {' '.join(NAMES)}")
    if any(p < 0 for p in probabilities.values()) or sum(probabilities.values()) > 1 + 1e-9:
        raise ValueError("each probability must be at least 0, and their sum at most 1")
    return probabilities


def transient(probability: float) -> dict[str, float]:
    """Returns the probability split equally among all transient faults."""
    return {name: probability / len(TRANSIENT) for name in TRANSIENT}


class Plan:
    """Draws fates. Thread-safe."""

    def __init__(self, seed: int, probabilities: dict[str, float], burst_requests: int = 3) -> None:
        self.seed = seed
        self.probabilities = check(probabilities)
        self.burst_requests = burst_requests
        self._lock = threading.Lock()
        self._attempts: collections.Counter[tuple[str, str, str]] = collections.Counter()
        self._burst: str | None = None
        self._burst_left = 0

    def draw(self, method: str, target: str, byte_range: str) -> Fate:
        """The fate of this request for these bytes. It depends on how often the same bytes were requested before."""
        request = (method, target, byte_range)
        with self._lock:
            self._attempts[request] += 1
            text = "\n".join((str(self.seed), *request, str(self._attempts[request])))
            digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
            at = int.from_bytes(digest[:8], "big") / 2**64
            position = int.from_bytes(digest[8:], "big") / 2**64
            if self._burst_left > 0:
                self._burst_left -= 1
                return Fate(self._burst, position)
            for name in NAMES:
                at -= self.probabilities.get(name, 0)
                if at < 0:
                    if name in BURSTS:
                        self._burst, self._burst_left = name, self.burst_requests - 1
                    return Fate(name, position)
            return Fate(None, position)
