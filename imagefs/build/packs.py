"""The content of a device, block by block, into packs: hashed, looked up among what is stored already, compressed.

`KnownBlocks` finds blocks in the images that a build is most likely to share them with: the image that the tag names so
far, then the newest of the store, as many as `_INDEX_BYTES` of block indexes take. In a store of thousands a block of
an old image may be stored once more. A wrong hit cannot be: indexes are checked against their digests, and a pack is
looked for before its first block is used.

An object that is used may be removed while the build runs. `KnownBlocks.check` says so: it is called when the new
manifest is stored, because `gc` reads the manifests before it removes anything. Either it sees the new one, or the
image that kept a pack alive was gone before, and then `check` misses it.
"""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from imagefs.build.content import Segment, read_exactly
from imagefs.errors import BuildError, DamagedObject, FormatError, NoSuchImage
from imagefs.format.codec import SAMPLE, encode
from imagefs.format.documents import Manifest
from imagefs.format.index import BLOCK, CODECS, NOWHERE, BlockLocation, Index, Pack
from imagefs.repository.images import Images
from stripefs.errors import NotFound

__all__ = ["PACK_SIZE", "Known", "KnownBlocks", "Packs", "blocks_of", "sample", "store"]

PACK_SIZE = 32 << 20
"""Bytes after which a pack is closed: large enough that HDFS and object stores like it, small enough to hold in memory
while it is filled."""

_AHEAD = 64  # blocks that are being hashed and compressed: 8 MiB
_ZEROS = bytes(BLOCK)

_log = logging.getLogger("imagefs.build")
_INDEX_BYTES = 64 << 20
"""Bytes of indexes that are held: 1.3 million blocks, 160 GiB of files."""

_RECORD = 52  # bytes of an index for one block
_AT_ONCE = 16
_BITS = 16  # of the filter for each block: one block in 16 that no index has is looked for in vain


@dataclass(frozen=True, slots=True)
class Known:
    """A block that is in the store already."""

    pack: Pack
    place: BlockLocation


@dataclass(slots=True)
class Packs:
    """Fills packs and hands each full one to `put`, which stores it under its digest and says whether it had to.

    That happens on another thread, while the next pack fills. codec: of the blocks that are compressed. stored_bytes:
    of the packs that were not there.
    """

    put: Callable[[Pack, bytes], bool]
    codec: str = CODECS[0]
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
        compressed = any(stored < length for _, _, _, stored, length in waiting)
        self.all.append(Pack(b"", self._length, self.codec if compressed else CODECS[0]))  # until it is hashed
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
        pack = self.all[number] = self.all[number]._replace(digest=hashlib.sha256(data).digest())
        if self.put(pack, data):
            self.stored_bytes += len(data)


def sample(segments: Sequence[Segment], device_bytes: int) -> Iterator[bytes]:
    """Up to `SAMPLE` blocks of a device, as evenly spread over it as its holes permit."""
    step = -(-device_bytes // BLOCK // SAMPLE) or 1
    return (data for _, data in blocks_of(list(_sampled(segments, step)), device_bytes) if data)


def _sampled(segments: Sequence[Segment], step: int) -> Iterator[Segment]:
    """The parts of the segments that lie in each `step`th block."""
    for segment in segments:
        first, end = segment.at // BLOCK, segment.at + segment.length
        for at in range((first + -first % step) * BLOCK, end, step * BLOCK):
            begin = max(at, segment.at)
            offset, length = segment.offset + begin - segment.at, min(end, at + BLOCK) - begin
            yield replace(segment, offset=offset, length=length, at=begin)


def store(
    blocks: Iterator[tuple[int, bytes]],
    count: int,
    packs: Packs,
    find: Callable[[bytes], Known | None],
    progress: Callable[[int], None] = lambda _done: None,
    look: Callable[[int, bytes], None] = lambda _block, _data: None,
) -> list[BlockLocation]:
    """Put `count` blocks that come with their numbers into `packs`, but those that are known; where each is, in order.

    `look` is called with number and content of every block, from several threads and in no order. Memory is bounded by
    two packs and the blocks being compressed.
    """
    places: list[BlockLocation | None] = [None] * count
    here: dict[bytes, list[int]] = {}  # blocks that wait for the pack of an equal one

    def note_places(found: list[tuple[int, BlockLocation]]) -> None:
        for block, place in found:
            for number in here.pop(place.digest, [block]):
                places[number] = place
            known_places[place.digest] = place

    known_places: dict[bytes, BlockLocation] = {}
    with ThreadPoolExecutor() as pool, ThreadPoolExecutor(1) as putter:
        for block, data, (digest, stored) in _in_order(pool, blocks, packs.codec, look):
            if digest is None:
                places[block] = BlockLocation(bytes(32), NOWHERE, 0, 0, 0)
            elif digest in known_places:
                places[block] = known_places[digest]
            elif digest in here:
                here[digest].append(block)
            elif known := find(digest):
                place = known.place
                places[block] = known_places[digest] = BlockLocation(
                    digest, packs.number(known.pack), place.offset, place.stored, place.length
                )
            else:
                here[digest] = [block]
                note_places(packs.add(block, digest, stored, len(data), putter))
            progress(len(data))
        note_places(packs.close(putter))
        packs.wait()
    if None in places:
        raise BuildError("a block was lost on the way: please report this")
    return [place for place in places if place is not None]


def blocks_of(segments: Sequence[Segment], device_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Number and content of each block of a device up to its last byte that a file reaches. Raises BuildError for a
    file that changed."""
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
    while current < -(-device_bytes // BLOCK):
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


def _in_order(
    pool: ThreadPoolExecutor, blocks: Iterator[tuple[int, bytes]], codec: str, look: Callable[[int, bytes], None]
) -> Iterator[tuple[int, bytes, tuple[bytes | None, bytes]]]:
    waiting: deque[tuple[int, bytes, Future[tuple[bytes | None, bytes]]]] = deque()
    for block, data in blocks:
        waiting.append((block, data, pool.submit(_encode, block, data, codec, look)))
        if len(waiting) > _AHEAD:
            first, content, future = waiting.popleft()
            yield first, content, future.result()
    for first, content, future in waiting:
        yield first, content, future.result()


def _encode(block: int, data: bytes, codec: str, look: Callable[[int, bytes], None]) -> tuple[bytes | None, bytes]:
    """SHA-256 and stored form of a block; None for zeros."""
    look(block, data)
    if data == _ZEROS[: len(data)]:
        return None, b""
    return hashlib.sha256(data).digest(), encode(codec, data)


class KnownBlocks:
    """The blocks of the images in a store, read when made."""

    def __init__(self, images: Images, tag: str = "") -> None:
        self._images = images
        self._holders: dict[str, list[str]] = {}  # the images that have an index, by its digest
        for image, manifest in self._choose(tag):
            for device in manifest.devices:
                self._holders.setdefault(device.index, []).append(image)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            found = zip(self._holders, pool.map(self._index, self._holders), strict=True)
            self._indexes = [(digest, index) for digest, index in found if index is not None]
        self._filter = _Filter(self._indexes)
        self._present: dict[bytes, bool] = {}  # packs that were looked for
        self._used: set[str] = set()  # indexes
        self._packs = {pack: name for name, index in self._indexes for pack in index.packs}

    def find(self, digest: bytes) -> Known | None:
        """The location of the block with that digest. Raises StoreErrors."""
        if digest not in self._filter:
            return None
        for number, (name, index) in enumerate(self._indexes):
            place = index.find(digest)
            if place is None or place.pack == NOWHERE:
                continue
            pack = index.packs[place.pack]
            if pack.digest not in self._present:
                self._present[pack.digest] = self._images.has_pack(pack)
            if self._present[pack.digest]:
                if number:  # its next block is likely in the same image
                    self._indexes.insert(0, self._indexes.pop(number))
                self._used.add(name)
                return Known(pack, place)
        return None

    def holds(self, pack: Pack) -> bool:
        """Tells whether one of these images has the pack, and the store all of its bytes. Raises StoreErrors."""
        if (name := self._packs.get(pack)) is None or not self._images.has_pack(pack):
            return False
        self._used.add(name)
        return True

    def check(self) -> None:
        """Raise BuildError where an image whose blocks were used is gone."""
        for name in self._used:
            if not any(self._images.has(image) for image in self._holders[name]):
                raise BuildError(
                    "an image was removed whose blocks this one shares", hint="nothing was published; build it again"
                )

    def _choose(self, tag: str) -> Iterator[tuple[str, Manifest]]:
        """Image and manifest of those that may share blocks, the likeliest first."""
        newest = self._images.images()
        order = sorted(newest, key=lambda digest: (newest[digest].mtime_ns, digest), reverse=True)
        own = self._tagged(tag) if tag else ""
        if own in newest:
            order.remove(own)
            order.insert(0, own)
        bytes_left, seen = _INDEX_BYTES, set[str]()
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for start in range(0, len(order), _AT_ONCE):
                chosen = order[start : start + _AT_ONCE]
                for digest, manifest in zip(chosen, pool.map(self._manifest, chosen), strict=True):
                    if manifest is None:
                        continue
                    devices = {device.index: device for device in manifest.devices if device.index not in seen}
                    bytes_left -= sum(_RECORD * (device.size // BLOCK + 1) for device in devices.values())
                    if bytes_left < 0 and seen:
                        return
                    seen |= devices.keys()
                    yield digest, manifest

    def _tagged(self, tag: str) -> str:
        try:
            return self._images.resolve(tag)
        except (NoSuchImage, DamagedObject):
            return ""

    def _manifest(self, digest: str) -> Manifest | None:
        try:
            return self._images.manifest(digest)
        except NoSuchImage:
            return None  # removed since it was listed
        except (DamagedObject, FormatError) as error:
            _log.warning("image %s shares no blocks with this one: %s", digest, error)
            return None

    def _index(self, digest: str) -> Index | None:
        try:
            return self._images.index(digest)
        except (DamagedObject, FormatError, NotFound) as error:
            _log.warning("the blocks of index %s are not shared: %s", digest, error)
            return None


class _Filter:
    """Tells whether a digest may be in one of the indexes: never a wrong no, seldom a wrong yes."""

    def __init__(self, indexes: list[tuple[str, Index]]) -> None:
        bits = 1 << max(10, (_BITS * sum(index.blocks for _, index in indexes)).bit_length())
        self._mask = bits - 1
        self._map = bytearray(bits >> 3)
        for _, index in indexes:
            for digest in index.digests():
                at = int.from_bytes(digest[:8], "little") & self._mask
                self._map[at >> 3] |= 1 << (at & 7)

    def __contains__(self, digest: bytes) -> bool:
        at = int.from_bytes(digest[:8], "little") & self._mask
        return bool(self._map[at >> 3] >> (at & 7) & 1)
