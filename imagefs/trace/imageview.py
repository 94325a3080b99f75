"""An image as traces and plans see it: extents by path, by content, and where each lies; pages resolved to extents.

An extent is known by where it lies in the cold device, in blocks of 4 KiB, its *cold place*: that is the same for an
image and for all that were optimised from it. `place` is its address in the image that is mounted, which may be in a
hot device.

Recorded pages of devices resolve to extents of files, so that a trace outlives the image's layout. The image is walked
once. Of its extents only those of which a page was touched are kept, so memory follows the start and not the image.
Each then takes the time of the first run of pages that reaches it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator
from typing import NamedTuple

from imagefs.errors import FormatError
from imagefs.format.erofs import BLOCK, ErofsImage
from imagefs.format.erofs.read import files
from imagefs.format.extents import COLD, ExtentTable
from imagefs.format.inode import HOLE
from imagefs.format.trace import Touch
from imagefs.trace.recorder import Recorder

__all__ = ["FileExtent", "ImageView", "resolve"]


class FileExtent(NamedTuple):
    """Bytes [offset, offset + length) of the file at `path`; `place` is an address as `inode.address` makes them."""

    path: bytes
    offset: int
    length: int
    cold: int
    place: int

    @property
    def blocks(self) -> int:
        """Its length in blocks of 4 KiB."""
        return -(-self.length // BLOCK)


class ImageView:
    """The image `image`, optimised from `base` (or that itself), whose cold device has the extents in `table`."""

    def __init__(self, image: ErofsImage, base: ErofsImage, table: ExtentTable) -> None:
        self.image = image
        self.base = base
        self.table = table
        self._cold_blocks = base.devices[0].blocks if base.devices else 0
        self._folders: dict[bytes, int | None] = {b"": base.root}

    def extents(self) -> Iterator[FileExtent]:
        """Every extent, file by file. Raises FormatError for an image that does not hold together."""
        for path, inode in files(self.image):
            now = self.image.chunks(inode)
            then = self.base.chunks(self.base.stat(inode.number)) if now is not None else None
            if now is None or then is None:
                continue
            size = now[0]
            for number, (place, cold) in enumerate(zip(now[1], then[1], strict=False)):
                if place != HOLE:
                    offset = number * size
                    yield FileExtent(path, offset, min(size, inode.size - offset), self._checked(cold), place)

    def of(self, wanted: Collection[int]) -> dict[int, FileExtent]:
        """The extents at these cold places, as many of them as there are; of several at one place the first."""
        found: dict[int, FileExtent] = {}
        for extent in self.extents():
            if extent.cold in wanted:
                found.setdefault(extent.cold, extent)
        return found

    def find(self, digest: bytes) -> Iterator[int]:
        """The cold places of this content, ascending. One outside of the device, as only a bad table has, is none."""
        return (place for place in self.table.find(digest) if place < self._cold_blocks)

    def at(self, path: bytes, offset: int, length: int) -> list[int]:
        """The cold places of the extents that cover these bytes of the file, as many of them as there are."""
        number = self._lookup(path)
        inode = self.base.stat(number) if number is not None else None
        table = self.base.chunk_table(inode) if inode is not None else None
        if inode is None or table is None or not 0 <= offset < inode.size:
            return []
        size, end = table[0], min(offset + length, inode.size)
        addresses = [self.base.chunk(inode, chunk) for chunk in range(offset // size, -(-end // size))]
        return [self._checked(address) for address in addresses if address is not None and address != HOLE]

    def digest_at(self, cold: int) -> bytes:
        """The digest of the extent there. Raises FormatError where none begins."""
        digest = self.table.digest_at(cold)
        if digest is None:
            raise FormatError("the image has an extent that its extents table does not know")
        return digest

    def _checked(self, address: int) -> int:
        device, block = address >> 32, address & 0xFFFFFFFF
        if device != COLD or block >= self._cold_blocks:
            raise FormatError("the image has an extent outside of its cold device")
        return block

    def _lookup(self, path: bytes) -> int | None:
        """The inode of that name, links not followed: names in traces are those of the files themselves."""
        folder, _, name = path.rpartition(b"/")
        if folder not in self._folders:
            found: int | None = self.base.root
            for part in folder.split(b"/"):
                found = self._child(found, part)
            self._folders[folder] = found
        return self._child(self._folders[folder], name)

    def _child(self, number: int | None, name: bytes) -> int | None:
        if number is None or name in (b"", b".", b".."):
            return None
        inode = self.base.stat(number)
        return self.base.lookup(inode, name) if inode.is_directory else None


def resolve(recorder: Recorder, target: ImageView) -> list[Touch]:
    """Touches that `recorder` saw of the devices of `target.image`, by files, in order of first touch.

    Raises FormatError when these are not the devices it was recorded on.
    """
    if len(recorder.sizes) != len(target.image.devices) or any(
        -(-size // 4096) != device.blocks for size, device in zip(recorder.sizes, target.image.devices, strict=True)
    ):
        raise FormatError("the record of touches is of another image")
    touched = sorted(_touched(recorder, target), key=lambda extent: extent.place)
    places = [extent.place for extent in touched]
    done = bytearray(len(touched))
    found = []
    for ms, device, first, pages in recorder.touches():
        begin = device << 32 | first
        number = max(0, bisect_right(places, begin) - 1)
        while number < len(places) and places[number] < begin + pages:
            extent = touched[number]
            if not done[number] and extent.place + extent.blocks > begin:
                done[number] = True
                digest = target.digest_at(extent.cold)
                found.append(Touch(ms, extent.path, extent.offset, extent.length, digest))
            number += 1
    return found


def _touched(recorder: Recorder, target: ImageView) -> list[FileExtent]:
    """The extents of which any page was touched, the first of those that share a place."""
    found: dict[int, FileExtent] = {}
    for extent in target.extents():
        device, block = extent.place >> 32, extent.place & 0xFFFFFFFF
        if not 0 < device <= len(recorder.sizes):
            raise FormatError("the image has an extent in a device that it does not have")
        if recorder.touched(device, block, extent.blocks):
            found.setdefault(extent.place, extent)
    return list(found.values())
