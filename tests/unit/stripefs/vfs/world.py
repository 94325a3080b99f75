"""A store in memory whose calls a test sees, uploads that keep their bytes, and the trees over both.

There is no kernel, and no clock but trio's own.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import trio

from stripefs.errors import Busy, Exists, StaleVersion, Unsupported
from stripefs.store.base import Attributes, Block, Buffer, Capabilities, Handle, Identity, Kind, Space, Status
from stripefs.store.wrapper import Parser, WrappedHandle, WrappedStore
from stripefs.vfs import ROOT, InodeTable, NodeAttributes, Tree
from stripefs.vfs.read_handles import UnpublishedNames
from stripefs.vfs.writable_tree import WritableTree
from stripefs.vfs.write_handle import WriteHandles
from stripefs.write import NotSequential
from tests.support import memory_store

CREATE = os.O_WRONLY | os.O_CREAT
ME = os.getpid()


class Killed(Exception):
    """The process dies here."""


def quiet(*_: object) -> None:
    """For `before` and `after` of a store: nothing."""


def failing(call: str, error: Exception, times: int = 1 << 30) -> Callable[..., None]:
    """For `before` and `after` of a store: raises `error` at the first `times` calls of this name, "" for any."""
    left = iter(range(times))

    def fail(name: str, *_: object) -> None:
        if call in ("", name) and next(left, None) is not None:
            raise error

    return fail


class MemoryHandle(WrappedHandle):
    closed = False

    def locate(self, offset: int, length: int) -> Sequence[Block]:
        return [Block(0, self.status.length, ("a", "b"))]

    def close(self) -> None:
        self.closed = True


class MemoryStore(WrappedStore):
    """`before` is called with the name of each call and its path, `after` with that of each change that was made; both
    may raise, and wait."""

    NAME = "hooked"
    PARAMETERS: ClassVar[dict[str, Parser]] = {}

    def __init__(self) -> None:
        self._held = memory_store.MemoryStore(lambda: 1000)
        super().__init__(self._held)
        self.url = "memory://test"
        self.capabilities = Capabilities(any_names=True, file_ids=True, writes=True, replace=True, attributes=True)
        self.entries = self._held.entries
        self.calls: list[tuple[str, bytes]] = []
        self.before: Callable[[str, bytes], None] = quiet
        self.after: Callable[[str], None] = quiet
        self.capacity: Space | None = Space(1000, 400, 7)
        self.handles: list[MemoryHandle] = []

    def put(self, path: bytes, data: bytes = b"", kind: Kind = Kind.FILE, **fields: object) -> None:
        self._held.add(path, kind, data, **fields)

    def contents(self) -> dict[bytes, bytes]:
        return {path: bytes(self._held.get(path)) for path, at in self.entries.items() if at.kind is Kind.FILE}

    def on_query(self, call: str, path: bytes, act: Callable[[], object]) -> object:
        self.calls.append((call, path))
        self.before(call, path)
        return act()

    def on_change(self, call: str, paths: tuple[bytes, ...], act: Callable[[], object]) -> object:
        answer = self.on_query(call, paths[0], act)
        self.after(call)
        return answer

    def handle(self, path: bytes, inner: Handle) -> MemoryHandle:
        self.handles.append(MemoryHandle(inner))
        return self.handles[-1]

    def scandir(self, path: bytes, after: bytes = b"") -> Iterator[Sequence[Status]]:
        """In batches of three."""
        found = [status for batch in self._held.scandir(path, after) for status in batch]
        for at in range(0, len(found), 3):
            yield self.on_query("scandir", path, lambda at=at: found[at : at + 3])

    def space(self) -> Space | None:
        return self.on_query("space", b"/", lambda: self.capacity)


class PlainFile:
    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        self.status = handle.status

    async def read(self, offset: int, size: int) -> Buffer:
        await trio.lowlevel.checkpoint()
        return self.handle.read(offset, max(0, min(size, self.status.length - offset)))

    async def locate(self, offset: int, length: int) -> Sequence[Block]:
        await trio.lowlevel.checkpoint()
        return self.handle.locate(offset, length)

    async def aclose(self) -> None:
        self.handle.close()


class PlainReader:
    """Opens files of a store and reads them as they are."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store

    async def open(self, path: bytes, expect: Identity | None) -> PlainFile:
        return PlainFile(await trio.to_thread.run_sync(self.store.open, path, expect))


def recovered(payloads: Iterable[bytes]) -> InodeTable:
    state = InodeTable()
    state.replay(payloads)
    return state


class Kept:
    """A journal in lists. refuses: the call that fails. longest: most nodes that one step of a compaction carried."""

    def __init__(self, compact_every: int = 0) -> None:
        self.payloads: list[bytes] = []
        self.longest = self.generations = 0
        self.refuses = ""
        self._compact_every = compact_every
        self._carried: list[bytes] = []
        self._since = 0

    def append(self, payload: bytes) -> None:
        if self.refuses == "append":
            raise OSError
        self.payloads.append(payload)

    def full(self) -> bool:
        return 0 < self._compact_every < len(self.payloads)

    def begin(self) -> None:
        self._carried, self._since = [], len(self.payloads)

    def carry(self, payload: bytes) -> None:
        if self.refuses == "carry":
            raise OSError
        self._carried.append(payload)
        self.longest = max(
            self.longest, len(recovered([*self._carried]).nodes) - len(recovered(self._carried[:-1]).nodes)
        )

    def finish(self) -> bool:
        """Two payloads at a time, so that it comes to an end beside commits."""
        copied = self.payloads[self._since : self._since + 2]
        self._carried += copied
        self._since += len(copied)
        if self._since < len(self.payloads):
            return False
        self.payloads = self._carried
        self.generations += 1
        return True


@dataclass(eq=False)
class FakeUpload:
    uploads: FakeUploads
    path: bytes
    data: bytes
    dirty: bool
    attributes: Attributes = field(default_factory=Attributes)

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

    async def publish(self, final: bool) -> Status:
        await trio.lowlevel.checkpoint()
        store = self.uploads.store
        store.put(self.path, self.data, mtime_ns=time.time_ns(), mode=self.attributes.mode or 0)
        self.dirty = False
        if final:
            await self.abandon()
        return store.entries[self.path]

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
        self.uploads.before_moving(path)
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

    def __init__(self, store: MemoryStore, *, appends: bool = True, meanwhile: Callable[[], None] = quiet) -> None:
        self.store = store
        self.appends = appends
        self.open: dict[bytes, FakeUpload] = {}
        self.try_owners: Callable[[Attributes], None] = quiet
        self.writer_below: Callable[[bytes], str] = lambda folder: ""
        self.find_writer: Callable[[bytes], str] = lambda path: ""
        self.meanwhile = meanwhile
        self.before_moving: Callable[[bytes], None] = quiet

    def writer_of(self, path: bytes) -> str:
        return self.find_writer(path)

    async def begin(
        self,
        path: bytes,
        *,
        replacing: object,
        append: bool = False,
        attributes: Attributes | None = None,
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
        data = self.store.contents()[path] if append else b""
        self.open[path] = FakeUpload(self, path, data, not append, attributes or Attributes())
        return self.open[path]


def make(store: MemoryStore, kept: Kept | None = None, **options: object) -> Tree:
    """A tree; one that carries on where an earlier one stopped when `kept` holds its records."""
    state = InodeTable(kept)
    state.replay(kept.payloads if kept else ())
    return Tree(store, PlainReader(store), state=state, **options)  # type: ignore[arg-type]


def make_writable(
    store: MemoryStore,
    kept: Kept | None = None,
    *,
    uploads: FakeUploads | None = None,
    io_timeout: float = 90.0,
    **options: object,
) -> WritableTree:
    """The same, of a tree that can be written."""
    handles = WriteHandles()
    tree = make(store, kept, unpublished=UnpublishedNames(store, handles), io_timeout=io_timeout)
    return WritableTree(tree, handles, uploads or FakeUploads(store), **options)  # type: ignore[arg-type]


async def created(
    tree: WritableTree, data: bytes = b"", flags: int = CREATE, name: bytes = b"new", thread: int = ME
) -> tuple[int, int]:
    """A handle that writes a new file in the root, to which `data` was written; and its node."""
    handle, made, _ = await tree.create(ROOT, name, 0o644, flags, thread)
    if data:
        await tree.write(handle, 0, data)
    return handle, made.id


async def reopened(tree: WritableTree, flags: int, thread: int = ME) -> int:
    """A handle that writes what is at /f, as the kernel gets it: for a node of its own, at the second try."""
    with pytest.raises(StaleVersion):
        await tree.open_writing((await tree.lookup(ROOT, b"f")).id, flags, thread)
    return (await tree.open_writing((await tree.lookup(ROOT, b"f")).id, flags, thread))[0]


async def listed(tree: Tree, handle: int, start: int = 0, most: int = 10**6) -> list[tuple[bytes, int]]:
    shown: list[tuple[bytes, int]] = []

    def show(name: bytes, attributes: NodeAttributes, cookie: int) -> bool:
        if len(shown) == most:
            return False
        shown.append((name, cookie))
        return True

    await tree.readdir(handle, start, show)
    return shown
