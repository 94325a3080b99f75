"""Extents of a stored image, read back from its packs in any order, as the blocks of a new device.

Blocks are read in batches: those of a batch that lie close together in a pack as one range, several ranges at once
because stores have latency, and a batch ahead of what is being written. What does not have the digest that the index
says is not copied. Memory is bounded by two batches.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import lz4.block

from imagefs.blocks.source import PackSource
from imagefs.errors import DamagedObject
from imagefs.format import erofs
from imagefs.format.index import BLOCK, NOWHERE, BlockLocation, Index, Pack
from imagefs.repository.images import Images
from imagefs.trace.target import Extent
from stripefs.errors import Transient
from stripefs.retry import Backoff
from stripefs.settings import StoreSettings
from stripefs.store.base import Buffer

__all__ = ["device_blocks"]

_AT_ONCE = 8
_BATCH = 256  # blocks: 32 MiB
_RANGE = 4 << 20
_GAP = 256 << 10  # bytes that are sooner read in vain than a second range is asked for
_ATTEMPTS = 4
_FIRST_PAUSE = 0.5  # seconds
_PER_BLOCK = BLOCK // erofs.BLOCK

Decoded = dict[int, bytes]


def device_blocks(images: Images, index: Index, extents: Sequence[Extent]) -> Iterator[tuple[int, bytes]]:
    """Number and content of each block of a device that holds copies of `extents`, one after the other.

    Each begins on a multiple of 4 KiB. `index` is that of the device where their cold places are. Raises DamagedObject
    and StoreErrors.
    """
    number, data = 0, bytearray()
    for content in _contents(images, index, extents):
        data += bytes(-len(data) % erofs.BLOCK)
        data += content
        while len(data) > BLOCK - erofs.BLOCK:
            # In the last 4 KiB of a block no other extent can begin.
            yield number, bytes(data[:BLOCK])
            number += 1
            del data[:BLOCK]
    if data:
        yield number, bytes(data)


def _contents(images: Images, index: Index, extents: Sequence[Extent]) -> Iterator[bytes]:
    with _Packs(images) as packs, ThreadPoolExecutor(_AT_ONCE) as pool:
        batches = _batches(extents)
        current = _Batch(pool, packs, index, next(batches, []), {})
        try:
            while current.extents:
                following = _Batch(pool, packs, index, next(batches, []), current.blocks)
                yield from current.contents()
                current = following
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _batches(extents: Sequence[Extent]) -> Iterator[list[Extent]]:
    """The extents in pieces that need no more than `_BATCH` blocks each."""
    batch: list[Extent] = []
    blocks: set[int] = set()
    for extent in extents:
        blocks.add(extent.cold // _PER_BLOCK)
        if len(blocks) > _BATCH:
            yield batch
            batch, blocks = [], {extent.cold // _PER_BLOCK}
        batch.append(extent)
    if batch:
        yield batch


class _Batch:
    """Extents whose blocks are on their way; `blocks` holds for each block the range that brings it."""

    def __init__(
        self,
        pool: ThreadPoolExecutor,
        packs: _Packs,
        index: Index,
        extents: list[Extent],
        before: dict[int, Future[Decoded]],
    ) -> None:
        self.extents = extents
        needed = {extent.cold // _PER_BLOCK for extent in extents}
        self.blocks = {block: before[block] for block in needed & before.keys()}
        for group in _ranges(index, sorted(needed - before.keys())):
            future = pool.submit(packs.read, index, group)
            self.blocks |= dict.fromkeys((block for block, _ in group), future)

    def contents(self) -> Iterator[bytes]:
        for extent in self.extents:
            block, page = divmod(extent.cold, _PER_BLOCK)
            data, at = self.blocks[block].result()[block], page * erofs.BLOCK
            yield data[at : at + extent.length].ljust(extent.length, b"\0")


def _ranges(index: Index, blocks: Sequence[int]) -> Iterator[list[tuple[int, BlockLocation]]]:
    """The blocks in groups that are read as one range each."""
    group: list[tuple[int, BlockLocation]] = []
    begin = end = pack = 0
    for block, place in sorted(
        ((block, index.place(block)) for block in blocks), key=lambda found: (found[1].pack, found[1].offset)
    ):
        joined = place.pack == pack and place.offset - end <= _GAP and place.offset + place.stored - begin <= _RANGE
        if group and not joined:
            yield group
            group = []
        if not group:
            begin, end, pack = place.offset, place.offset, place.pack
        group.append((block, place))
        end = max(end, place.offset + place.stored)
    if group:
        yield group


class _Packs:
    """The packs of a store, for many threads."""

    def __init__(self, images: Images) -> None:
        self._url = images.url
        self._source = PackSource(StoreSettings(), connect=lambda _settings: images.repository, owned=False)

    def __enter__(self) -> _Packs:
        return self

    def __exit__(self, *_details: object) -> None:
        self._source.close()

    def read(self, index: Index, group: Sequence[tuple[int, BlockLocation]]) -> Decoded:
        """The blocks of a group, checked."""
        first = group[0][1]
        if first.pack == NOWHERE:
            return {block: b"" for block, _ in group}
        pack = index.packs[first.pack]
        end = max(place.offset + place.stored for _, place in group)
        data = memoryview(self._range(pack, first.offset, end - first.offset))
        found = {}
        for block, place in group:
            at = place.offset - first.offset
            found[block] = _decode(place, data[at : at + place.stored], f"pack {pack.digest.hex()} in {self._url}")
        return found

    def _range(self, pack: Pack, offset: int, length: int) -> Buffer:
        backoff = Backoff(_FIRST_PAUSE)
        for _ in range(1, _ATTEMPTS):
            with contextlib.suppress(Transient):
                return self._source.read(pack, offset, length)
            time.sleep(backoff.failed(time.monotonic()))
        return self._source.read(pack, offset, length)


def _decode(place: BlockLocation, stored: memoryview, where: str) -> bytes:
    """The bytes of a block. Raises DamagedObject where they are not those that the index means."""
    try:
        data = (
            bytes(stored)
            if place.stored == place.length
            else lz4.block.decompress(stored, uncompressed_size=place.length)
        )
    except lz4.block.LZ4BlockError as error:
        raise DamagedObject(f"a block of {where} cannot be unpacked: {error}") from error
    if len(data) != place.length or hashlib.sha256(data).digest() != place.digest:
        raise DamagedObject(f"a block of {where} holds other bytes than the image says")
    return bytes(data)
