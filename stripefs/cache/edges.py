"""Blocks that come in parts, put together.

A range that is read never crosses a block of the store. Where these are not multiples of ours (HDFS files that were
joined of parts of any length), one of our blocks lies in two of them or more, and no read brings all of it.
"""

from __future__ import annotations

import threading

from stripefs.store.base import Buffer

__all__ = ["Edges"]

MOST = 16
"""Blocks of which parts are held: each reader that moves on has one at a time."""


class Edges:
    """Safe to use from many threads. Those that nobody completes make room for later ones."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parts: dict[tuple[bytes, int], tuple[bytearray, list[tuple[int, int]]]] = {}

    def add(self, key: bytes, block: int, length: int, begin: int, data: Buffer) -> bytearray | None:
        """`data` is what the block of the version `key`, `length` bytes long, has from `begin` on; all of the block
        once it is complete. What it answered is the caller's."""
        end = begin + len(data)
        with self._lock:
            whole, covered = self._parts.pop((key, block), (bytearray(), []))
            whole = whole or bytearray(length)
            whole[begin:end] = data
            covered.append((begin, end))
            if _covers(covered, length):
                return whole
            self._parts[key, block] = (whole, covered)
            if len(self._parts) > MOST:
                del self._parts[next(iter(self._parts))]
        return None


def _covers(spans: list[tuple[int, int]], length: int) -> bool:
    reached = 0
    for begin, end in sorted(spans):
        if begin > reached:
            return False
        reached = max(reached, end)
    return reached >= length
