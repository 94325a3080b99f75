"""Tables of cached blocks: of one device the checksum, last use and presence of each; of all devices where a digest is.

    row      XXH3 of the block's bytes (8), last use in seconds since 2020 (4), 1 when it is here else 0 (4)

Rows are packed in memory, 16 bytes each, and no object of Python stands for one. Pages of 256 rows each have a lower
bound of their times of use. Use only moves times forward, so a bound stays true without upkeep; it is made exact when
eviction looks at the page. Finding the blocks of the longest unused page therefore costs one look at the bounds and one
at 256 rows, whatever the size of the device.

In the peer table each block that is here is one number of 64 bits, in one of 1024 sorted arrays by the first bits of
its digest: 24 further bits of the digest, then the block's location. Insertion and lookup are binary searches of the
standard library, one lookup for all devices. An answer is a candidate whose digest the caller must compare.

Pure values; one thread at a time.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

__all__ = ["COARSE", "NEVER", "ROW", "BlockTable", "PeerTable", "oldest", "present_rows", "row"]

ROW = 16
"""Bytes of a row."""

COARSE = 60
"""Seconds by which times of use may be off: else every read would change the table."""

NEVER = 0xFFFFFFFF
"""The bound of a page without blocks."""

_LAST = NEVER - 1
PAGE = 4096
_ROWS = PAGE // ROW
_SHARE = 16
_ROW = struct.Struct("<QII")
_HERE = 1
_EPOCH = 1577836800  # 2020-01-01, so that 32 bits last until 2156


class BlockTable:
    """`rows` as a file holds them. present: blocks that are here. cleared: blocks that were given up or found bad."""

    def __init__(self, rows: bytearray) -> None:
        self._rows = rows
        self._dirty: set[int] = set()  # pages that the file does not have yet
        self._bounds = array("I", [NEVER]) * -(-len(rows) // PAGE)
        self.cleared = 0
        self.present = 0
        for page in range(len(self._bounds)):
            whens, heres = _columns(rows[page * PAGE : (page + 1) * PAGE])
            if count := heres.count(_HERE):
                self.present += count
                used = (when for when, here in zip(whens, heres, strict=True) if here == _HERE)
                self._bounds[page] = min(_LAST, min(used))

    def checksum(self, block: int) -> int | None:
        """The XXH3 of the block, None when it is not here."""
        checksum, _, here = _ROW.unpack_from(self._rows, ROW * block)
        return checksum if here == _HERE else None

    def touch(self, block: int, now: float) -> None:
        """The block was used; `now` in seconds since 1970."""
        checksum, when, here = _ROW.unpack_from(self._rows, ROW * block)
        if here == _HERE and int(now) - _EPOCH >= when + COARSE:
            self._set(block, row(checksum, now))

    def add(self, block: int, checksum: int, now: float) -> None:
        """The block is here from now on."""
        if self.checksum(block) is None:
            self.present += 1
        packed = row(checksum, now)
        self._set(block, packed)
        page = block // _ROWS
        self._bounds[page] = min(self._bounds[page], _LAST, _ROW.unpack(packed)[1])

    def clear(self, block: int) -> bool:
        """The block is here no more; False when it was not."""
        if self.checksum(block) is None:
            return False
        self.present -= 1
        self.cleared += 1
        self._set(block, bytes(ROW))
        return True

    def blocks(self) -> Iterator[int]:
        """The blocks that are here, page by page: the table may change between two of them."""
        for page in range(len(self._bounds)):
            yield from (block for block, _ in self._page(page))

    def rows(self) -> bytes:
        """A copy of all rows."""
        return bytes(self._rows)

    def take_dirty(self) -> list[tuple[int, bytes]]:
        """Offsets and bytes of what the file does not have yet."""
        pages, self._dirty = sorted(self._dirty), set()
        return [(page * PAGE, bytes(self._rows[page * PAGE : (page + 1) * PAGE])) for page in pages]

    @property
    def dirty(self) -> bool:
        return bool(self._dirty)

    # -- eviction ------------------------------------------------------------------------------------------------

    @property
    def bound(self) -> int:
        """No block here was used before, NEVER without blocks. In seconds since 2020."""
        return min(self._bounds, default=NEVER)

    def longest_unused(self, other: int, slack: int, count: int) -> list[int]:
        """At most `count` blocks of the page with the lowest bound, which the caller must clear, or `restore`.

        They were used at most `slack` seconds after every other block here, and after `other`. The least recently used
        comes first. May be empty, as a bound may be too low; it is exact then.
        """
        page = self._bounds.index(self.bound)
        found = sorted(self._page(page), key=lambda each: each[1])
        self._bounds[page] = NEVER
        until = min(other, self.bound) + slack
        blocks = [block for block, when in found[:count] if when <= until]
        self._bounds[page] = found[len(blocks)][1] if len(blocks) < len(found) else NEVER
        return blocks

    def restore(self, blocks: Sequence[int]) -> None:
        """These blocks, which `longest_unused` named, stay."""
        for block in blocks:
            page, when = block // _ROWS, _ROW.unpack_from(self._rows, ROW * block)[1]
            if self.checksum(block) is not None:
                self._bounds[page] = min(self._bounds[page], _LAST, when)

    def _page(self, page: int) -> list[tuple[int, int]]:
        """Number and time of use of each block of a page that is here."""
        first = page * _ROWS
        return [
            (first + at, min(when, _LAST)) for at, when in present_rows(self._rows[page * PAGE : (page + 1) * PAGE])
        ]

    def _set(self, block: int, packed: bytes) -> None:
        at = ROW * block
        self._rows[at : at + ROW] = packed
        self._dirty.add(at // PAGE)


def oldest(tables: Sequence[BlockTable], count: int, now: float) -> Iterator[tuple[int, list[int]]]:
    """The `count` least recently used blocks of all tables: a table's number and some of its blocks.

    Nothing that stays was unused for longer than what goes by more than COARSE seconds or a sixteenth of the age,
    whichever is more: where uses are scattered over the tables an exact order would look at a page for each block.
    Comes in steps of one page each, which may be empty. The caller clears a step's blocks before it asks for the next.
    """
    today = int(now) - _EPOCH
    bounds = [table.bound for table in tables]
    while count > 0 and bounds and (lowest := min(bounds)) != NEVER:
        number = bounds.index(lowest)
        bounds[number] = NEVER
        blocks = tables[number].longest_unused(min(bounds), max(COARSE, (today - lowest) // _SHARE), count)
        bounds[number] = tables[number].bound
        count -= len(blocks)
        yield number, blocks


def row(checksum: int, now: float) -> bytes:
    """The row of a block that is here."""
    return _ROW.pack(checksum, min(max(0, int(now) - _EPOCH), 0xFFFFFFFF), _HERE)


def present_rows(rows: bytes | bytearray) -> Iterator[tuple[int, int]]:
    """Number and time of use (seconds since 2020) of each block that is here."""
    whens, heres = _columns(rows)
    return ((block, whens[block]) for block, here in enumerate(heres) if here == _HERE)


def _columns(rows: bytes | bytearray) -> tuple[array[int], array[int]]:
    words = array("I", bytes(rows))
    return words[2::4], words[3::4]


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

    def add_device(self, device: _T, blocks: int) -> int:
        """The place of the blocks of a device from now on, until `remove_device`: block number n at the answer + n."""
        first, self._end = self._end, self._end + blocks
        if self._end > _MASK:
            raise OverflowError("more blocks of devices were opened than locations have numbers")
        self._firsts.append(first)
        self._devices.append((device, blocks))
        return first

    def remove_device(self, first: int) -> None:
        """Forget the device that was admitted there: none of its blocks is found any more. `discard` gives their room
        back."""
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
            if number >= 0:
                device, blocks = self._devices[number]
                block = location - self._firsts[number]
                if block < blocks:  # else of a device that was removed
                    yield device, block
            at += 1

    def _place(self, digest: bytes) -> tuple[array[int], int]:
        head = int.from_bytes(digest[:5], "big")
        return self._shards[head & (_SHARDS - 1)], (head >> 16) << _WHERE
