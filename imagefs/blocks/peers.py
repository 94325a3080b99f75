"""Finds the block on this disk with a given SHA-256: one lookup for all cached devices, however many there are.

Each block that is here is one number of 64 bits, in one of 1024 sorted arrays by the first bits of its digest: 24
further bits of the digest, then the block's location. Insertion and lookup are binary searches of the standard library.
What a lookup answers is a candidate whose digest the caller must compare. Pure values; one thread at a time.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Generic, TypeVar

__all__ = ["PeerTable"]

_T = TypeVar("_T")

_SHARDS = 1024
_WHERE = 40  # bits of a location, in blocks: 128 PiB of devices that were ever opened
_MASK = (1 << _WHERE) - 1


class PeerTable(Generic[_T]):
    """The blocks of devices of type `_T`."""

    def __init__(self) -> None:
        self._shards = [array("Q") for _ in range(_SHARDS)]
        self._firsts: list[int] = []  # the first location of each device, ascending
        self._devices: list[tuple[_T, int]] = []  # each with the number of its blocks
        self._end = 0

    def __len__(self) -> int:
        """Blocks that can be found."""
        return sum(map(len, self._shards))

    def admit(self, device: _T, blocks: int) -> int:
        """Where the blocks of a device are from now on, until `dismiss`: block number n at the answer + n."""
        first, self._end = self._end, self._end + blocks
        if self._end > _MASK:
            raise OverflowError("more blocks of devices were opened than locations have numbers")
        self._firsts.append(first)
        self._devices.append((device, blocks))
        return first

    def dismiss(self, first: int) -> None:
        """Forget the device that was admitted there, whose blocks were discarded before."""
        at = bisect_left(self._firsts, first)
        del self._firsts[at], self._devices[at]

    def add(self, digest: bytes, location: int) -> None:
        """The block at `location` is here, with these bytes. A second call does nothing."""
        shard, key = self._place(digest)
        entry = key | location
        at = bisect_left(shard, entry)
        if at == len(shard) or shard[at] != entry:
            shard.insert(at, entry)

    def discard(self, digest: bytes, location: int) -> None:
        """The block is here no more."""
        shard, key = self._place(digest)
        at = bisect_left(shard, key | location)
        if at < len(shard) and shard[at] == key | location:
            del shard[at]

    def find(self, digest: bytes) -> Iterator[tuple[_T, int]]:
        """Devices and numbers of blocks that likely have these bytes."""
        shard, key = self._place(digest)
        at = bisect_left(shard, key)
        while at < len(shard) and shard[at] & ~_MASK == key:
            location = shard[at] & _MASK
            number = bisect_right(self._firsts, location) - 1
            device, blocks = self._devices[number] if number >= 0 else (None, 0)
            block = location - self._firsts[number]
            if device is not None and block < blocks:  # else of a device that was dismissed
                yield device, block
            at += 1

    def _place(self, digest: bytes) -> tuple[array[int], int]:
        head = int.from_bytes(digest[:5], "big")
        return self._shards[head & (_SHARDS - 1)], (head >> 16) << _WHERE
