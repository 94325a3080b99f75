"""Deduplication: the blocks that a store has already, those of the images that a build is most likely to share blocks
with.

That is the image that the tag names so far, then the newest of the store, as many as `_INDEX_BYTES` of block indexes
take; in a store of thousands a block of an old image may be stored once more. A wrong hit cannot be: indexes are
checked against their digests, and a pack is looked for before its first block is used.

An object that is used may be removed while the build runs. `check` says so: it is called when the new manifest is
stored, because `gc` reads the manifests before it removes anything. Either it sees the new one, or the image that kept
a pack alive was gone before, and then `check` misses it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from imagefs.build.packs import Known
from imagefs.errors import BuildError, DamagedObject, FormatError, NoSuchImage
from imagefs.format.index import BLOCK, NOWHERE, Index, Pack
from imagefs.format.manifest import Manifest
from imagefs.repository.images import Images
from stripefs.errors import NotFound

__all__ = ["KnownBlocks"]

_log = logging.getLogger("imagefs.build")
_INDEX_BYTES = 64 << 20
"""Bytes of indexes that are held: 1.3 million blocks, 160 GiB of files."""

_RECORD = 52  # bytes of an index for one block
_AT_ONCE = 16
_BITS = 16  # of the filter for each block: one block in 16 that no index has is looked for in vain


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
