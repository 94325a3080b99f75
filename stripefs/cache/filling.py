"""Puts blocks of one version on disk. Blocking, for the threads of the filler.

Trouble with the disk never leaves this module: what cannot be written is not cached.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from stripefs.cache.cache import Cache
from stripefs.cache.grid import BLOCK, PER_SEGMENT, by_segment, length_of, runs
from stripefs.cache.segment import Segment
from stripefs.cache.table import digest, here, slot_of
from stripefs.store.allocator import PAGE, address_of, aligned

__all__ = ["Filling"]

PIECE = 8
"""Blocks written at once: 8 MiB, some milliseconds of a disk, and as long as the reader's ranges."""

CHANGED = 0.1
"""The share by which a rate must have changed to be written down anew."""


class Filling:
    """The version `key` of `length` bytes. about: what `Place.describe` is to say of it when something is written.

    remembered: the rate in bytes a second at which it came from the store, 0 where nobody knows.
    """

    def __init__(self, cache: Cache, key: bytes, length: int, about: dict[str, Any]) -> None:
        self.cache = cache
        self.key = key
        self.length = length
        self.about = about
        self.remembered = 0.0
        self._described = False

    def using(self, blocks: range, *, make: bool = False) -> AbstractContextManager[Segment | None]:
        """The segment of these neighbours; None where there is none and none is to be made."""
        return self.cache.segments.using(self.key, blocks.start // PER_SEGMENT, self.length, make=make)

    def fill(self, blocks: range, data: memoryview, digests: Sequence[int] = ()) -> None:
        """Write these neighbours, whose bytes `data` holds, but for those that are here.

        digests: of each block, where that was computed before the bytes were copied to `data`.
        """
        for part in by_segment(blocks):
            for first in range(part.start, part.stop, PIECE):
                piece = range(first, min(first + PIECE, part.stop))
                index = first - blocks.start
                begin = index * BLOCK
                written = 0
                with self.cache.disk.tolerant("a block cannot be written", writing=True):
                    bytes_of = data[begin : begin + length_of(piece, self.length)]
                    written = self._fill(piece, bytes_of, digests[index : index + len(piece)])
                    self.cache.disk.worked()
                self.cache.figures.add("filled_bytes", written)

    def _fill(self, blocks: range, data: memoryview, digests: Sequence[int]) -> int:
        if not self.cache.disk.writable():
            self.cache.figures.add("unfilled_bytes", len(data))
            return 0
        written = 0
        with self.using(blocks, make=True) as segment:
            if segment is None:
                return 0
            for part, is_here in runs(blocks, here(segment.slots(blocks))):
                if not is_here:
                    index = part.start - blocks.start
                    of_part = data[index * BLOCK : index * BLOCK + length_of(part, self.length)]
                    written += self._write(segment, part, of_part, digests[index : index + len(part)])
        return written

    def _write(self, segment: Segment, blocks: range, data: memoryview, digests: Sequence[int]) -> int:
        self.describe()  # before: it says what may go for this
        if not self.cache.room.take(_padded(len(data)), self.key):
            self.cache.figures.add("unfilled_bytes", len(data))
            self.cache.disk.warn(
                "full", "there is no room in %s for what is to be kept; see --cache-size", segment.path
            )
            return 0
        with contextlib.ExitStack() as undo:
            undo.callback(self.cache.room.give, _padded(len(data)))
            segment.write(blocks, _direct(data))
            found = digests or [
                digest(block, [data[begin : begin + BLOCK]])
                for block, begin in zip(blocks, range(0, len(data), BLOCK), strict=True)
            ]
            segment.settle(blocks, b"".join(slot_of(self.key, each) for each in found))
            undo.pop_all()
            self.cache.room.wrote(_padded(len(data)))
        return len(data)

    def recall(self) -> None:
        """Learn from what stands there at which rate it came."""
        rate = self.cache.place.about(self.key).get("rate")
        if isinstance(rate, int | float) and rate > 0:
            self.remembered = float(rate)
            self.about = {**self.about, "rate": rate}

    def describe(self) -> None:
        """Say what the version is, once. Raises OSError."""
        if not self._described:
            self._described = True
            if self.cache.place.about(self.key) != self.about:
                self.cache.place.describe(self.key, self.about)

    def remember(self, rate: float) -> None:
        """It came from the store at so many bytes a second."""
        with self.cache.disk.tolerant("a version cannot be described", writing=True):
            if rate and self._described and abs(rate - self.remembered) > CHANGED * self.remembered:
                self.about = {**self.about, "rate": int(rate)}
                self.cache.place.describe(self.key, self.about)


def _padded(size: int) -> int:
    return -(-size // PAGE) * PAGE


def _direct(data: memoryview) -> memoryview:
    """`data` as O_DIRECT wants it: from where a page begins to where one ends; a copy only where it is not so."""
    if not data.readonly and not len(data) % PAGE and not address_of(data) % PAGE:
        return data
    padded = aligned(_padded(len(data)))
    padded[: len(data)] = data
    padded[len(data) :] = bytes(len(padded) - len(data))
    return padded
