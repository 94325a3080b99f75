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
from imagefs.format.index import BLOCK, NOWHERE, BlockLocation, Pack

__all__ = ["PACK_SIZE", "Known", "Packs", "store", "store_blocks"]

PACK_SIZE = 32 << 20
"""Bytes after which a pack is closed: large enough that HDFS and object stores like it, small enough to hold in memory
while it is filled."""

_AHEAD = 64  # blocks that are being hashed and compressed: 8 MiB
_ZEROS = bytes(BLOCK)


@dataclass(frozen=True, slots=True)
class Known:
    """A block that is in the store already."""

    pack: Pack
    place: BlockLocation


class Find(Protocol):
    def __call__(self, digest: bytes) -> Known | None: ...


@dataclass(slots=True)
class Packs:
    """Fills packs and hands each full one to `put`, which stores it under its digest and says whether it had to.

    That happens on another thread, while the next pack fills. stored_bytes: of the packs that were not there.
    """

    put: Callable[[Pack, bytes], bool]
    all: list[Pack] = field(default_factory=list)
    stored_bytes: int = 0
    _numbers: dict[bytes, int] = field(default_factory=dict)
    _open: list[bytes] = field(default_factory=list)
    _length: int = 0
    _waiting: list[tuple[int, bytes, int, int, int]] = field(default_factory=list)
    _putting: Future[None] | None = None

    def number(self, pack: Pack) -> int:
        """The number by which the index calls `pack`."""
        if pack.digest not in self._numbers:
            self._numbers[pack.digest] = len(self.all)
            self.all.append(pack)
        return self._numbers[pack.digest]

    def add(
        self, block: int, digest: bytes, stored: bytes, length: int, putter: ThreadPoolExecutor
    ) -> list[tuple[int, BlockLocation]]:
        """Take a block; the places of those whose pack is full now."""
        self._waiting.append((block, digest, self._length, len(stored), length))
        self._open.append(stored)
        self._length += len(stored)
        return self.close(putter) if self._length >= PACK_SIZE else []

    def close(self, putter: ThreadPoolExecutor) -> list[tuple[int, BlockLocation]]:
        """Let `putter` store what is open; the places of its blocks. Raises what storing the pack before raised."""
        self.wait()
        if not self._waiting:
            return []
        waiting, number = self._waiting, len(self.all)
        self.all.append(Pack(b"", self._length))  # until it is hashed
        self._putting = putter.submit(self._put, number, self._open)
        self._open, self._length, self._waiting = [], 0, []
        return [
            (block, BlockLocation(digest, number, offset, stored, length))
            for block, digest, offset, stored, length in waiting
        ]

    def wait(self) -> None:
        """Return when all that was closed is stored, or raise why it is not."""
        if self._putting is not None:
            self._putting.result()
            self._putting = None

    def _put(self, number: int, blocks: list[bytes]) -> None:
        data = b"".join(blocks)
        blocks.clear()
        pack = self.all[number] = Pack(hashlib.sha256(data).digest(), len(data))
        if self.put(pack, data):
            self.stored_bytes += len(data)


def store_blocks(
    segments: Sequence[Segment],
    device_bytes: int,
    packs: Packs,
    find: Find,
    progress: Callable[[int], None] = lambda _done: None,
    look: Callable[[int, bytes], None] = lambda _block, _data: None,
) -> list[BlockLocation]:
    """Put every block of a device with these files into `packs`, as `store` does. Raises BuildError for a file that
    changed."""
    count = -(-device_bytes // BLOCK)
    return store(_blocks(segments, count), count, packs, find, progress, look)


def store(
    blocks: Iterator[tuple[int, bytes]],
    count: int,
    packs: Packs,
    find: Find,
    progress: Callable[[int], None] = lambda _done: None,
    look: Callable[[int, bytes], None] = lambda _block, _data: None,
) -> list[BlockLocation]:
    """Put `count` blocks that come with their numbers into `packs`, but those that are known; where each is, in order.

    `look` is called with number and content of every block, from several threads and in no order. Memory is bounded by
    two packs and the blocks being compressed.
    """
    places: list[BlockLocation | None] = [None] * count
    here: dict[bytes, list[int]] = {}  # blocks that wait for the pack of an equal one

    def settle(found: list[tuple[int, BlockLocation]]) -> None:
        for block, place in found:
            for number in here.pop(place.digest, [block]):
                places[number] = place
            settled[place.digest] = place

    settled: dict[bytes, BlockLocation] = {}
    with ThreadPoolExecutor() as pool, ThreadPoolExecutor(1) as putter:
        for block, data, (digest, stored) in _in_order(pool, blocks, look):
            if digest is None:
                places[block] = BlockLocation(bytes(32), NOWHERE, 0, 0, 0)
            elif digest in settled:
                places[block] = settled[digest]
            elif digest in here:
                here[digest].append(block)
            elif known := find(digest):
                place = known.place
                places[block] = settled[digest] = BlockLocation(
                    digest, packs.number(known.pack), place.offset, place.stored, place.length
                )
            else:
                here[digest] = [block]
                settle(packs.add(block, digest, stored, len(data), putter))
            progress(len(data))
        settle(packs.close(putter))
        packs.wait()
    if None in places:
        raise BuildError("a block was lost on the way: please report this")
    return [place for place in places if place is not None]


def _blocks(segments: Sequence[Segment], count: int) -> Iterator[tuple[int, bytes]]:
    """Number and content of each block up to its last byte that a file reaches."""
    current, parts, length = 0, list[bytes](), 0
    for at, piece in (piece for segment in segments for piece in _pieces(segment)):
        block, begin = divmod(at, BLOCK)
        while current < block:
            yield current, b"".join(parts)
            current, parts, length = current + 1, [], 0
        if begin > length:
            parts.append(bytes(begin - length))
        parts.append(piece)
        length = begin + len(piece)
    while current < count:
        yield current, b"".join(parts)
        current, parts = current + 1, []


def _pieces(segment: Segment) -> Iterator[tuple[int, bytes]]:
    """The segment, cut where blocks end."""
    with segment.content.open() as file:
        file.seek(segment.offset)
        at, end = segment.at, segment.at + segment.length
        while at < end:
            length = min(end, at - at % BLOCK + BLOCK) - at
            yield at, read_exactly(file, length, segment.content)
            at += length


BlockOutcome = tuple[int, bytes, tuple[bytes | None, bytes]]


def _in_order(
    pool: ThreadPoolExecutor, blocks: Iterator[tuple[int, bytes]], look: Callable[[int, bytes], None]
) -> Iterator[BlockOutcome]:
    waiting: deque[tuple[int, bytes, Future[tuple[bytes | None, bytes]]]] = deque()
    for block, data in blocks:
        waiting.append((block, data, pool.submit(_encode, block, data, look)))
        if len(waiting) > _AHEAD:
            yield _result(*waiting.popleft())
    while waiting:
        yield _result(*waiting.popleft())


def _result(block: int, data: bytes, future: Future[tuple[bytes | None, bytes]]) -> BlockOutcome:
    return block, data, future.result()


def _encode(block: int, data: bytes, look: Callable[[int, bytes], None]) -> tuple[bytes | None, bytes]:
    """SHA-256 and stored form of a block; None for zeros."""
    look(block, data)
    if data == _ZEROS[: len(data)]:
        return None, b""
    packed = lz4.block.compress(data, store_size=False)
    return hashlib.sha256(data).digest(), packed if len(packed) < len(data) else data
