"""An image from a tree: devices, metadata, manifest, in this order, so that what can be seen is whole."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from imagefs.build.blocks import Known, Packs, store_blocks
from imagefs.build.content import Content, read_exactly
from imagefs.build.layout import lay_out
from imagefs.errors import DamagedObject
from imagefs.format import erofs, index
from imagefs.format.inode import Inode
from imagefs.format.manifest import DeviceEntry, Manifest
from imagefs.images import Images

__all__ = ["Report", "build"]


@dataclass(frozen=True, slots=True)
class Report:
    """What a build made: the manifest's digest, and bytes: of all files' blocks, of those newly stored, of metadata."""

    digest: str
    device_bytes: int
    new_bytes: int
    metadata_bytes: int


def build(
    root: Inode,
    contents: Mapping[Inode, Content],
    images: Images,
    *,
    tag: str = "",
    source: str = "",
    config: Mapping[str, Any] | None = None,
    progress: Callable[[int], None] = lambda _done: None,
) -> Report:
    """Store the tree under `root` as an image. Interrupted it publishes nothing; what it stored serves the next one."""
    known = _Store(images)
    for inode, content in contents.items():
        if content.size <= erofs.INLINE_LIMIT:
            with content.open() as file:
                inode.data = read_exactly(file, content.size, content)
    segments = lay_out(root, contents)
    end = segments[-1].at + segments[-1].length if segments else 0
    size = end + -end % erofs.BLOCK
    packs = Packs(images.put_pack)
    places = store_blocks(segments, size, packs, known.find, progress)
    document = io.BytesIO()
    index.write(places, packs.all, size, document)
    device = DeviceEntry("cold", size, images.put_index(document.getvalue()))
    metadata = io.BytesIO()
    erofs.write(root, [erofs.Device(b"cold", size // erofs.BLOCK)], metadata)
    stored = images.put_metadata(metadata.getvalue())
    digest = images.put(Manifest(source, dict(config or {}), stored, [device]), tag)
    return Report(digest, size, packs.stored_bytes, stored.size)


class _Store:
    """What the images of the store have already."""

    def __init__(self, images: Images) -> None:
        self._indexes: list[index.Index] = []
        seen = set()
        for digest in images.digests():
            for device in images.manifest(digest).devices:
                if device.index not in seen:
                    seen.add(device.index)
                    self._indexes.append(images.index(device.index))

    def find(self, digest: bytes) -> Known | None:
        for one in self._indexes:
            place = one.find(digest)
            if place is not None:
                if place.pack >= len(one.packs):
                    raise DamagedObject("a block index names a pack that it does not have")
                return Known(one.packs[place.pack], place)
        return None
