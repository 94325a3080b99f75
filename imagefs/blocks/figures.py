"""What a block store counts."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Fetched", "Figures"]


@dataclass(slots=True)
class Fetched:
    """What came from stores: ranges of packs, blocks in them, their bytes, and the stored bytes that had to travel."""

    ranges: int = 0
    blocks: int = 0
    bytes: int = 0
    stored: int = 0


@dataclass(slots=True)
class Figures:
    """Counts since the start. hits_*: blocks that reads found there, hits_peer: in the file of another device or place.

    waits: reads that waited for a fetch, waited: the seconds of all of them together. damaged_arrival, damaged_disk:
    blocks whose bytes were not what they must be, fetched or kept. unkept: blocks that the disk did not take.
    """

    reads: int = 0
    bytes_read: int = 0
    hits_memory: int = 0
    hits_disk: int = 0
    hits_peer: int = 0
    demand: Fetched = field(default_factory=Fetched)
    ahead: Fetched = field(default_factory=Fetched)
    waits: int = 0
    waited: float = 0.0
    retries: int = 0
    failures: int = 0
    damaged_arrival: int = 0
    damaged_disk: int = 0
    evicted: int = 0
    unkept: int = 0
    disk_errors: int = 0
