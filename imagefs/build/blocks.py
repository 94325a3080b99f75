"""The content of a device, block by block, into packs: hashed, looked up among what is stored already, compressed."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

import lz4.block

from imagefs.build.content import read_exactly
from imagefs.build.layout import Segment
from imagefs.errors import BuildError
from imagefs.format.index import BLOCK, NOWHERE, Pack, Place

__all__ = ["PACK_SIZE", "Known", "Packs", "store_blocks"]

PACK_SIZE = 32 << 20
"""Bytes after which a pack is closed: large enough that HDFS and object stores like it, small enough to hold in memory
while it is filled."""

_AHEAD = 64  # blocks that are being hashed and compressed: 8 MiB

_ZEROS = bytes(BLOCK)


@dataclass(frozen=True, slots=True)
class Known:
    """A block that is in the store already."""

    pack: Pack
    place: Place


class Find(Protocol):
    def __call__(self, digest: bytes) -> Known | None: ...


@dataclass(slots=True)
class Packs:
    """Fills packs and hands each full one to `put`, which stores it under its digest."""

    put: Callable[[Pack, bytes], None]
    all: list[Pack] = field(default_factory=list)
    stored_bytes: int = 0
    _numbers: dict[bytes, int] = field(default_factory=dict)
    _open: bytearray = field(default_factory=bytearray)
    _waiting: list[tuple[int, bytes, int, int, int]] = field(default_factory=list)

    def number(self, pack: Pack) -> int:
        """The number by which the index calls `pack`."""
        if pack.digest not in self._numbers:
            self._numbers[pack.digest] = len(self.all)
            self.all.append(pack)
        return self._numbers[pack.digest]

    def add(self, block: int, digest: bytes, stored: bytes, length: int) -> list[tuple[int, Place]]:
        """Take a block; the places of those whose pack is full now."""
        self._waiting.append((block, digest, len(self._open), len(stored), length))
        self._open += stored
        self.stored_bytes += len(stored)
        return self.close() if len(self._open) >= PACK_SIZE else []

    def close(self) -> list[tuple[int, Place]]:
        """Store what is open; the places of its blocks."""
        if not self._waiting:
            return []
        data, waiting = bytes(self._open), self._waiting
        self._open, self._waiting = bytearray(), []
        pack = Pack(hashlib.sha256(data).digest(), len(data))
        self.put(pack, data)
        number = self.number(pack)
        return [
            (block, Place(digest, number, offset, stored, length)) for block, digest, offset, stored, length in waiting
        ]


def store_blocks(
    segments: Sequence[Segment],
    device_bytes: int,
    packs: Packs,
    find: Find,
    progress: Callable[[int], None] = lambda _done: None,
) -> list[Place]:
    """Put every block of the device that is not known into `packs`; where each block is, in order.

    Memory is bounded by a pack and the blocks being compressed. Raises BuildError for a file that changed.
    """
    places: list[Place | None] = [None] * -(-device_bytes // BLOCK)
    here: dict[bytes, list[int]] = {}  # blocks that wait for the pack of an equal one

    def settle(found: list[tuple[int, Place]]) -> None:
        for block, place in found:
            for number in here.pop(place.digest, [block]):
                places[number] = place
            settled[place.digest] = place

    settled: dict[bytes, Place] = {}
    with ThreadPoolExecutor() as pool:
        for block, data, (digest, stored) in _in_order(pool, _blocks(segments, len(places))):
            if digest is None:
                places[block] = Place(bytes(32), NOWHERE, 0, 0, 0)
            elif digest in settled:
                places[block] = settled[digest]
            elif digest in here:
                here[digest].append(block)
            elif known := find(digest):
                place = known.place
                places[block] = settled[digest] = Place(
                    digest, packs.number(known.pack), place.offset, place.stored, place.length
                )
            else:
                here[digest] = [block]
                settle(packs.add(block, digest, stored, len(data)))
            progress(len(data))
    settle(packs.close())
    if None in places:
        raise BuildError("a block was lost on the way: please report this")
    return [place for place in places if place is not None]


def _blocks(segments: Sequence[Segment], count: int) -> Iterator[tuple[int, bytes]]:
    """Number and content of each block up to its last byte that a file reaches."""
    pieces: Iterator[tuple[int, bytes]] = (piece for segment in segments for piece in _pieces(segment))
    current, data = 0, bytearray()
    for at, piece in pieces:
        block, begin = divmod(at, BLOCK)
        while current < block:
            yield current, bytes(data)
            current, data = current + 1, bytearray()
        data += bytes(begin - len(data)) + piece
    while current < count:
        yield current, bytes(data)
        current, data = current + 1, bytearray()


def _pieces(segment: Segment) -> Iterator[tuple[int, bytes]]:
    """The segment, cut where blocks end."""
    with segment.content.open() as file:
        file.seek(segment.offset)
        at, end = segment.at, segment.at + segment.length
        while at < end:
            length = min(end, at - at % BLOCK + BLOCK) - at
            yield at, read_exactly(file, length, segment.content)
            at += length


Outcome = tuple[int, bytes, tuple[bytes | None, bytes]]


def _in_order(pool: ThreadPoolExecutor, blocks: Iterator[tuple[int, bytes]]) -> Iterator[Outcome]:
    waiting: deque[tuple[int, bytes, Future[tuple[bytes | None, bytes]]]] = deque()
    for block, data in blocks:
        waiting.append((block, data, pool.submit(_encode, data)))
        if len(waiting) > _AHEAD:
            yield _result(*waiting.popleft())
    while waiting:
        yield _result(*waiting.popleft())


def _result(block: int, data: bytes, future: Future[tuple[bytes | None, bytes]]) -> Outcome:
    return block, data, future.result()


def _encode(data: bytes) -> tuple[bytes | None, bytes]:
    """SHA-256 and stored form of a block; None for zeros."""
    if data == _ZEROS[: len(data)]:
        return None, b""
    packed = lz4.block.compress(data, store_size=False)
    return hashlib.sha256(data).digest(), packed if len(packed) < len(data) else data
