"""Blocks in the order in which they are wanted, handed out in runs that one read of a pack fetches.

A run begins with the block whose turn it is, and takes what lies behind it in the pack, as long as that is among the
next `LOOK` blocks: processes that start side by side touch their files in turns, so neighbours are often a few places
apart in a recorded order.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator

from imagefs.format.index import NOWHERE, BlockLocation, Index

__all__ = ["Order", "Run", "following"]

LOOK = 64
AT_ONCE = 512
"""Blocks looked at in one call, about a millisecond: most may be here already."""

Run = list[tuple[int, BlockLocation]]
"""Numbers and places of blocks, whose places are neighbours in one pack, or the same."""


def following(count: int, last_read: Callable[[], int]) -> Iterator[int]:
    """Every block of a device of `count` once, in an order that follows its readers: those behind the block that was
    read last come first. A device has the files of a directory side by side, so these are the rest of the file and its
    neighbours. last_read: -1 before the first read."""
    left = bytearray(b"\1") * count
    read, cursor = -1, 0
    while True:
        if (latest := last_read()) != read:
            read, cursor = latest, latest + 1
        block = left.find(1, cursor)
        if block < 0:
            block = left.find(1)
        if block < 0:
            return
        left[block] = 0
        cursor = block + 1
        yield block


class Order:
    """`blocks` of `index` in this order. Numbers outside the index are left out."""

    def __init__(self, blocks: Iterable[int], index: Index) -> None:
        self._blocks: Iterator[int] | None = iter(blocks)
        self._index = index
        self._next: OrderedDict[tuple[int, int], Run] = OrderedDict()
        self.skipped = 0
        """Blocks that were not lacking when it was their turn."""

    @property
    def ended(self) -> bool:
        """Whether nothing is left."""
        return self._blocks is None and not self._next

    def take(self, size: int, lacks: Callable[[int, BlockLocation], bool]) -> Run:
        """The next run, of at most `size` stored bytes or one block; of blocks that `lacks` holds for.

        Empty when nothing is left, and when so many were not lacking that the caller should let others work first.
        """
        self._look_ahead(lacks)
        while self._next:
            run: Run = []
            stored = 0
            key = next(iter(self._next))
            while key in self._next:
                place = self._next[key][0][1]
                if run and stored + place.stored > size:
                    break
                wanted = [one for one in self._next.pop(key) if self._wants(lacks, *one)]
                if not wanted:
                    break
                run += wanted
                stored += place.stored
                key = place.pack, place.offset + place.stored
            if run:
                return run
        return []

    def _look_ahead(self, lacks: Callable[[int, BlockLocation], bool]) -> None:
        for _ in range(AT_ONCE):
            if self._blocks is None or len(self._next) >= LOOK:
                return
            block = next(self._blocks, None)
            if block is None:
                self._blocks = None
            elif 0 <= block < self._index.blocks:
                place = self._index.place(block)
                if place.pack != NOWHERE and self._wants(lacks, block, place):
                    run = self._next.setdefault((place.pack, place.offset), [])
                    if all(block != other for other, _ in run):
                        run.append((block, place))

    def _wants(self, lacks: Callable[[int, BlockLocation], bool], block: int, place: BlockLocation) -> bool:
        if lacks(block, place):
            return True
        self.skipped += 1
        return False
