"""Builds an image from a tree: devices, metadata, manifest, in this order, so that an image that is visible is whole.

The digests of all extents are taken from the blocks of a device as they pass by, so no file is read a second time. No
extent crosses the end of a 128 KiB block (`imagefs.build.content`), so the thread that hashes a block hashes the
extents in it as well, while it is in the processor's cache.
"""

from __future__ import annotations

import hashlib
import io
from array import array
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from imagefs.build.content import Content, Segment, lay_out, read_exactly
from imagefs.build.packs import KnownBlocks, Packs, blocks_of, sample, store
from imagefs.errors import BuildError
from imagefs.format import codec, erofs, index
from imagefs.format.documents import DeviceEntry, Manifest
from imagefs.format.inodes import DIGEST, Inode, digest_of, write_extents
from imagefs.progress import Progress
from imagefs.repository.images import Images
from imagefs.settings import AUTO, Compression

__all__ = ["BuildReport", "Extents", "build", "publish", "put_checked"]

_PER_BLOCK = index.BLOCK // erofs.BLOCK


class Extents:
    """The extents of these segments; `take` may be called from many threads, with every block once."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._places = array("I")  # in blocks of 4 KiB, ascending
        self._lengths = array("I")
        for segment in segments:
            for offset in range(0, segment.length, erofs.CHUNK):
                self._places.append((segment.at + offset) // erofs.BLOCK)
                self._lengths.append(min(erofs.CHUNK, segment.length - offset))
        self._digests = bytearray(DIGEST * len(self._places))

    def take(self, block: int, data: bytes) -> None:
        """Remember the digests of what lies in this block, whose bytes are `data`."""
        view = memoryview(data)
        first = bisect_left(self._places, block * _PER_BLOCK)
        end = bisect_left(self._places, (block + 1) * _PER_BLOCK, lo=first)
        for number in range(first, end):
            at = self._places[number] * erofs.BLOCK - block * index.BLOCK
            digest = digest_of(view[at : at + self._lengths[number]])
            self._digests[DIGEST * number : DIGEST * (number + 1)] = digest

    def document(self) -> bytes:
        """The extents table, once all blocks were taken."""
        return write_extents(self._digests, self._places)


@dataclass(frozen=True, slots=True)
class BuildReport:
    """The result of a build: the manifest's digest, and bytes.

    device_bytes: of the cold device. stored_bytes: its blocks as they are stored, each once. new_bytes: of the packs
    that were not in the store yet. metadata_bytes: of the EROFS image. files and blocks are counts.
    """

    digest: str
    device_bytes: int
    stored_bytes: int
    new_bytes: int
    metadata_bytes: int
    files: int
    blocks: int


def build(
    root: Inode,
    contents: Mapping[Inode, Content],
    images: Images,
    *,
    tag: str = "",
    source: str = "",
    config: Mapping[str, Any] | None = None,
    like: str = "",
    compression: Compression = AUTO,
    progress: Progress | None = None,
) -> BuildReport:
    """Store the tree under `root` as an image. Interrupted it publishes nothing; what it stored serves the next one.

    like: tag of the image that has most in common with it, where that is not `tag`. compression: of blocks that are not
    in the store yet. Raises BuildError for files that cannot be read, FormatError for what an image cannot hold, and
    StoreErrors.
    """
    progress = progress or Progress()
    known = KnownBlocks(images, like or tag)
    for inode, content in contents.items():
        if content.size <= erofs.INLINE_LIMIT:
            with content.open() as file:
                inode.data = read_exactly(file, content.size, content)
    segments = lay_out(root, contents)
    end = segments[-1].at + segments[-1].length if segments else 0
    size = end + -end % erofs.BLOCK
    packs = Packs(images.put_pack, codec.choose(compression, sample(segments, size)))
    progress.stage("storing", sum(segment.length for segment in segments))
    table = Extents(segments)
    count = -(-size // index.BLOCK)
    places = store(blocks_of(segments, size), count, packs, known.find, progress.advance, table.take)
    progress.stage("publishing")
    document = io.BytesIO()
    index.write(*_numbered(places, packs.all), size, document)
    device = DeviceEntry("cold", size, images.put_object("indexes", document.getvalue()))
    metadata = io.BytesIO()
    erofs.write(root, [erofs.DeviceSlot(b"cold", size // erofs.BLOCK)], metadata)
    stored = images.put_metadata(metadata.getvalue())
    extents = images.put_object("extents", table.document())
    digest = publish(Manifest(source, dict(config or {}), stored, [device], extents=extents), images, known, tag)
    unique = {place.digest: place.stored for place in places if place.pack != index.NOWHERE}
    return BuildReport(digest, size, sum(unique.values()), packs.stored_bytes, stored.size, len(contents), len(unique))


def publish(manifest: Manifest, images: Images, known: KnownBlocks, tag: str = "") -> str:
    """Store the manifest, and let `tag`, the OCI manifest that it was built from and its chain id name it once
    it is sure that everything it names stays; its digest.

    Raises BuildError where an image was removed whose blocks this one shares.
    """
    known.check()
    digest = put_checked(manifest, images, known.check)
    for source in manifest.sources:
        images.set_source(source, digest)
    if tag:
        images.tag(tag, digest)
    return digest


def put_checked(manifest: Manifest, images: Images, check: Callable[[], None]) -> str:
    """Store the manifest; its digest. Where `check` raises BuildError then, the manifest is taken away again."""
    was_there = images.has(hashlib.sha256(manifest.to_json()).hexdigest())
    digest = images.put(manifest)
    try:
        check()
    except BuildError:
        if not was_there:
            images.remove(digest)
        raise
    return digest


def _numbered(
    places: Sequence[index.BlockLocation], packs: Sequence[index.Pack]
) -> tuple[Sequence[index.BlockLocation], Sequence[index.Pack]]:
    """The packs in the order in which blocks name them, so that a build that finds all blocks makes the same index."""
    order: dict[int, int] = {}
    for place in places:
        if place.pack != index.NOWHERE:
            order.setdefault(place.pack, len(order))
    if all(old == new for old, new in order.items()):
        return places, packs
    numbered = [place._replace(pack=order[place.pack]) if place.pack in order else place for place in places]
    return numbered, [packs[number] for number in order]
