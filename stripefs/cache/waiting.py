"""Blocks that are on their way to the disk, for those who want them meanwhile.

Without it a second reader of the process would fetch again what waits in its memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stripefs.cache.grid import BLOCK
from stripefs.store.base import Buffer

__all__ = ["Waiting", "blocks_of"]


class Waiting:
    """Safe to use from many threads: each step is one operation on a dictionary."""

    def __init__(self) -> None:
        self._blocks: dict[tuple[bytes, int], Sequence[Buffer]] = {}

    def add(self, key: bytes, block: int, pieces: Sequence[Buffer]) -> None:
        """`pieces` are the bytes of this block of the version `key`."""
        self._blocks[key, block] = pieces

    def remove(self, key: bytes, blocks: range) -> None:
        """They are on disk, or were given up."""
        for block in blocks:
            self._blocks.pop((key, block), None)

    def get(self, key: bytes, block: int) -> Sequence[Buffer] | None:
        return self._blocks.get((key, block))

    def flags(self, key: bytes, blocks: range) -> bytes:
        """A byte for each block: 1 where it is waiting."""
        if not self._blocks:
            return bytes(len(blocks))
        return bytes((key, block) in self._blocks for block in blocks)


def blocks_of(pieces: Iterable[Buffer]) -> list[list[memoryview]]:
    """`pieces`, the first of which begins where a block does, cut where blocks end: the pieces of each block."""
    found: list[list[memoryview]] = []
    room = 0
    for piece in pieces:
        rest = memoryview(piece)
        while rest:
            if not room:
                found.append([])
                room = BLOCK
            found[-1].append(rest[:room])
            rest, room = rest[room:], max(0, room - len(rest))
    return found
