"""The block index: which 128 KiB block of a device lies where, and what its bytes must be.

    header   magic "BSINDEX1", block size, blocks, packs, bytes of the device
    packs    for each its SHA-256 and its length
    records  for each block its SHA-256, pack, offset there, stored bytes, bytes
    order    the numbers of the blocks that are stored, sorted by SHA-256

All numbers are little-endian. A block of zeros has pack NOWHERE and is not stored; bytes past `length` of a block are
zeros. A block whose stored length equals its length is stored as it is, else as an LZ4 block. The document is named by
its own SHA-256, and is used where it lies, mapped: no object of Python stands for a block.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from imagefs.errors import FormatError

__all__ = ["BLOCK", "NOWHERE", "Index", "Pack", "Place", "write"]

BLOCK = 128 << 10
"""Bytes of a block: what is compressed, checked and fetched as one."""

NOWHERE = 0xFFFFFFFF

_MAGIC = b"BSINDEX1"
_HEADER = struct.Struct("<8sIIIIQ")
_PACK = struct.Struct("<32sQ")
_RECORD = struct.Struct("<32sIIII")
_NUMBER = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Pack:
    """An object that holds blocks one behind the other."""

    digest: bytes
    length: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where a block is and what it must be. `pack` is a number of `Index.packs`, or NOWHERE for zeros."""

    digest: bytes
    pack: int
    offset: int
    stored: int
    length: int


def write(places: Sequence[Place], packs: Sequence[Pack], device_bytes: int, out: BinaryIO) -> None:
    """Write the index of a device of `device_bytes`, block after block."""
    if len(places) != -(-device_bytes // BLOCK):
        raise FormatError(f"{len(places)} blocks do not make {device_bytes} bytes")
    out.write(_HEADER.pack(_MAGIC, BLOCK, len(places), len(packs), 0, device_bytes))
    out.writelines(_PACK.pack(pack.digest, pack.length) for pack in packs)
    out.writelines(_RECORD.pack(p.digest, p.pack, p.offset, p.stored, p.length) for p in places)
    stored = (number for number, place in enumerate(places) if place.pack != NOWHERE)
    out.writelines(_NUMBER.pack(number) for number in sorted(stored, key=lambda number: places[number].digest))


class Index:
    """An index in `data`, any buffer; checked once as a whole, so that what it answers needs no further doubt."""

    def __init__(self, data: memoryview | bytes) -> None:
        self._data = memoryview(data)
        if len(self._data) < _HEADER.size:
            raise FormatError(f"an index of {len(self._data)} bytes is too short for its header")
        magic, block, self.blocks, packs, reserved, self.device_bytes = _HEADER.unpack_from(self._data)
        if magic != _MAGIC:
            raise FormatError("this is no block index, or one of another version")
        if block != BLOCK or reserved or self.blocks != -(-self.device_bytes // BLOCK):
            raise FormatError("the index contradicts itself")
        self._records = _HEADER.size + _PACK.size * packs
        self._order = self._records + _RECORD.size * self.blocks
        rest = len(self._data) - self._order
        if rest < 0 or rest % _NUMBER.size or rest > _NUMBER.size * self.blocks:
            raise FormatError("the index is shorter or longer than its header says")
        self.stored = rest // _NUMBER.size
        self.packs = [Pack(*found) for found in _PACK.iter_unpack(self._data[_HEADER.size : self._records])]
        self._check(place for place in map(self.place, range(self.blocks)))

    def place(self, block: int) -> Place:
        """Where block number `block` is."""
        if not 0 <= block < self.blocks:
            raise IndexError(block)
        return Place(*_RECORD.unpack_from(self._data, self._records + _RECORD.size * block))

    def find(self, digest: bytes) -> Place | None:
        """Where a block with these bytes is, None when none of this index has them."""
        low, high = 0, self.stored
        while low < high:
            middle = (low + high) // 2
            (number,) = _NUMBER.unpack_from(self._data, self._order + _NUMBER.size * middle)
            if number >= self.blocks:
                raise FormatError("the index points past its own end")
            place = self.place(number)
            if place.digest == digest:
                return place
            low, high = (middle + 1, high) if place.digest < digest else (low, middle)
        return None

    def _check(self, places: Iterable[Place]) -> None:
        for place in places:
            if place.length > BLOCK or place.stored > place.length:
                raise FormatError("the index has a block that is longer than a block")
            if place.pack != NOWHERE and (
                place.pack >= len(self.packs) or place.offset + place.stored > self.packs[place.pack].length
            ):
                raise FormatError("the index has a block outside its pack")
