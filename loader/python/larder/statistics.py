"""`Statistics`: the running totals of a loader."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Statistics:
    """Running totals of what the loader delivered since it was opened. What it only prefetched does not count.

    Subtract earlier statistics to get the totals of the time between.
    """

    samples: int = 0
    bytes: int = 0
    memory_blocks: int = 0
    """Blocks that came from the daemon's memory, or from a batch that this process still held. Each block counts once
    an epoch, by where it came from."""
    disk_blocks: int = 0
    """Blocks that came from the daemon's disk."""
    remote_blocks: int = 0
    """Blocks that came from the remote."""
    remote_bytes: int = 0
    skipped_samples: int = 0
    """Samples left out because their object changed or failed (`skip_failed`)."""
    reconnects: int = 0
    stall_s: float = 0.0
    """Seconds spent waiting for data."""
    peer_blocks: int = 0
    """Blocks that came from other nodes' caches."""
    decode_errors: int = 0
    """Samples left out because `decode` failed on them (`decode_errors="skip"`); `samples` counts them, too."""

    @property
    def hit_ratio(self) -> float:
        """Blocks that came from a cache, this node's or another's, over all blocks; 0 before the first block."""
        hits = self.memory_blocks + self.disk_blocks + self.peer_blocks
        return hits / (hits + self.remote_blocks) if hits + self.remote_blocks else 0.0

    def __add__(self, other: Statistics) -> Statistics:
        return Statistics(*(a + b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other))))

    def __sub__(self, other: Statistics) -> Statistics:
        return Statistics(*(a - b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other))))
