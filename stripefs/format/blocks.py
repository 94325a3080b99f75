"""Block map of a file, the chunks in which blocks are read, and the checksums of a striped file's parts. Pure.

The map is filled as blocks become known. A chunk is the smallest piece that is fetched and kept: 1 MiB counted from
the start of its block, shorter at the block's end, so that no chunk ever lies on two hosts. Blocks need not be of one
size (HDFS CONCAT leaves short ones in the middle), and a file of many TiB has a million of them, so they are added
segment by segment and found by bisection.

A part has a checksum for each check, in a table behind the bytes, with a digest of the table. A check is `CHECK` bytes
counted from a unit's start, shorter at the unit's end. The checksum verifies a whole check, and the digest verifies
the table.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

import xxhash

__all__ = [
    "CHECK",
    "CHUNK",
    "DIGEST",
    "SUM",
    "Block",
    "BlockMap",
    "ByteRange",
    "PartTable",
    "check_sums",
    "digest_of",
    "table_length",
]


CHUNK = 1 << 20
"""Bytes of a chunk: the largest READ that the kernel sends through FUSE without further options."""


@dataclass(frozen=True, slots=True)
class Block:
    """Bytes [offset, offset + length) of a file lie whole on each of `hosts` (names as in `Store.hosts`).

    name: the block's own, of a kind that its store knows.
    """

    offset: int
    length: int
    hosts: tuple[str, ...]
    name: object = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes [offset, end) of a file within one block that lies on `hosts`."""

    offset: int
    end: int
    hosts: tuple[str, ...]

    @property
    def length(self) -> int:
        return self.end - self.offset


class BlockMap:
    """The blocks of one file of `length` bytes known so far."""

    def __init__(self, length: int) -> None:
        self.length = length
        self._starts: list[int] = []
        self._blocks: list[Block] = []

    def __len__(self) -> int:
        return len(self._blocks)

    def add(self, blocks: Sequence[Block]) -> None:
        """Add located blocks, in any order. They take the place of what is known of their bytes.

        Blocks are clipped to the file; empty ones are dropped.
        """
        for block in blocks:
            length = min(block.length, self.length - block.offset)
            if length > 0:
                self._put(Block(block.offset, length, block.hosts))

    def _put(self, block: Block) -> None:
        end = block.offset + block.length
        first = bisect_right(self._starts, block.offset) - 1
        if first < 0 or self._end(first) <= block.offset:
            first += 1
        stop = bisect_left(self._starts, end)
        pieces = [block]
        if first < stop:
            before, after = self._blocks[first], self._blocks[stop - 1]
            if before.offset < block.offset:
                pieces.insert(0, Block(before.offset, block.offset - before.offset, before.hosts))
            if self._end(stop - 1) > end:
                pieces.append(Block(end, self._end(stop - 1) - end, after.hosts))
        self._blocks[first:stop] = pieces
        self._starts[first:stop] = [piece.offset for piece in pieces]

    def _end(self, index: int) -> int:
        return self._blocks[index].offset + self._blocks[index].length

    def find(self, offset: int) -> Block | None:
        """The known block that holds `offset`."""
        index = bisect_right(self._starts, offset) - 1
        if index < 0:
            return None
        block = self._blocks[index]
        return block if offset < block.offset + block.length else None

    def missing(self, offset: int, end: int) -> int | None:
        """The first offset in [offset, end) whose block is not known, None when all are."""
        while offset < min(end, self.length):
            block = self.find(offset)
            if block is None:
                return offset
            offset = block.offset + block.length
        return None

    def chunk_start(self, offset: int) -> int:
        """The start of the chunk that holds `offset`, whose block must be known."""
        block = self.find(offset)
        if block is None:
            raise LookupError(f"no block known at {offset}")
        return offset - (offset - block.offset) % CHUNK

    def span(self, offset: int, range_size: int) -> ByteRange | None:
        """The range to fetch from `offset`, a chunk's start: up to the next multiple of range_size in its block."""
        block = self.find(offset)
        if block is None:
            return None
        into = offset - block.offset
        end = min(block.offset + into - into % range_size + range_size, block.offset + block.length)
        return ByteRange(offset, end, block.hosts)


CHECK = CHUNK
"""Bytes that one checksum covers: the reader fetches whole chunks, so all that arrives can be verified as it is."""

SUM = 8
"""Bytes of a checksum: xxh3-64, big-endian (xxhash's canonical form)."""

DIGEST = 16
"""Bytes of a digest: xxh3-128, big-endian."""

Bytes = bytes | bytearray | memoryview


def digest_of(data: Bytes) -> bytes:
    """The digest of a table, a document or a list."""
    return xxhash.xxh3_128_digest(data)


def check_sums(data: Bytes) -> bytes:
    """The checksums of bytes that begin with a check of a unit and do not reach past that unit's end."""
    view = memoryview(data)
    return b"".join(xxhash.xxh3_64_digest(view[at : at + CHECK]) for at in range(0, len(view), CHECK))


def table_length(data_length: int, unit: int) -> int:
    """Bytes of the table behind `data_length` bytes of a part in units of `unit` bytes."""
    units, rest = divmod(data_length, unit)
    return SUM * (units * -(-unit // CHECK) + -(-rest // CHECK))


class PartTable:
    """The checksums of one part while it is written: `add` its bytes in order, then write `finish()` behind them."""

    def __init__(self, unit: int) -> None:
        self._unit = unit
        self._sums: list[bytes] = []
        self._open = xxhash.xxh3_64()
        self.length = 0
        """Bytes added so far."""

    def add(self, data: Bytes) -> None:
        """Note further bytes; pieces may be cut anywhere."""
        view = memoryview(data)
        while view:
            into = self.length % self._unit
            take = min(len(view), CHECK - into % CHECK, self._unit - into)
            self._open.update(view[:take])
            self.length += take
            view = view[take:]
            if (into + take) % CHECK == 0 or into + take == self._unit:
                self._close()

    def _close(self) -> None:
        self._sums.append(self._open.digest())
        self._open = xxhash.xxh3_64()

    def finish(self) -> bytes:
        """The table. Nothing may be added afterwards; the part's digest is `digest_of` it."""
        into = self.length % self._unit
        if into % CHECK:
            self._close()
        return b"".join(self._sums)
