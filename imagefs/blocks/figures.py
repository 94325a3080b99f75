"""What a block store counts, and log lines that do not come more often than somebody can read them."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field

__all__ = ["Fetched", "Figures", "Seldom"]

LOG_EVERY = 60.0
"""Seconds between two lines of one kind."""


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


class Seldom:
    """Warnings of one logger: the first of its kind at once, later ones with how many were left out between."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._last: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def __call__(self, kind: str, message: str, *arguments: object) -> None:
        now = time.monotonic()
        if now - self._last.get(kind, -LOG_EVERY) < LOG_EVERY:
            self._left_out[kind] = self._left_out.get(kind, 0) + 1
            return
        self._last[kind] = now
        others = self._left_out.pop(kind, 0)
        self._log.warning(message + (f" (and {others} times more before)" if others else ""), *arguments)
