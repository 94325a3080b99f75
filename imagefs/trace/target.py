"""An image as traces and plans see it: extents by path, by content, and where each lies now.

An extent is known by where it lies in the cold device, in blocks of 4 KiB, its *cold place*: that is the same for an
image and for all that were optimised from it. `place` is its address in the image that is mounted, which may be in a
hot device.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from imagefs.errors import FormatError
from imagefs.format.erofs import BLOCK, ErofsImage
from imagefs.format.erofs.read import files
from imagefs.format.extents import COLD, ExtentTable
from imagefs.format.inode import HOLE

__all__ = ["Extent", "Target"]


class Extent(NamedTuple):
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


class Target:
    """The image `image`, optimised from `base` (or that itself), whose cold device has the extents in `table`."""

    def __init__(self, image: ErofsImage, base: ErofsImage, table: ExtentTable) -> None:
        self.image = image
        self.base = base
        self.table = table
        self._cold_blocks = base.devices[0].blocks if base.devices else 0
        self._folders: dict[bytes, int | None] = {b"": base.root}

    def extents(self) -> Iterator[Extent]:
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
                    yield Extent(path, offset, min(size, inode.size - offset), self._checked(cold), place)

    def of(self, wanted: Collection[int]) -> dict[int, Extent]:
        """The extents at these cold places, as many of them as there are; of several at one place the first."""
        found: dict[int, Extent] = {}
        for extent in self.extents():
            if extent.cold in wanted:
                found.setdefault(extent.cold, extent)
        return found

    def find(self, digest: bytes) -> Iterator[int]:
        """The cold places of this content, ascending. One outside of the device, as only a bad table has, is none."""
        return (place for place in self.table.find(digest) if place < self._cold_blocks)

    def at(self, path: bytes, offset: int) -> int | None:
        """The cold place of the extent that covers this byte of the file, None where there is none."""
        number = self._lookup(path)
        inode = self.base.stat(number) if number is not None else None
        if inode is None or not 0 <= offset < inode.size:
            return None
        table = self.base.chunk_table(inode)
        address = self.base.chunk(inode, offset // table[0]) if table is not None else None
        return None if address in (None, HOLE) else self._checked(address)

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
