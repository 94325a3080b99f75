"""The tree plane: an image as a FUSE tree without the kernel's EROFS, and the worker that serves it.

Everything is answered from the metadata image, which never changes, and nothing is remembered: a node is its inode's
number in the image (the root is 1, as FUSE wants it), a handle is its node, a directory's cookie the position in the
directory. So a worker that takes over knows all that its predecessor gave out. Only the bytes of files come from
elsewhere, from the devices. The answers of stat, the attributes, the access control lists and the capacity are those of
EROFS in the kernel for the same image, but for the number of the root.

The worker is served by `stripefs.fuse.worker`. Its payload is JSON: `source` (what the mount table shows), `metadata`
(path of the EROFS image), `devices` (paths, one after the other as the metadata names them), `io_timeout` (seconds),
`owner` (user and group of all files, or null).
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from imagefs.errors import FormatError
from imagefs.format.erofs import BLOCK, ErofsImage
from imagefs.format.erofs.read import ErofsExtent, Stat
from imagefs.plane.devreader import DocumentFile, FileDevices
from stripefs.errors import (
    ConfigError,
    IsADirectory,
    NotADirectory,
    NotFound,
    StaleVersion,
    StoreError,
    StripefsError,
    Unsupported,
)
from stripefs.fuse import worker
from stripefs.fuse.control_server import Request
from stripefs.fuse.protocol import ROOT, ServedAttributes, ServedTree, Show
from stripefs.store.base import Buffer, Space

__all__ = ["ImageTree", "NameTooLong", "ReadDevice", "TreeBackend"]

ReadDevice = Callable[[int, int, int], Awaitable[Buffer]]
"""Takes the number of a device, the first being 1, an offset and a length; exactly these bytes, or it raises."""

_FOREVER = 86400.0
"""Seconds for which the kernel may believe what it was told. Nothing changes; this bounds only what it remembers."""

_NAME_MAX = 255


class NameTooLong(StoreError):
    errno = errno.ENAMETOOLONG


@dataclass(slots=True)
class _TreeAttributes:
    id: int
    st_mode: int
    links: int
    uid: int
    gid: int
    size: int
    blocks: int
    rdev: int
    mtime_ns: int
    atime_ns: int
    valid: float = _FOREVER


class ImageTree:
    """The tree of `image`; the bytes of its devices come from `read`.

    owner: the user and the group of all files in it, None for those of the image.
    """

    attr_timeout = _FOREVER
    posix_acl = True
    xattr_prefix = b""  # any name

    def __init__(self, image: ErofsImage, read: ReadDevice, owner: tuple[int, int] | None = None) -> None:
        self._image = image
        self._owner = owner
        self._read = read

    # Names and attributes

    async def lookup(self, parent: int, name: bytes) -> ServedAttributes:
        if len(name) > _NAME_MAX:
            raise NameTooLong(f"a name of {len(name)} bytes")
        number = self._image.lookup(self._directory(parent), name)
        if number is None:
            raise NotFound(f"{name!r} does not exist")
        return self._attributes(number)

    def forget(self, pairs: Iterable[tuple[int, int]]) -> None:
        pass

    async def getattr(self, node_id: int) -> ServedAttributes:
        return self._attributes(self._number(node_id))

    async def readlink(self, node_id: int) -> bytes:
        inode = self._inode(node_id)
        if not stat.S_ISLNK(inode.mode):
            raise Unsupported(f"inode {inode.number} is no symbolic link")
        return self._image.content(inode)

    # Files

    async def open(self, node_id: int) -> int:
        inode = self._inode(node_id)
        if inode.is_directory:
            raise IsADirectory(f"inode {inode.number} is a directory")
        if not inode.is_file:
            raise Unsupported(f"inode {inode.number} is no regular file")
        return node_id

    async def read(self, handle: int, offset: int, size: int) -> Buffer:
        inode = self._inode(handle)
        length = min(size, inode.size - offset)
        if length <= 0:
            return b""
        if self._image.chunk_table(inode) is None:
            return self._image.read(inode, offset, length)
        extents = list(self._image.extents(inode, offset, length))
        if len(extents) == 1:
            return await self._extent(extents[0])
        return await self._extents(extents)

    async def release(self, handle: int) -> None:
        pass

    # Directories

    async def opendir(self, node_id: int) -> int:
        self._directory(node_id)
        return node_id

    async def readdir(self, handle: int, start: int, show: Show) -> None:
        for position, entry in self._image.entries_from(self._directory(handle), start):
            if not show(entry.name, self._attributes(entry.number), position):
                return

    async def releasedir(self, handle: int) -> None:
        pass

    # The rest

    async def statfs(self) -> Space:
        """All of it is used."""
        sizes = (device.size for device in self._image.devices)
        return Space(self._image.super.blocks * BLOCK + sum(sizes), 0, self._image.super.inodes)

    async def listxattr(self, node_id: int) -> Sequence[bytes]:
        return [name for name, _ in self._image.xattrs(self._inode(node_id))]

    async def getxattr(self, node_id: int, name: bytes) -> bytes | None:
        return next((value for found, value in self._image.xattrs(self._inode(node_id)) if found == name), None)

    # Inner workings

    def _number(self, node_id: int) -> int:
        return self._image.root if node_id == ROOT else node_id

    def _inode(self, node_id: int) -> Stat:
        return self._image.stat(self._number(node_id))

    def _directory(self, node_id: int) -> Stat:
        inode = self._inode(node_id)
        if not inode.is_directory:
            raise NotADirectory(f"inode {inode.number} is no directory")
        return inode

    def _attributes(self, number: int) -> ServedAttributes:
        inode = self._image.stat(number)
        if number == self._image.root:
            number = ROOT
        elif number <= ROOT:  # where no inode can be, and FUSE means something else
            raise FormatError(f"there is no inode number {number}")
        when = inode.mtime * 1_000_000_000 + inode.mtime_ns
        return _TreeAttributes(
            id=number,
            st_mode=inode.mode,
            links=inode.links,
            uid=self._owner[0] if self._owner else inode.uid,
            gid=self._owner[1] if self._owner else inode.gid,
            size=inode.size,
            blocks=-(-inode.size // BLOCK) * (BLOCK // 512),  # holes too, as EROFS counts
            rdev=os.makedev(*inode.rdev),
            mtime_ns=when,
            atime_ns=when,
        )

    async def _extent(self, extent: ErofsExtent) -> Buffer:
        if not extent.device:
            return bytes(extent.length)
        data = await self._read(extent.device, extent.offset, extent.length)
        if len(data) != extent.length:
            raise StoreError(f"device {extent.device}: {len(data)} bytes instead of {extent.length}")
        return data

    async def _extents(self, extents: Sequence[ErofsExtent]) -> Buffer:
        """The bytes of all of them, read at once; the first error ends it."""
        parts: list[Buffer] = [b""] * len(extents)
        failed: list[StripefsError] = []

        async def fill(index: int) -> None:
            try:
                parts[index] = await self._extent(extents[index])
            except StripefsError as error:
                failed.append(error)
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for index in range(len(extents)):
                nursery.start_soon(fill, index)
        if failed:
            raise failed[0]
        return b"".join(parts)


class TreeBackend:
    """One image at one mountpoint."""

    requests: Mapping[str, Request] = {}
    open_writes = 0

    def __init__(self, start: worker.Start) -> None:
        payload = json.loads(start.payload)
        self.source: str = payload["source"]
        self._metadata: str = payload["metadata"]
        self._paths: list[str] = payload["devices"]
        self._timeout: float = payload["io_timeout"]
        owner = payload.get("owner")
        self._owner = (int(owner[0]), int(owner[1])) if owner else None
        self._expected = start.kept.get("image")
        self._image: ErofsImage
        self._devices: FileDevices

    @property
    def kept(self) -> Mapping[str, Any]:
        return {"image": self._image.super.uuid.hex()}

    async def open(self) -> None:
        self._image = ErofsImage(_opened(self._metadata))
        if len(self._paths) != len(self._image.devices):
            raise FormatError(
                f"{self._metadata} is an image of {len(self._image.devices)} devices, not {len(self._paths)}"
            )
        # The UUID is made of all the rest, and node ids mean something in this image only.
        if self._expected not in (None, self.kept["image"]):
            raise StaleVersion(f"{self._metadata} was replaced", hint="unmount it and mount the image again")

    async def run(self, *, task_status: trio.TaskStatus[ServedTree]) -> None:
        self._devices = FileDevices(self._paths, self._timeout)
        task_status.started(ImageTree(self._image, self._devices.read, self._owner))

    def status(self) -> dict[str, Any]:
        return {
            "image": self.kept["image"],
            "metadata": self._metadata,
            "devices": self._paths,
            **self._devices.snapshot(),
        }

    def metrics(self, status: Mapping[str, Any]) -> str:
        from stripefs.metrics import render

        return render(status)

    def close(self) -> None:
        self._devices.close()


def _opened(path: str) -> DocumentFile:
    try:
        file = DocumentFile(Path(path))
    except OSError as error:
        raise ConfigError(f"the image's metadata {path} cannot be read: {error.strerror}") from error
    if not len(file):
        raise FormatError(f"the image's metadata {path} is empty")
    return file


if __name__ == "__main__":
    worker.main(TreeBackend)
