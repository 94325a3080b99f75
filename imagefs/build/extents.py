"""The digests of all extents of a device, taken from its blocks as they pass by: no file is read a second time.

No extent crosses the end of a 128 KiB block (`imagefs.build.layout`), so whoever hashes a block can hash the extents in
it as well, on the same thread and while it is in the processor's cache.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence

from imagefs.build.layout import Segment
from imagefs.format import erofs, extents, index

__all__ = ["Extents"]

_PER_BLOCK = index.BLOCK // erofs.BLOCK


class Extents:
    """The extents of these segments; `take` may be called from many threads, with every block once."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._places = array("I")  # in blocks of 4 KiB, ascending
        self._lengths = array("I")
        for segment in segments:
            for offset in range(0, segment.length, erofs.CHUNK):
                self._places.append((segment.at + offset) // erofs.BLOCK)
                self._lengths.append(min(erofs.CHUNK, segment.length - offset))
        self._digests = bytearray(extents.DIGEST * len(self._places))

    def take(self, block: int, data: bytes) -> None:
        """Remember the digests of what lies in this block, whose bytes are `data`."""
        view = memoryview(data)
        first = bisect_left(self._places, block * _PER_BLOCK)
        end = bisect_left(self._places, (block + 1) * _PER_BLOCK, lo=first)
        for number in range(first, end):
            at = self._places[number] * erofs.BLOCK - block * index.BLOCK
            digest = extents.digest_of(view[at : at + self._lengths[number]])
            self._digests[extents.DIGEST * number : extents.DIGEST * (number + 1)] = digest

    def document(self) -> bytes:
        """The extents table, once all blocks were taken."""
        return extents.write(self._digests, self._places)
