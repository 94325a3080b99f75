"""A file's block locations, fetched by segments and kept.

A file of many TiB has a million blocks, so a segment of 512 block sizes is asked for at a time. Boundaries come from
the answer, not from arithmetic: CONCAT leaves short blocks in the middle of a file.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from stripefs.errors import StaleVersion
from stripefs.store.base import Block

__all__ = ["SEGMENT_BLOCKS", "Locations"]

SEGMENT_BLOCKS = 512  # 256 KiB of JSON, answered within 10 ms
_FRESH = 5.0  # seconds during which a failing host does not make us ask again


class Locations:
    """Blocks of a file of `length` bytes. `ask(offset, length)` answers those that overlap a range, in order."""

    def __init__(self, length: int, block_size: int, ask: Callable[[int, int], Sequence[Block]]) -> None:
        self._length = length
        self._span = max(1, block_size) * SEGMENT_BLOCKS
        self._ask = ask
        self._segments: dict[int, tuple[float, Sequence[Block]]] = {}
        self._lock = threading.Lock()

    def overlapping(self, offset: int, length: int) -> list[Block]:
        """The blocks that overlap [offset, offset + length), whole. StaleVersion when the file no longer has them."""
        stop = min(offset + length, self._length)
        if stop <= offset:
            return []
        blocks: list[Block] = []
        for index in range(offset // self._span, (stop - 1) // self._span + 1):
            for block in self._segment(index):
                # A block that crosses the border of two segments is in both answers.
                seen = blocks and block.offset < blocks[-1].offset + blocks[-1].length
                if not seen and block.offset < stop and block.offset + block.length > offset:
                    blocks.append(block)
        _check_cover(blocks, offset, stop)
        return blocks

    def refresh(self, offset: int) -> None:
        """A host of the block at `offset` failed: ask again next time, unless the answer is new."""
        index = offset // self._span
        with self._lock:
            kept = self._segments.get(index)
            if kept is not None and time.monotonic() - kept[0] > _FRESH:
                del self._segments[index]

    def _segment(self, index: int) -> Sequence[Block]:
        with self._lock:
            kept = self._segments.get(index)
        if kept is not None:
            return kept[1]
        start = index * self._span
        blocks = [_clip(block, self._length) for block in self._ask(start, min(self._span, self._length - start))]
        blocks = [block for block in blocks if block.length > 0]
        with self._lock:
            self._segments[index] = (time.monotonic(), blocks)
        return blocks


def _clip(block: Block, length: int) -> Block:
    """A file that is still written to has more bytes by now than this version."""
    if block.offset + block.length <= length:
        return block
    return Block(block.offset, length - block.offset, block.hosts)


def _check_cover(blocks: Sequence[Block], offset: int, stop: int) -> None:
    at = offset
    for block in blocks:
        if block.offset > at:
            break
        at = block.offset + block.length
    if at < stop:
        raise StaleVersion(f"the file has no block at byte {at} any more")
