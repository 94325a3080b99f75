"""Block codecs: from the bytes of a block to its stored bytes and back, and the choice of a codec for a device.

A pack has one codec, whose number the block index holds beside the pack's digest. A block that a codec makes no smaller
is stored as it is. The codec is no part of a block's identity, the SHA-256 of its plain bytes: a build finds a block
whatever codec its pack has, and one index may name packs of several codecs.

Stored bytes are not trusted. The index bounds the size of a block before anything is allocated: LZ4 unpacks into as
many bytes as the index says, and a Zstandard frame that states another size is refused, as its own field would decide
the allocation. Compressors and decompressors are made for each block, in 8 µs, because they belong to one thread.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

import lz4.block
import zstandard

from imagefs.format.index import CODECS, BlockLocation
from imagefs.settings import Compression

__all__ = ["SAMPLE", "choose", "decode", "encode"]

SAMPLE = 64
"""Blocks of a device that decide about its codec: 8 MiB, compressed in 50 ms."""

_LEVEL = 3
_UNPACK_SECONDS = {"lz4": 0.30e-9, "zstd": 0.98e-9}
"""Processor seconds for a plain byte (docs/format.md, "Choice of a codec")."""


def _zstd_unpack(stored: memoryview | bytes, length: int) -> bytes:
    if zstandard.frame_content_size(stored) != length:
        raise zstandard.ZstdError("the frame states another size than the index")
    return zstandard.ZstdDecompressor().decompress(stored)


_PACK: dict[str, Callable[[bytes], bytes]] = {
    "lz4": lambda data: bytes(lz4.block.compress(data, store_size=False)),
    "zstd": lambda data: zstandard.ZstdCompressor(level=_LEVEL).compress(data),
}
_UNPACK: dict[str, Callable[[memoryview | bytes, int], bytes]] = {
    "lz4": lambda stored, length: bytes(lz4.block.decompress(stored, uncompressed_size=length)),
    "zstd": _zstd_unpack,
}


def encode(codec: str, data: bytes) -> bytes:
    """The stored bytes of a block, which are its own where the codec makes it no smaller."""
    packed = _PACK[codec](data)
    return packed if len(packed) < len(data) else data


def decode(codec: str, stored: memoryview | bytes, place: BlockLocation) -> bytes | None:
    """A copy of the bytes of the block at `place`, None where they are not those that the index means."""
    try:
        data = bytes(stored) if place.stored == place.length else _UNPACK[codec](stored, place.length)
    except (lz4.block.LZ4BlockError, zstandard.ZstdError):
        return None
    right = len(stored) == place.stored and len(data) == place.length and hashlib.sha256(data).digest() == place.digest
    return data if right else None


def choose(compression: Compression, sample: Iterable[bytes]) -> str:
    """The codec of a device: the one that is set, for "auto" the one by which the sample's blocks are there sooner.

    A block takes the time of its stored bytes on the link and then that of its decompression, one after the other as
    for a job that waits for it.
    """
    if compression.codec != "auto":
        return compression.codec
    seconds = dict.fromkeys(CODECS, 0.0)
    for data in sample:
        for codec in CODECS:
            stored = encode(codec, data)
            seconds[codec] += len(stored) / compression.link_rate if compression.link_rate else 0.0
            seconds[codec] += len(data) * _UNPACK_SECONDS[codec] if len(stored) < len(data) else 0.0
    return min(CODECS, key=seconds.__getitem__)
