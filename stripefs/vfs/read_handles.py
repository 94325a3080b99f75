"""Handles for reading: open files, and open directories as the kernel pages through them.

**Files.** The reader has one open file for each version, however many handles there are. It stays open while calls use
it and while its node has handles. After a worker has died the next one opens it anew for the first handle that reads.

**Directories.** The store lists in byte order of names and can go on after any name, so a position is a name. The
kernel knows positions as cookies; the handle's state (`DirectoryHandle.names`) says which name each cookie stands for,
and survives the worker. A page that the kernel took only in part is asked for again from the middle: entries since the
last start are kept for that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TYPE_CHECKING

import trio

from stripefs.errors import NotFound, StaleVersion, StripefsError, Transient
from stripefs.executor import Executor
from stripefs.store.base import Identity, Status, Store
from stripefs.vfs.attributes import IdMap
from stripefs.vfs.inodes import Inode, InodeTable

if TYPE_CHECKING:
    from stripefs.read import OpenFile, Reader
    from stripefs.vfs.write_handle import WriteHandles  # a read-only worker starts without it

__all__ = ["DirectoryEntry", "DirectoryListing", "OpenFiles", "UnpublishedNames"]


class OpenFiles:
    """The open files of a tree.

    confirm: raises StaleVersion when the path of this node has another version now. valid: for how many seconds its
    answer holds.
    """

    def __init__(
        self,
        state: InodeTable,
        calls: Executor,
        reader: Reader,
        confirm: Callable[[Inode], Awaitable[object]],
        valid: float,
    ) -> None:
        self._state = state
        self._calls = calls
        self._reader = reader
        self._confirm = confirm
        self._valid = valid
        self._files: dict[int, _SharedFile] = {}

    @asynccontextmanager
    async def use(self, node: Inode, expect: Identity | None, *, fresh: bool = False) -> AsyncIterator[OpenFile]:
        """The file of `node`, opened if it is not; with `fresh` its version is the path's now, or was while valid."""
        shared = self._files.get(node.id)
        if shared is None:
            shared = self._files[node.id] = _SharedFile()
        shared.users += 1
        try:
            yield await self._file(node, shared, expect, fresh)
        finally:
            await self._drop(node, shared)

    async def of_handle(self, node: Inode, status: Status) -> OpenFile:
        """The file of a handle, which an earlier worker may have given out. Raises StaleVersion."""
        shared = self._files.get(node.id)
        if shared is not None and shared.file is not None:
            return shared.file
        try:
            async with self.use(node, status.identity) as file:
                return file
        except NotFound as error:
            raise StaleVersion(f"{self._state.path(node.id)!r} is gone") from error

    async def released(self, node: Inode) -> None:
        """A handle of `node` was closed; with the last one the file is closed."""
        if (shared := self._files.get(node.id)) is not None:
            shared.users += 1
            await self._drop(node, shared)

    async def _file(self, node: Inode, shared: _SharedFile, expect: Identity | None, fresh: bool) -> OpenFile:
        async with shared.lock:
            path = self._state.path(node.id)
            if shared.file is None:
                shared.file = await self._calls.persist(f"open {path!r}", lambda: self._reader.open(path, expect))
            elif fresh and trio.current_time() - shared.checked > self._valid:
                await self._confirm(node)
            else:
                return shared.file
            shared.checked = trio.current_time()
            return shared.file

    async def _drop(self, node: Inode, shared: _SharedFile) -> None:
        shared.users -= 1
        if shared.users or node.handles:
            return
        self._files.pop(node.id, None)
        if shared.file is not None:
            file, shared.file = shared.file, None
            await file.aclose()


@dataclass(slots=True)
class _SharedFile:
    """State that all handles of one version share. `users` are calls under way, not handles."""

    file: OpenFile | None = None
    users: int = 0
    lock: trio.Lock = field(default_factory=trio.Lock)
    checked: float = -1.0


class UnpublishedNames:
    """The files that are being written, and listings of `store` in which they appear.

    A name that the store has is the store's: it has a version that can be read.
    """

    def __init__(self, store: Store, handles: WriteHandles) -> None:
        self._store = store
        self._handles = handles

    def __len__(self) -> int:
        return len(self._handles)

    def __contains__(self, path: bytes) -> bool:
        return self._handles.at(path) is not None

    def scandir(self, path: bytes, after: bytes) -> Iterator[Sequence[Status]]:
        """As `Store.scandir`; runs in a thread, and looks at the write handles once."""
        new = sorted(
            (
                replace(file.status, name=file.path.rpartition(b"/")[2], file_id=file.mark)
                for file in list(self._handles.by_node.values())
                if file.path is not None and file.path.rpartition(b"/")[0] == path.rstrip(b"/")
            ),
            key=attrgetter("name"),
        )
        new = [status for status in new if status.name > after]
        for batch in self._store.scandir(path, after):
            if batch and new and new[0].name <= batch[-1].name:
                there = {status.name for status in batch}
                last = batch[-1].name
                more = (one for one in new if one.name < last and one.name not in there)
                batch = sorted([*batch, *more], key=attrgetter("name"))
                new = [status for status in new if status.name > last]
            yield batch
        if new:
            yield new


@dataclass(slots=True)
class DirectoryEntry:
    """`cookie` is the position after this entry, 0 until the kernel was shown it; `seen` the time of the listing."""

    status: Status
    seen: float
    cookie: int = 0


_LEARNED_AT_ONCE = 4096
"""Names, which take 2 ms."""


class DirectoryListing:
    """Walks the directory at `path` for handle number `handle`. Hold `lock` around `seek` and what follows it."""

    def __init__(
        self,
        store: Store | UnpublishedNames,
        calls: Executor,
        owners: IdMap,
        state: InodeTable,
        handle: int,
        path: bytes,
    ) -> None:
        self.lock = trio.Lock()
        self._calls = calls
        self._state = state
        self._handle = handle
        self._path = path
        self._shown: deque[DirectoryEntry] = deque()  # since the last start, in case the kernel asks again
        self._upcoming: deque[DirectoryEntry] = deque()
        self._base = -1  # the cookie before the first of `_shown`
        self._walk = _Walk(store, owners, path, b"")
        self._rewound = False
        self._known: dict[bytes, int] = {}
        self._learned = 0  # names of the handle that are in `_known`

    def seek(self, cookie: int) -> None:
        """Go to the position `cookie`; IndexError when this handle never gave it."""
        while self._shown and self._base != cookie:
            self._base = self._shown.popleft().cookie
        if self._base == cookie:
            self._upcoming.extendleft(reversed(self._shown))
            self._shown.clear()
            return
        names = self._state.directories[self._handle].names
        if cookie > len(names):
            raise IndexError(cookie)
        self._base = cookie
        self._upcoming.clear()
        self._walk = self._walk.restart_after(names[cookie - 1] if cookie else b"")
        self._rewound |= cookie < len(names)

    async def peek(self) -> DirectoryEntry | None:
        """The entry after the position; None at the end."""
        while not self._upcoming:
            if self._rewound:
                await self._learn()
            walk = self._walk
            last = walk.last
            try:
                batch = await self._calls.call(f"list {self._path!r}", walk.next_batch, lane="listing")
            except StripefsError:
                self._walk = walk.restart_after(last)  # its thread may still be in there
                raise
            if not batch:
                return None
            now = trio.current_time()
            self._upcoming.extend(DirectoryEntry(status, now, self._known.get(status.name, 0)) for status in batch)
        return self._upcoming[0]

    async def _learn(self) -> None:
        """Names that were given a cookie before keep it, so that positions taken earlier stay right. Other tasks run
        meanwhile."""
        names = self._state.directories[self._handle].names
        while self._learned < len(names):
            some = names[self._learned : self._learned + _LEARNED_AT_ONCE]
            self._known.update((name, number) for number, name in enumerate(some, self._learned + 1))
            self._learned += len(some)
            await trio.lowlevel.checkpoint()

    def cookie(self, entry: DirectoryEntry) -> int:
        """The cookie that `entry` has or will have when it is stepped over."""
        return entry.cookie or len(self._state.directories[self._handle].names) + 1

    def advance(self) -> None:
        """Step over the entry that `peek` gave."""
        entry = self._upcoming.popleft()
        entry.cookie = entry.cookie or self._state.add_cookie(self._handle, entry.status.name)
        self._shown.append(entry)


class _Walk:
    """The batches after `last`, which moves on with them. Used by one thread at a time."""

    def __init__(self, store: Store | UnpublishedNames, owners: IdMap, path: bytes, last: bytes) -> None:
        self._store = store
        self._owners = owners
        self._path = path
        self.last = last
        self._batches: Iterator[Sequence[Status]] | None = None

    def restart_after(self, last: bytes) -> _Walk:
        return _Walk(self._store, self._owners, self._path, last)

    def next_batch(self) -> Sequence[Status]:
        """The next non-empty batch, or an empty one at the end. Blocks."""
        if self._batches is None:
            self._batches = iter(self._store.scandir(self._path, self.last))
        try:
            for batch in self._batches:
                if batch:
                    self._owners.learn(batch)
                    self.last = batch[-1].name
                    return batch
        except Transient:
            self._batches = None  # a generator that raised is over: the next try starts after the last name
            raise
        return ()
