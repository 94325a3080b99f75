"""What stands at the beginning of a segment: whose it is, and a check value for each block that is here. Pure.

    0      magic "STRIPEFS"; version 1 (4 bytes); 4 zeros; number of the segment, length of the file (8 bytes each)
    32     key of the version (16 bytes); 16 zeros
    64     64 slots of 16 bytes: check value of the block, zeros where the block is not here
    1 MiB  block 0 of the segment, then the others, 1 MiB each

All numbers are little endian. A check value is the XXH3-128 of the block's bytes, seeded with the block's number in the
file, exclusive-or the key: so bytes that got to another place, or into the cache of another version, do not fit, and
what is written before its key is known needs no second look at the bytes. docs/format-cache.md is for people.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import xxhash

from stripefs.cache.grid import BLOCK, PER_SEGMENT

__all__ = [
    "DATA_AT",
    "EMPTY",
    "FILE_LENGTH",
    "HEADER",
    "KEY",
    "OPEN_END",
    "SLOT",
    "SLOTS_AT",
    "TABLE",
    "check_value",
    "described",
    "digest",
    "digest_in",
    "header",
    "here",
    "moved",
    "slot_of",
]

KEY = 16
SLOT = 16
EMPTY = bytes(SLOT)

_HEADER = struct.Struct("<8sI4xQQ16s16x")
_MAGIC = b"STRIPEFS"
_VERSION = 1

HEADER = _HEADER.size
SLOTS_AT = HEADER
TABLE = HEADER + SLOT * PER_SEGMENT
DATA_AT = BLOCK
"""Where block 0 lies: data keeps its alignment in the file, and the hole before it takes no room."""

FILE_LENGTH = DATA_AT + BLOCK * PER_SEGMENT
"""Of every segment; most of a short one is a hole."""

OPEN_END = 1 << 62
"""The length of a file that is being written: nobody knows it yet, and all its blocks are whole ones."""

_MASK = (1 << 64) - 1
_SPREAD = 0x9E3779B97F4A7C15
"""An odd number, so that no two of 2^64 block numbers share a seed."""


def header(key: bytes, number: int, length: int) -> bytes:
    """The first bytes of segment `number` of the version with this key, a file of `length` bytes."""
    return _HEADER.pack(_MAGIC, _VERSION, number, length, key)


def described(found: bytes) -> tuple[bytes, int, int] | None:
    """Key, number and length of the file as a segment's first bytes tell them; None where these are no header."""
    if len(found) < HEADER:
        return None
    magic, version, number, length, key = _HEADER.unpack_from(found)
    return (key, number, length) if (magic, version) == (_MAGIC, _VERSION) else None


def check_value(key: bytes, block: int, data: bytes | bytearray | memoryview) -> bytes:
    """The slot of `block`, numbered from the file's start, when it holds `data`."""
    return slot_of(key, digest(block, [data]))


def digest(block: int, pieces: Iterable[bytes | bytearray | memoryview]) -> int:
    """What the check value of `block` is made of, whatever its version: `slot_of` makes it. `pieces` are its bytes."""
    found = xxhash.xxh3_128(seed=block * _SPREAD & _MASK)
    for piece in pieces:
        found.update(piece)
    return found.intdigest()


def slot_of(key: bytes, digest: int) -> bytes:
    """The check value of a block with this digest in the version with this key."""
    return (digest ^ int.from_bytes(key, "big")).to_bytes(SLOT, "big")


def digest_in(key: bytes, slot: bytes) -> int:
    """The inverse of `slot_of`."""
    return int.from_bytes(slot, "big") ^ int.from_bytes(key, "big")


def moved(table: bytes, old: bytes, key: bytes, number: int, length: int, stop: int) -> bytes:
    """The table of a segment of the version `old` as that of segment `number` of the version `key`, a file of `length`
    bytes. Blocks from `stop` on, numbered from the file's start, are not here."""
    slots = []
    for index in range(PER_SEGMENT):
        slot = table[SLOTS_AT + SLOT * index :][:SLOT].ljust(SLOT, b"\0")
        stays = slot != EMPTY and number * PER_SEGMENT + index < stop
        slots.append(slot_of(key, digest_in(old, slot)) if stays else EMPTY)
    return header(key, number, length) + b"".join(slots)


def here(slots: bytes) -> bytes:
    """A byte for each of these slots: 1 where it holds something, else 0."""
    return bytes(slots[at : at + SLOT] != EMPTY for at in range(0, len(slots), SLOT))
