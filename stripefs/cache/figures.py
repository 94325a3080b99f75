"""What the cache counts for people, by many threads."""

from __future__ import annotations

import threading
from typing import Any

__all__ = ["Figures"]


class Figures:
    """Counts since the start.

    hit_bytes came from the cache; missed_bytes from the store; bypassed_bytes from the store although they may have
    been here (a disk that fails or is slow). filled_bytes were written, unfilled_bytes were not for want of room or of
    a disk that keeps up. damaged: blocks that did not fit their check value. waits: reads that waited for another
    process to fetch the same. disk_errors: refused reads and writes.
    """

    NAMES = (
        "hit_bytes",
        "missed_bytes",
        "bypassed_bytes",
        "filled_bytes",
        "unfilled_bytes",
        "damaged",
        "waits",
        "disk_errors",
    )

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(self.NAMES, 0)

    def add(self, name: str, count: int = 1) -> None:
        with self._lock:
            self._counts[name] += count

    def __getitem__(self, name: str) -> int:
        return self._counts[name]

    def snapshot(self) -> dict[str, Any]:
        with self._lock:
            return dict(self._counts)
