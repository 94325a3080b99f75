"""Format of the cache: the keys of versions, the grid of blocks and segments, and the table of a segment. Pure.

**Key.** Blocks of a file that changed have another key, so they are not found. A key is a BLAKE2b of where the store is
and of the version's identity there. Where ids name files of the whole service (HDFS inodes, local device:inode) the
path is left out, so that a renamed file keeps what is cached of it and mounts of different directories share. Ids of
web servers and buckets may be the same for two paths (some are made of time and length alone), so there the URL of the
file is part of the key.

**Grid.** A file is cut into blocks of 1 MiB counted from its start, the last one shorter, and 64 blocks make a segment,
which is one file of the cache. The grid depends on nothing but the file's length, so every process finds the same
blocks, whatever the store says about where bytes lie.

**Table.** A segment begins with its identity and a check value for each block that it holds:

    0      magic "STRIPEFS"; version 1 (4 bytes); 4 zeros; number of the segment, length of the file (8 bytes each)
    32     key of the version (16 bytes); 16 zeros
    64     64 slots of 16 bytes: check value of the block, zeros where the block is not here
    1 MiB  block 0 of the segment, then the others, 1 MiB each

All numbers are little endian. A check value is the XXH3-128 of the block's bytes, seeded with the block's number in the
file, exclusive-or the key: so bytes that got to another place, or into the cache of another version, do not fit, and
what is written before its key is known needs no second look at the bytes. docs/format-cache.md is for people.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterable, Iterator

import xxhash

from stripefs.format.manifest import STRIPED_ID
from stripefs.store.base import Identity
from stripefs.units import shown

__all__ = [
    "BLOCK",
    "DATA_AT",
    "EMPTY",
    "FILE_LENGTH",
    "HEADER",
    "KEY",
    "OPEN_END",
    "PER_SEGMENT",
    "SEGMENT",
    "SETTLED",
    "SLOT",
    "SLOTS_AT",
    "TABLE",
    "block_at",
    "by_segment",
    "check_value",
    "clip",
    "described",
    "digest",
    "digest_in",
    "header",
    "index_in_segment",
    "inside",
    "key_of",
    "length_of",
    "location_of",
    "next_block",
    "offset_of",
    "over",
    "presence",
    "rekeyed",
    "runs",
    "segment_blocks",
    "segment_of",
    "segments_over",
    "slot_of",
]

BLOCK = 1 << 20
"""Bytes of a block: the least that the reader fetches, so that its ranges begin and end where blocks do."""

PER_SEGMENT = 64
"""Blocks of a segment: a TiB has 16,000 segments, which eviction can look through in some 50 ms."""

SEGMENT = BLOCK * PER_SEGMENT


def offset_of(block: int) -> int:
    """The offset in the file at which a block begins."""
    return block * BLOCK


def block_at(offset: int) -> int:
    """The block that holds the byte at `offset`."""
    return offset // BLOCK


def next_block(offset: int) -> int:
    """The offset of the first block that begins at `offset` or behind it."""
    return -(-offset // BLOCK) * BLOCK


def clip(blocks: range, begin: int, end: int) -> tuple[int, int]:
    """The bytes [begin, end) of a file, as far as they lie in these neighbours: where they begin and end."""
    return max(begin, offset_of(blocks.start)), min(end, offset_of(blocks.stop))


def segment_of(blocks: range) -> int:
    """The segment in which these neighbours begin."""
    return blocks.start // PER_SEGMENT


def index_in_segment(blocks: range) -> int:
    """Number of blocks of their segment before these neighbours."""
    return blocks.start % PER_SEGMENT


def segment_blocks(number: int) -> range:
    """The blocks of segment `number`, as many as fit there."""
    return range(number * PER_SEGMENT, (number + 1) * PER_SEGMENT)


def segments_over(offset: int, end: int, file_length: int) -> tuple[int, int]:
    """The offsets at which the segments begin and end that overlap the bytes [offset, end) of a file."""
    return offset // SEGMENT * SEGMENT, min(-(-end // SEGMENT) * SEGMENT, file_length)


def over(offset: int, length: int) -> range:
    """The blocks that overlap [offset, offset + length)."""
    return range(block_at(offset), block_at(offset + length - 1) + 1) if length > 0 else range(0)


def inside(offset: int, length: int, file_length: int) -> range:
    """The blocks that lie wholly in [offset, offset + length) of a file of `file_length` bytes."""
    end = offset + length
    stop = -(-end // BLOCK) if end >= file_length else end // BLOCK
    first = -(-offset // BLOCK)
    return range(first, max(first, stop))


def length_of(blocks: range, file_length: int) -> int:
    """Bytes of these neighbours, the file's last block being short."""
    begin, end = clip(blocks, 0, file_length)
    return max(0, end - begin)


def by_segment(blocks: range) -> Iterator[range]:
    """`blocks`, cut where segments end."""
    start = blocks.start
    while start < blocks.stop:
        stop = min(blocks.stop, segment_blocks(start // PER_SEGMENT).stop)
        yield range(start, stop)
        start = stop


def runs(blocks: range, here: bytes) -> Iterator[tuple[range, bool]]:
    """`blocks` cut where `here` (a byte for each, 0 or 1) changes; with each piece what it says there."""
    start = 0
    while start < len(here):
        stop = here.find(b"\1" if not here[start] else b"\0", start)
        stop = len(here) if stop < 0 else stop
        yield blocks[start:stop], bool(here[start])
        start = stop


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
"""Offset of block 0: data keeps its alignment in the file, and the hole before it takes no room."""

FILE_LENGTH = DATA_AT + BLOCK * PER_SEGMENT
"""Of every segment; most of a short one is a hole."""

OPEN_END = 1 << 62
"""The length of a file that is being written: it is not known yet, and all its blocks are whole ones."""

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
    """The digest of `block`, whatever its version, from which the check value is made: `slot_of` makes it. `pieces` are
    its bytes."""
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


def rekeyed(table: bytes, old: bytes, key: bytes, number: int, length: int, stop: int) -> bytes:
    """The table of a segment of the version `old` as that of segment `number` of the version `key`, a file of `length`
    bytes. Blocks from `stop` on, numbered from the file's start, are not here."""
    slots = []
    for index in range(PER_SEGMENT):
        slot = table[SLOTS_AT + SLOT * index :][:SLOT].ljust(SLOT, b"\0")
        stays = slot != EMPTY and number * PER_SEGMENT + index < stop
        slots.append(slot_of(key, digest_in(old, slot)) if stays else EMPTY)
    return header(key, number, length) + b"".join(slots)


def presence(slots: bytes) -> bytes:
    """A byte for each of these slots: 1 where it holds something, else 0."""
    return bytes(slots[at : at + SLOT] != EMPTY for at in range(0, len(slots), SLOT))


_WHOLE_SERVICE = frozenset(("file", "hdfs"))
"""Schemes whose file ids are unique for all that their authority names."""

_URL = re.compile(r"(?P<layers>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?]*)(?P<rest>.*)", re.DOTALL)

SETTLED = 2_000_000_000
"""Nanoseconds for which a local file must have been left alone before it is cached, unless it is a striped one: two
writes within one tick of a file's time stamps look like one version, which must not be remembered."""


def key_of(url: str, path: bytes, identity: Identity, now_ns: int, *, trust_mtime: bool = False) -> bytes | None:
    """The key of the file at `path` of the store at `url` (without secrets), None where it cannot be distinguished from
    others.

    now_ns: nanoseconds since 1970. trust_mtime: length and time make a version where the store has no ids.
    """
    match = _URL.fullmatch(url if "://" in url else f"file://{url}")
    if match is None or not (identity.file_id or (trust_mtime and identity.mtime_ns)):
        return None
    layers = match["layers"].lower()
    authority = match["authority"].rpartition("@")[2].lower()
    scheme = layers.rpartition("+")[2]
    unsettled = scheme == "file" and abs(now_ns - identity.mtime_ns) < SETTLED
    if unsettled and not STRIPED_ID.search(identity.file_id):
        return None
    where: tuple[object, ...] = (layers, authority)
    if not identity.file_id or scheme not in _WHOLE_SERVICE:
        where += (match["rest"], path)
    parts = (*where, identity.length, identity.mtime_ns, identity.file_id)
    return hashlib.blake2b(repr(parts).encode("utf-8", "surrogateescape"), digest_size=KEY).digest()


def location_of(url: str, path: bytes) -> tuple[str, str]:
    """(service, absolute path there) of the file at `path` of the store at `url`, for people."""
    match = _URL.fullmatch(url if "://" in url else f"file://{url}")
    if match is None:
        return url, shown(path)
    root = match["rest"].partition("?")[0].rstrip("/")
    return f"{match['layers']}://{match['authority'].rpartition('@')[2]}", f"{root}{shown(path)}"
