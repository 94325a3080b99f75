"""The file system of devices: the daemon's FUSE mount, one directory with a file for each device that is served.

A file is named by the digest of its device's block index, and its node id is made of that name, so a worker that takes
over knows every node by its name alone. The journal has the handles and pages that the kernel holds of a device.
Only the user who runs the daemon may open the files; programs in an image read them through EROFS.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from imagefs.daemon.open_devices import OpenDevices
from imagefs.daemon.state import StateJournal
from imagefs.errors import BlockUnavailable, DocumentUnreadable
from stripefs.errors import IsADirectory, NotADirectory, NotFound, StaleVersion
from stripefs.fuse.protocol import ROOT, ServedAttributes, Show
from stripefs.store.base import Buffer, Space

__all__ = ["DeviceTree"]

_log = logging.getLogger(__name__)

_LONG = 3600.0
"""Seconds for which the kernel may believe attributes: a device never changes."""

_SOON = 0.0
"""Seconds for which the kernel may believe that there is no device of a name: any moment there may be."""


@dataclass(slots=True)
class _DeviceAttributes:
    id: int
    st_mode: int
    size: int
    links: int = 1
    uid: int = field(default_factory=os.geteuid)
    gid: int = field(default_factory=os.getegid)
    mtime_ns: int = 0
    atime_ns: int = 0
    rdev: int = 0
    valid: float = _LONG

    @property
    def blocks(self) -> int:
        return -(-self.size // 512)


class DeviceTree:
    """The tree of the devices in `opened`, by the digest of their index; its files are whose the daemon is.

    touched: called with each read (device, offset, length). served: with each that was answered (device). failed: with
    each block that could not be had. space: bytes that the cache may take, and takes.
    """

    attr_timeout = _SOON
    posix_acl = False
    xattr_prefix = b"user."

    def __init__(
        self,
        journal: StateJournal,
        opened: OpenDevices,
        touched: Callable[[str, int, int], None],
        served: Callable[[str], None],
        failed: Callable[[str, BlockUnavailable], None],
        space: Callable[[], tuple[int, int]],
    ) -> None:
        self._journal = journal
        self._devices = opened
        self._touched = touched
        self._served = served
        self._failed = failed
        self._space = space
        self._names: dict[int, str] = {}

    async def lookup(self, parent: int, name: bytes) -> ServedAttributes:
        if parent != ROOT:
            raise NotADirectory("a device is no directory")
        index = name.decode("ascii", "replace")
        size = self._size(index)
        if size is None:
            raise NotFound(f"no device {index} is served")
        self._journal.record({"lookup": index})
        return _file(index, size)

    def forget(self, pairs: Iterable[tuple[int, int]]) -> None:
        """With the last lookup that the kernel takes back it holds no handle and no page of a device any more."""
        for node, count in pairs:
            if (index := self._index(node)) is not None:
                self._journal.record({"forget": [index, count]})
                self._devices.close_unused()

    async def getattr(self, node_id: int) -> ServedAttributes:
        if node_id == ROOT:
            return _DeviceAttributes(ROOT, stat.S_IFDIR | 0o500, 0, 2, valid=_SOON)
        return _file(*self._known(node_id))

    async def readlink(self, node_id: int) -> bytes:
        raise NotFound("there are no links here")

    async def open(self, node_id: int) -> int:
        if node_id == ROOT:
            raise IsADirectory("this is the directory of the devices")
        index, handle = self._known(node_id)[0], self._journal.state.next_handle
        self._journal.record({"open": [handle, index]})
        return handle

    async def read(self, handle: int, offset: int, size: int) -> Buffer:
        index = self._journal.state.handles.get(handle)
        end = self._size(index) if index is not None else None
        if index is None or end is None:
            raise _stale()
        length = min(size, end - offset)
        if length <= 0:
            return b""
        device = self._devices.devices.get(index) or await self._devices.open_again(index)
        if index not in self._journal.state.pages:
            self._journal.record({"pages": index})
        self._touched(index, offset, length)
        try:
            try:
                data = await device.read(offset, length)
            except DocumentUnreadable as error:
                _log.warning("%s; fetching it anew", error)
                data = await (await self._devices.replace_index(index)).read(offset, length)
        except BlockUnavailable as error:
            self._failed(index, error)
            raise
        self._served(index)
        return data

    async def release(self, handle: int) -> None:
        self._journal.record({"release": handle})
        self._devices.close_unused()

    async def opendir(self, node_id: int) -> int:
        if node_id != ROOT:
            raise NotADirectory("a device is no directory")
        return ROOT

    async def readdir(self, handle: int, start: int, show: Show) -> None:
        for cookie, index in enumerate(sorted(self._journal.state.known), 1):
            size = self._size(index)
            if cookie > start and size is not None:
                if not show(index.encode(), _file(index, size), cookie):
                    return
                self._journal.record({"lookup": index})  # each entry of a listing counts as looked up

    async def releasedir(self, handle: int) -> None:
        pass

    async def statfs(self) -> Space:
        """The size and the use of the cache, in bytes: the sizes of devices say nothing of disks."""
        limit, used = self._space()
        return Space(max(limit, used), max(0, limit - used), len(self._journal.state.known))

    async def listxattr(self, node_id: int) -> None:
        """Devices have no attributes."""

    async def getxattr(self, node_id: int, name: bytes) -> bytes | None:
        return None

    def _size(self, index: str) -> int | None:
        """Bytes of a device, None for one that is not served."""
        facts = self._journal.state.known.get(index)
        return int(facts["size"]) if facts is not None else None

    def _known(self, node: int) -> tuple[str, int]:
        """The device of a node, and its bytes."""
        index = self._index(node)
        size = self._size(index) if index is not None else None
        if index is None or size is None:
            raise _stale()
        return index, size

    def _index(self, node: int) -> str | None:
        """The device of a node, also of one that is not served any more."""
        if node not in self._names:
            known = {*self._journal.state.known, *self._journal.state.lookups}
            self._names |= {_node(one): one for one in known}
        return self._names.get(node)


def _file(index: str, size: int) -> _DeviceAttributes:
    return _DeviceAttributes(_node(index), stat.S_IFREG | 0o400, size)


def _stale() -> StaleVersion:
    return StaleVersion("this device is not served any more", hint="mount its image again")


def _node(index: str) -> int:
    """63 bits of the digest, and none of the numbers that mean something to FUSE."""
    return int(index[:16], 16) & (1 << 63) - 1 | 1 << 32
