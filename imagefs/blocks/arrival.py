"""Reads blocks from a source or from this machine, unpacks them, and checks each against its SHA-256.

Runs in the threads that read. A block that is not what it must be is None; nothing is raised for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import lz4.block
import xxhash

from imagefs.blocks.source import Source
from imagefs.format.index import BlockLocation, Pack
from stripefs.errors import StoreError, StripefsError

__all__ = ["Arrived", "Copy", "load", "read_copies"]

Arrived = tuple[bytes, int]
"""A block's bytes, checked, and their XXH3."""

Copy = Callable[[], bytes]
"""Reads a block from where it is on this machine already. Blocks; raises OSError, StoreError."""


def load(
    source: Source, pack: Pack, offset: int, length: int, places: Sequence[BlockLocation], received: Callable[[], None]
) -> list[Arrived | None]:
    """Read the range and unpack its blocks; None for each that is not what it must be. Raises StripefsError.

    received: called in between, when all bytes are here.
    """
    try:
        data = source.read(pack, offset, length)
    except StripefsError:
        raise
    except BaseException as error:  # a panic of a client written in Rust is no Exception
        raise StoreError(f"the client failed unexpectedly: {error!r}") from error
    arrived: list[Arrived | None] = [None] * len(places)
    if len(data) == length:
        received()
        view = memoryview(data)
        arrived = [_unpack(view[place.offset - offset :][: place.stored], place) for place in places]
    if None in arrived:
        source.doubt(pack)
    return arrived


def _unpack(stored: memoryview, place: BlockLocation) -> Arrived | None:
    if place.stored == place.length:
        data = bytes(stored)  # a copy, so that one block does not keep its whole range in memory
    else:
        try:
            data = lz4.block.decompress(stored, uncompressed_size=place.length)
        except lz4.block.LZ4BlockError:
            return None
    if len(data) != place.length or hashlib.sha256(data).digest() != place.digest:
        return None
    return data, xxhash.xxh3_64_intdigest(data)


def read_copies(copies: Sequence[tuple[bytes, Copy]]) -> list[Arrived | None]:
    """Read each block, of which this is the SHA-256, by its copy."""
    found: list[Arrived | None] = []
    for digest, copy in copies:
        try:
            data = copy()
        except (OSError, StoreError):
            found.append(None)
            continue
        right = hashlib.sha256(data).digest() == digest
        found.append((data, xxhash.xxh3_64_intdigest(data)) if right else None)
    return found
