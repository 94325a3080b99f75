"""Statistics of a block store."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

__all__ = ["BlockStats", "Fetched", "Waits"]


@dataclass(slots=True)
class Fetched:
    """Counts of what came from stores: ranges of packs, blocks in them, their bytes, and the stored bytes that had to
    travel."""

    ranges: int = 0
    blocks: int = 0
    bytes: int = 0
    stored: int = 0


_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Waits:
    """The time that reads waited for blocks that were not here. count: how many did, seconds: all of them together."""

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self._reached = [0] * (len(_BOUNDS) + 1)

    def add(self, seconds: float) -> None:
        self.count += 1
        self.seconds += seconds
        self._reached[bisect_left(_BOUNDS, seconds)] += 1

    def snapshot(self) -> dict[str, Any]:
        """`count`, `seconds`, and `within`: pairs of seconds, and how many waited at most so long."""
        within, total = [], 0
        for bound, reached in zip(_BOUNDS, self._reached, strict=False):
            total += reached
            within.append((bound, total))
        return {"count": self.count, "seconds": round(self.seconds, 6), "within": within}


@dataclass(slots=True)
class BlockStats:
    """Counts since the start. hits_*: blocks that reads found there, hits_peer: in the file of another device or place.

    upstreams: stored bytes of blocks that came, by the label of their upstream. waits: of reads for a fetch. served:
    bytes of blocks that readers were handed, by where those were found (`memory`, `disk`, `peer`, `store`).
    damaged_arrival, damaged_disk: blocks whose bytes were not what they must be, fetched or kept. evicted_bytes: what
    the disk got back. unkept: blocks that the disk did not take.
    """

    reads: int = 0
    bytes_read: int = 0
    hits_memory: int = 0
    hits_disk: int = 0
    hits_peer: int = 0
    upstreams: Counter[str] = field(default_factory=Counter)
    demand: Fetched = field(default_factory=Fetched)
    ahead: Fetched = field(default_factory=Fetched)
    waits: Waits = field(default_factory=Waits)
    served: Counter[str] = field(default_factory=Counter)
    retries: int = 0
    failures: int = 0
    damaged_arrival: int = 0
    damaged_disk: int = 0
    evicted: int = 0
    evicted_bytes: int = 0
    unkept: int = 0
    disk_errors: int = 0
