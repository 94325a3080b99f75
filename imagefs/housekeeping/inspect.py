"""What one image is made of: its documents, devices, blocks and packs, and what it shares with others."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from imagefs.errors import DamagedObject, FormatError, NoSuchImage
from imagefs.format.index import NOWHERE, Index
from imagefs.format.manifest import Manifest
from imagefs.repository.images import Images
from stripefs.errors import NotFound

__all__ = ["Blocks", "Sharing", "blocks_of", "describe", "sharing"]


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks of an image: of all, those that differ and are stored, those of zeros; bytes stored, each once."""

    total: int
    stored: int
    zeros: int
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class Sharing:
    """What an image has in common with another: blocks and bytes as they are stored."""

    image: str
    tags: tuple[str, ...]
    blocks: int
    bytes: int


def describe(images: Images, digest: str) -> dict[str, Any]:
    """All there is to say about one image without any other, fit for JSON. Raises NoSuchImage, DamagedObject."""
    manifest = images.manifest(digest)
    indexes = _indexes(images, manifest)
    packs: dict[bytes, tuple[int, Counter[bytes]]] = {}
    for index in indexes:
        for block in range(index.blocks):
            place = index.place(block)
            if place.pack != NOWHERE:
                pack = index.packs[place.pack]
                packs.setdefault(pack.digest, (pack.length, Counter()))[1][place.digest] = place.stored
    return {
        "store": images.url,
        "digest": digest,
        "source": manifest.source,
        "base": manifest.base,
        "metadata": asdict(manifest.metadata),
        "extents": manifest.extents,
        "devices": [
            {**asdict(device), "blocks": asdict(blocks_of([index]))}
            for device, index in zip(manifest.devices, indexes, strict=True)
        ],
        "blocks": asdict(blocks_of(indexes)),
        "packs": [
            {"digest": name.hex(), "size": length, "blocks": len(used), "used_bytes": used.total()}
            for name, (length, used) in packs.items()
        ],
        "config": manifest.config,
    }


def blocks_of(indexes: list[Index]) -> Blocks:
    stored = _stored(indexes)
    total = sum(index.blocks for index in indexes)
    return Blocks(total, len(stored), total - sum(index.stored for index in indexes), sum(stored.values()))


def sharing(images: Images, digest: str) -> list[Sharing]:
    """With each other image that has blocks of this one, the largest share first; images that cannot be read left out.

    Reads the block indexes of all images. Raises as `describe` does.
    """
    own = _stored(_indexes(images, images.manifest(digest)))
    tags: dict[str, list[str]] = {}
    for tag, named in images.tags().items():
        tags.setdefault(named, []).append(tag)
    found = []
    for other in images.images():
        if other == digest:
            continue
        try:
            indexes = _indexes(images, images.manifest(other))
        except (NoSuchImage, NotFound, DamagedObject, FormatError):
            continue  # `verify` says what is wrong with it
        common = own.keys() & {one for index in indexes for one in index.digests()}
        if common:
            size = sum(own[one] for one in common)
            found.append(Sharing(other, tuple(tags.get(other, ())), len(common), size))
    return sorted(found, key=lambda share: (-share.bytes, share.image))


def _indexes(images: Images, manifest: Manifest) -> list[Index]:
    return [images.index(device.index) for device in manifest.devices]


def _stored(indexes: list[Index]) -> dict[bytes, int]:
    """Stored bytes of each block by its digest."""
    places = (index.place(block) for index in indexes for block in range(index.blocks))
    return {place.digest: place.stored for place in places if place.pack != NOWHERE}
