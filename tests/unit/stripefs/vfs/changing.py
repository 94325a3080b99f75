"""A store in memory that can be changed, uploads that keep their bytes, and the writable tree over both."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import trio

from stripefs.errors import Busy, Exists, NotEmpty, NotFound, Unsupported
from stripefs.store.base import Attributes, Buffer, Capabilities, Kind, Status
from stripefs.vfs import InodeTable, Tree
from stripefs.vfs.read_handles import UnpublishedNames
from stripefs.vfs.writable_tree import WritableTree
from stripefs.vfs.write_handle import WriteHandles
from stripefs.write import NotSequential
from tests.unit.stripefs.vfs.world import Kept, MemoryStore, PlainReader


class Killed(Exception):
    """The process dies here."""


class ChangingStore(MemoryStore):
    """`after` is called with the name of each change that was made, and may raise."""

    capabilities = Capabilities(any_names=True, file_ids=True, writes=True, replace=True, attributes=True)

    def __init__(self) -> None:
        super().__init__()
        self.after: Callable[[str], None] = lambda call: None

    def mkdir(self, path: bytes, mode: int = 0o755) -> None:
        self._enter("mkdir", path)
        if path in self.entries:
            raise Exists(f"{path!r} exists")
        MemoryStore.put(self, path, kind=Kind.DIRECTORY, mode=mode)
        self.after("mkdir")

    def rmdir(self, path: bytes) -> None:
        self._take(path, "rmdir")
        if any(other.startswith(path + b"/") for other in self.entries):
            raise NotEmpty(f"{path!r} is not empty")
        del self.entries[path]
        self.after("rmdir")

    def remove(self, path: bytes) -> None:
        self._take(path, "remove")
        del self.entries[path]
        self.after("remove")

    def rename(self, source: bytes, target: bytes, *, replace: bool = False) -> None:
        self._take(source, "rename")
        if target in self.entries and not replace:
            raise Exists(f"{target!r} exists")
        for path in [path for path in self.entries if path == source or path.startswith(source + b"/")]:
            self._name(target + path.removeprefix(source), *self.entries.pop(path))
        self.after("rename")

    def set_attributes(self, path: bytes, attributes: Attributes) -> None:
        self._take(path, "set_attributes")
        status, data = self.entries[path]
        given = {
            name: getattr(attributes, name)
            for name in ("mode", "mtime_ns", "owner", "group")
            if getattr(attributes, name) is not None
        }
        self.entries[path] = (replace(status, **given), data)
        self.after("set_attributes")

    def _take(self, path: bytes, call: str) -> None:
        self._enter(call, path)
        if path not in self.entries:
            raise NotFound(f"{path!r} does not exist")

    def _name(self, path: bytes, status: Status, data: bytes) -> None:
        self.entries[path] = (replace(status, name=path.rsplit(b"/", 1)[1]), data)


class FakeUpload:
    def __init__(self, uploads: FakeUploads, path: bytes, data: bytes, dirty: bool) -> None:
        self.uploads = uploads
        self.path = path
        self.data = data
        self.dirty = dirty
        self.synced = 0
        self.attributes = Attributes()

    @property
    def length(self) -> int:
        return len(self.data)

    async def write(self, offset: int, data: Buffer) -> None:
        await trio.lowlevel.checkpoint()
        if offset != len(self.data):
            raise NotSequential(f"{self.path!r} ends elsewhere")
        self.data += bytes(data)
        self.dirty = True

    async def read(self, offset: int, size: int) -> bytes:
        await trio.lowlevel.checkpoint()
        return self.data[offset : offset + size]

    async def sync(self) -> None:
        await trio.lowlevel.checkpoint()
        self.synced += 1

    async def publish(self, final: bool) -> Status:
        await trio.lowlevel.checkpoint()
        MemoryStore.put(
            self.uploads.store, self.path, self.data, mtime_ns=time.time_ns(), mode=self.attributes.mode or 0
        )
        self.dirty = False
        if final:
            await self.abandon()
        return self.uploads.store.entries[self.path][0]

    async def rewind(self) -> None:
        await trio.lowlevel.checkpoint()
        self.data, self.dirty = b"", True

    async def abandon(self, *, recoverable: bool = False) -> None:
        await trio.lowlevel.checkpoint()
        if self.uploads.open.get(self.path) is self:
            del self.uploads.open[self.path]

    async def detach(self) -> None:
        await self.abandon()

    @asynccontextmanager
    async def moving(self, path: bytes) -> AsyncIterator[None]:
        await trio.lowlevel.checkpoint()
        yield
        await self.abandon()
        self.uploads.open[path], self.path = self, path

    def set_attributes(self, attributes: Attributes) -> None:
        self.attributes = attributes

    async def try_owners(self, owners: Attributes) -> None:
        await trio.lowlevel.checkpoint()
        self.uploads.try_owners(owners)


class FakeUploads:
    """find_writer: answers `writer_of`. meanwhile: called between the tree's look at a name and its lock."""

    def __init__(
        self, store: ChangingStore, *, appends: bool = True, meanwhile: Callable[[], None] = lambda: None
    ) -> None:
        self.store = store
        self.appends = appends
        self.open: dict[bytes, FakeUpload] = {}
        self.try_owners: Callable[[Attributes], None] = lambda owners: None
        self.writer_below: Callable[[bytes], str] = lambda folder: ""
        self.find_writer: Callable[[bytes], str] = lambda path: ""
        self.meanwhile = meanwhile

    def writer_of(self, path: bytes) -> str:
        return self.find_writer(path)

    async def begin(
        self,
        path: bytes,
        *,
        replacing: object,
        append: bool = False,
        attributes: object = None,
        layout: object = None,
        anew: bool = False,
    ) -> FakeUpload:
        await trio.lowlevel.checkpoint()
        self.meanwhile()
        if path in self.open:
            raise Busy(f"{path!r} is being written")
        if replacing is None and not anew and path in self.store.entries:
            raise Exists(f"{path!r} exists")
        if append and not self.appends:
            raise Unsupported("no appending")
        upload = FakeUpload(self, path, self.store.entries[path][1] if append else b"", dirty=not append)
        if isinstance(attributes, Attributes):
            upload.attributes = attributes
        self.open[path] = upload
        return upload


def make_writable(
    store: ChangingStore,
    kept: Kept | None = None,
    *,
    uploads: FakeUploads | None = None,
    io_timeout: float = 90.0,
    **options: object,
) -> WritableTree:
    """A tree; one that carries on where an earlier one stopped when `kept` holds its records."""
    state = InodeTable(kept)
    state.replay(kept.payloads if kept else ())
    handles = WriteHandles()
    unpublished = UnpublishedNames(store, handles)
    tree = Tree(store, PlainReader(store), state=state, unpublished=unpublished, io_timeout=io_timeout)
    return WritableTree(tree, handles, uploads or FakeUploads(store), **options)  # type: ignore[arg-type]


def contents(store: ChangingStore) -> dict[bytes, bytes]:
    return {path: data for path, (status, data) in store.entries.items() if status.kind is Kind.FILE}
