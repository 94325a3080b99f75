"""Blocks that were fetched and are on their way to the disk, for those who want them meanwhile.

Without it a second reader of the process would fetch again what waits in its memory.
"""

from __future__ import annotations

from stripefs.cache.grid import BLOCK

__all__ = ["Waiting"]


class Waiting:
    """Safe to use from many threads: each step is one operation on a dictionary."""

    def __init__(self) -> None:
        self._blocks: dict[tuple[bytes, int], memoryview] = {}

    def add(self, key: bytes, blocks: range, data: memoryview) -> None:
        """`data` holds the bytes of these neighbours of the version `key`."""
        for block, begin in zip(blocks, range(0, len(data), BLOCK), strict=True):
            self._blocks[key, block] = data[begin : begin + BLOCK]

    def remove(self, key: bytes, blocks: range) -> None:
        """They are on disk, or were given up."""
        for block in blocks:
            self._blocks.pop((key, block), None)

    def get(self, key: bytes, block: int) -> memoryview | None:
        return self._blocks.get((key, block))

    def flags(self, key: bytes, blocks: range) -> bytes:
        """A byte for each block: 1 where it is waiting."""
        if not self._blocks:
            return bytes(len(blocks))
        return bytes((key, block) in self._blocks for block in blocks)
