"""The block index: which 128 KiB block of a device lies where, and what its bytes must be.

docs/format.md tells the layout. The document is named by its own SHA-256. It is checked as a whole and then read where
it lies, record by record: no object of Python stands for a block, and no page of it is mapped, because a disk that
cannot read a mapped page ends the process with SIGBUS.
"""

from __future__ import annotations

import bisect
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, NamedTuple

from imagefs.errors import FormatError

__all__ = ["BLOCK", "CODECS", "NOWHERE", "BlockLocation", "Index", "Pack", "write"]

BLOCK = 128 << 10
"""Bytes of a block: what is compressed, checked and fetched as one."""

NOWHERE = 0xFFFFFFFF

CODECS = ("lz4", "zstd")
"""The codecs of packs, by number. The first is that of version 1 and of packs in which nothing is compressed."""

_LZ4_ONLY, _WITH_CODECS = b"BSINDEX1", b"BSINDEX2"
_HEADER = struct.Struct("<8sIIIIQ")
_PACKS = {_LZ4_ONLY: struct.Struct("<32sQ"), _WITH_CODECS: struct.Struct("<32sQQ")}
_RECORD = struct.Struct("<32sIIII")
_TAIL = struct.Struct("<IIII")
_STORED = struct.Struct("<32xI12x")
_NUMBER = struct.Struct("<I")
_AT_ONCE = _RECORD.size << 12  # bytes of records


class Pack(NamedTuple):
    """An object that holds blocks one behind the other, compressed by one of `CODECS`."""

    digest: bytes
    length: int
    codec: str = CODECS[0]


class BlockLocation(NamedTuple):
    """The location of a block and the digest that it must have. `pack` is a number of `Index.packs`, or NOWHERE for
    zeros."""

    digest: bytes
    pack: int
    offset: int
    stored: int
    length: int


_ZEROS = BlockLocation(bytes(32), NOWHERE, 0, 0, 0)


def write(places: Sequence[BlockLocation], packs: Sequence[Pack], device_bytes: int, out: BinaryIO) -> None:
    """Write the index of a device of `device_bytes`, block after block."""
    if len(places) != -(-device_bytes // BLOCK):
        raise FormatError(f"{len(places)} blocks do not make {device_bytes} bytes")
    magic = _WITH_CODECS if any(pack.codec != CODECS[0] for pack in packs) else _LZ4_ONLY
    out.write(_HEADER.pack(magic, BLOCK, len(places), len(packs), 0, device_bytes))
    for pack in packs:
        number = () if magic == _LZ4_ONLY else (CODECS.index(pack.codec),)
        out.write(_PACKS[magic].pack(pack.digest, pack.length, *number))
    out.writelines(_RECORD.pack(p.digest, p.pack, p.offset, p.stored, p.length) for p in places)
    stored = (number for number, place in enumerate(places) if place.pack != NOWHERE)
    out.writelines(_NUMBER.pack(number) for number in sorted(stored, key=lambda number: places[number].digest))


def _codec(number: int) -> str:
    if number >= len(CODECS):
        raise FormatError(f"the index has a pack with codec {number}, which this program does not know")
    return CODECS[number]


class Index:
    """An index, checked once as a whole, so that what it answers needs no further doubt.

    data: all of it. read: reads bytes (offset, length) of the same document where it lies, so that `data` is not kept;
    what that raises, any call of this class may raise.
    """

    def __init__(self, data: memoryview | bytes, read: Callable[[int, int], bytes] | None = None) -> None:
        data = memoryview(data)
        if len(data) < _HEADER.size:
            raise FormatError(f"an index of {len(data)} bytes is too short for its header")
        magic, block, self.blocks, packs, reserved, self.device_bytes = _HEADER.unpack_from(data)
        if magic not in _PACKS:
            raise FormatError("this is no block index, or one of another version")
        if block != BLOCK or reserved or self.blocks != -(-self.device_bytes // BLOCK):
            raise FormatError("the index contradicts itself")
        self._records = _HEADER.size + _PACKS[magic].size * packs
        self._order = self._records + _RECORD.size * self.blocks
        rest = len(data) - self._order
        if rest < 0 or rest % _NUMBER.size or rest > _NUMBER.size * self.blocks:
            raise FormatError("the index is shorter or longer than its header says")
        self.stored = rest // _NUMBER.size
        found = _PACKS[magic].iter_unpack(data[_HEADER.size : self._records])
        self.packs = [Pack(digest, length, *map(_codec, number)) for digest, length, *number in found]
        self._check_places(data)
        self._check_order(data)
        self._read = read or (lambda at, length: bytes(data[at : at + length]))

    def place(self, block: int) -> BlockLocation:
        """The location of block number `block`."""
        if not 0 <= block < self.blocks:
            raise IndexError(block)
        return BlockLocation(*_RECORD.unpack(self._read(self._records + _RECORD.size * block, _RECORD.size)))

    def length(self, block: int) -> int:
        """Bytes of block number `block`, 0 for one of zeros; for those who ask often."""
        at = self._records + _RECORD.size * (block + 1) - _TAIL.size
        pack, _, _, length = _TAIL.unpack(self._read(at, _TAIL.size))
        return 0 if pack == NOWHERE else int(length)

    def digests(self) -> Iterator[bytes]:
        """Of all blocks in order, 32 zeros for one of zeros."""
        for first in range(self._records, self._order, _AT_ONCE):
            yield from (one[0] for one in _RECORD.iter_unpack(self._read(first, min(_AT_ONCE, self._order - first))))

    def find(self, digest: bytes) -> BlockLocation | None:
        """The location of a block with these bytes, None when this index has none."""
        number = next(self.numbers(digest), None)
        return None if number is None else self.place(number)

    def numbers(self, digest: bytes) -> Iterator[int]:
        """The blocks with these bytes."""
        at = bisect.bisect_left(range(self.stored), digest, key=self._digest)
        while at < self.stored and self._digest(at) == digest:
            yield self._number(at)
            at += 1

    def _number(self, rank: int) -> int:
        number = int(_NUMBER.unpack(self._read(self._order + _NUMBER.size * rank, _NUMBER.size))[0])
        if number >= self.blocks:
            raise FormatError("the index points past its own end")
        return number

    def _digest(self, rank: int) -> bytes:
        return self._read(self._records + _RECORD.size * self._number(rank), 32)

    # Both checks run before an image's first block can be fetched, so they make no objects that they do not need.

    def _check_places(self, data: memoryview) -> None:
        lengths, begin = [pack.length for pack in self.packs], 0
        for record in _RECORD.iter_unpack(data[self._records : self._order]):
            _, pack, offset, stored, length = record
            if pack == NOWHERE:
                if record != _ZEROS:
                    raise FormatError("the index has a block of zeros that is stored")
            elif not 0 < stored <= length <= BLOCK or begin + length > self.device_bytes:
                raise FormatError("the index has a block that is empty or longer than a block")
            elif pack >= len(lengths) or offset + stored > lengths[pack]:
                raise FormatError("the index has a block outside its pack")
            begin += BLOCK

    def _check_order(self, data: memoryview) -> None:
        records, size = self._records, _RECORD.size
        before, last, listed = b"", -1, bytearray(self.blocks)
        for (number,) in _NUMBER.iter_unpack(data[self._order :]):
            if number >= self.blocks:
                raise FormatError("the index points past its own end")
            at = records + size * number
            digest = bytes(data[at : at + 32])
            if digest < before or (digest == before and number <= last):
                raise FormatError("the index does not list its blocks in order")
            before, last, listed[number] = digest, number, 1
        stored = bytes(tail[0] != NOWHERE for tail in _STORED.iter_unpack(data[records : self._order]))
        if listed != stored:
            raise FormatError("the index does not list all of its blocks")
