"""The devices that the daemon serves: the open ones with their stores, and the file system that shows them.

An attachment, the kernel, or a request under way keeps a device and its store open (`OpenDevices`).

The daemon's FUSE mount is one directory with a file for each device that is served (`DeviceTree`). A file is named by
the digest of its device's block index, and its node id is made of that name, so a worker that takes over knows every
node by its name alone. The journal has the handles and pages that the kernel holds of a device. Only the user who runs
the daemon may open the files; programs in an image read them through EROFS.
"""

from __future__ import annotations

import logging
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import trio

from imagefs.blocks.source import PackSource
from imagefs.blocks.store import BlockDevice, BlockStore
from imagefs.blocks.upstream import Mirrors
from imagefs.daemon.documents import Documents
from imagefs.daemon.requests import NoteAnswer, NoteRequest
from imagefs.daemon.state import Attachment, DaemonState, DeviceUse, StateJournal
from imagefs.errors import BlockUnavailable, DocumentUnreadable
from imagefs.format import is_digest
from imagefs.format.documents import Manifest
from imagefs.repository.images import Images
from stripefs.background import contain
from stripefs.errors import ConfigError, IsADirectory, NotADirectory, NotFound, ServiceDown, StaleVersion
from stripefs.fuse.protocol import ROOT, ServedAttributes, Show
from stripefs.settings import StoreSettings, redact, store_settings
from stripefs.store.base import Buffer, Space

__all__ = ["DeviceTree", "OpenDevices"]

_log = logging.getLogger(__name__)

_LONG = 3600.0
"""Seconds for which the kernel may believe attributes: a device never changes."""

_SOON = 0.0
"""Seconds for which the kernel may believe that there is no device of a name: any moment there may be."""


class OpenDevices:
    """The devices of `blocks` that `state` says are in use, by the digest of their index; and their stores."""

    def __init__(self, state: DaemonState, blocks: BlockStore, documents: Documents) -> None:
        self.devices: dict[str, BlockDevice] = {}
        self._state = state
        self._blocks = blocks
        self._documents = documents
        self._sources: dict[StoreSettings, PackSource] = {}
        self._wanted: Counter[object] = Counter()  # devices and stores of images that are being attached

    def source(self, store: StoreSettings) -> PackSource:
        """The store, which is connected when it is first read."""
        if store not in self._sources:
            self._sources[store] = PackSource(store, mirrors=Mirrors(store))
        return self._sources[store]

    def source_of(self, attachment: Attachment) -> PackSource:
        return self.source(store_settings(attachment.store))

    def devices_of(self, attachment: Attachment) -> list[BlockDevice]:
        return [self.devices[use.index] for use in attachment.devices]

    async def resolve(self, store: StoreSettings, name: str, look: Callable[[Images], str] | None = None) -> str:
        """The digest that a name in a store stands for, as `Documents.resolve` has it."""
        with self.keep_open(store):
            return (await self._documents.resolve(self.source(store), name, look))[0]

    async def open(self, digest: str, source: PackSource) -> None:
        """Serve the device with this block index. Several may ask at once."""
        if digest not in self.devices:
            index = await self._documents.index(digest, source)
            device = await self._blocks.open(digest, index, source)
            if digest in self.devices:  # another has opened it meanwhile
                device.close()
            else:
                self.devices[digest] = device
        self._blocks.add_source(self.devices[digest], source)

    async def check_packs(self, digests: Iterable[str], source: PackSource) -> None:
        """Raise DamagedObject where the store lacks packs of one of these open devices, and not all of it is here."""
        for device in [self.devices[digest] for digest in digests]:
            if not device.complete:
                await self._documents.check_packs(device.index.packs, source)

    async def _is_complete(self, digest: str, source: PackSource) -> bool:
        """Tells whether all of the device with this block index is on this host. No store is asked."""
        index = await self._documents.cached_index(digest)
        if index is None:
            return False
        device = await self._blocks.open(digest, index, source)
        device.close()
        return device.complete

    async def has_only_base(self, manifest: Manifest, source: PackSource) -> bool:
        """Tells whether the image that this one was made from is on this host, and the copies of the hot device are
        not."""
        if not manifest.base:
            return False
        *others, hot = [await self._is_complete(one.index, source) for one in manifest.devices]
        return all(others) and not hot

    async def note(self, request: NoteRequest) -> NoteAnswer:
        """A note of a start for later ones, "" where the store has none."""
        store, kind, name, timeout = request
        if not is_digest(name):
            raise ConfigError(f"{kind}/{name} names no note")
        with self.keep_open(store), trio.move_on_after(timeout):
            return NoteAnswer((await self._documents.note(self.source(store), kind, name)).decode("utf-8", "replace"))
        raise ServiceDown(f"{redact(store.url)}: no answer within {timeout:g} s")

    def figures(self, use: DeviceUse) -> dict[str, Any]:
        """Facts about a device for `status`: its blocks, where it is open, and the handles that the kernel holds."""
        device = self.devices.get(use.index)
        found = {"tag": use.tag, "size": use.size, "index": use.index, "handles": self._state.holders(use.index)}
        if device is None:
            return found
        return {**found, "blocks": device.index.stored, "present": device.present, "complete": device.complete}

    async def open_devices_of_state(self) -> None:
        """Serve the devices that an earlier worker served, where their indexes are here still."""
        for digest, facts in self._state.known.items():
            index = await self._documents.cached_index(digest)
            if index is not None:
                source = self.source(store_settings(facts["store"]))
                self.devices[digest] = await self._blocks.open(digest, index, source)
        for attachment in self._state.attachments.values():
            for device in (self.devices[use.index] for use in attachment.devices if use.index in self.devices):
                self._blocks.add_source(device, self.source_of(attachment))

    async def share_cached_blocks(self) -> None:
        """Let blocks of images that nobody uses now serve others that have the same ones."""
        for digest in await self._documents.indexes():
            await contain(f"offering the blocks of device {digest[:12]}", self._offer, digest)

    async def _offer(self, digest: str) -> None:
        index = await self._documents.cached_index(digest)
        if index is not None:
            await self._blocks.offer(digest, index)

    async def open_again(self, digest: str) -> BlockDevice:
        """A device in use whose index was not here any more when this worker began. Raises StaleVersion, and what
        reading the index raises."""
        facts = self._state.known.get(digest)
        if facts is not None:
            await self.open(digest, self.source(store_settings(facts["store"])))
        if (device := self.devices.get(digest)) is None:
            raise StaleVersion(f"device {digest[:12]} is not served any more", hint="mount the image again")
        return device

    async def replace_index(self, digest: str) -> BlockDevice:
        """A device whose block index cannot be read here any more, with one that can. Raises as `open_again` does."""
        device = await self.open_again(digest)
        source = self.source(store_settings(self._state.known[digest]["store"]))
        device.replace_index(await self._documents.index(digest, source))
        return device

    @contextmanager
    def keep_open(self, *what: object) -> Iterator[None]:
        """No store and no device of these is closed meanwhile."""
        self._wanted.update(what)
        try:
            yield
        finally:
            self._wanted.subtract(what)
            self._wanted = +self._wanted
            self.close_unused()

    def close_unused(self) -> None:
        for digest in [one for one in self.devices if one not in self._state.known and not self._wanted[one]]:
            self.devices.pop(digest).close()
        in_use = [one.store for one in self._state.attachments.values()]
        in_use += [facts["store"] for facts in self._state.known.values()]
        stores = {store_settings(one) for one in in_use}
        for store in [one for one in self._sources if one not in stores and not self._wanted[one]]:
            source = self._sources.pop(store)
            self._blocks.remove_source(source)
            source.close()


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
