"""What a snapshot holds, a line for each name, so that two can be compared without a mount."""

from __future__ import annotations

import stat

from imagefs.errors import FormatError
from imagefs.format.erofs import ErofsImage
from imagefs.format.erofs.read import Stat, entries
from imagefs.format.extents import DIGEST, ExtentTable, digest_of
from imagefs.format.inode import HOLE, shown

__all__ = ["describe"]


def describe(image: ErofsImage, table: ExtentTable) -> dict[str, str]:
    """By path, for everything below the root but its time: kind, permissions, owner, and of files size and content.

    The image is one without a hot device, with its table of extents. Raises FormatError.
    """
    found: dict[str, str] = {}
    contents: dict[int, str] = {}  # of files by inode, which may have many names
    for path, inode in entries(image):
        if not inode.is_directory and inode.number not in contents:
            contents[inode.number] = _content(image, table, inode)
        rights = f"{stat.S_IMODE(inode.mode):04o} {inode.uid}:{inode.gid}"
        found[shown(path)] = f"{_kind(inode)} {rights} {contents.get(inode.number, '')}".rstrip()
    return found


def _kind(inode: Stat) -> str:
    kinds = {stat.S_IFDIR: "directory", stat.S_IFREG: "file", stat.S_IFLNK: "link"}
    return kinds.get(stat.S_IFMT(inode.mode), "special")


def _content(image: ErofsImage, table: ExtentTable, inode: Stat) -> str:
    if stat.S_ISLNK(inode.mode):
        return shown(image.content(inode))
    if not inode.is_file:
        return f"{inode.rdev[0]},{inode.rdev[1]}"
    chunks = image.chunks(inode)
    if chunks is None:
        return f"{inode.size} bytes {digest_of(image.content(inode)).hex()}"
    digests = b"".join(_digest(table, address) for address in chunks[1])
    return f"{inode.size} bytes {digest_of(digests).hex()}"


def _digest(table: ExtentTable, address: int) -> bytes:
    if address == HOLE:
        return bytes(DIGEST)
    found = table.digest_at(address & 0xFFFFFFFF)
    if found is None:
        raise FormatError("the image has an extent that its extents table does not know")
    return found
