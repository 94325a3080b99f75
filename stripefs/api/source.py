"""One source of this process: a directory of a service, its open versions, and its write sessions.

`RefCounted` counts the users of connections and write sessions, which are closed after minutes without a user.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import trio

from stripefs.cache.cached_store import CachedHandle, CachedStore
from stripefs.executor import Executor
from stripefs.gc.collect import clear_for_rmdir
from stripefs.read import OpenFile, Reader
from stripefs.settings import Settings, WriteSettings
from stripefs.store.base import Identity, Status, Store
from stripefs.store.striped import StripedStore
from stripefs.store.striped_handle import StripedHandle
from stripefs.write.context import no_observer
from stripefs.write.directory_layout import DirectoryLayouts
from stripefs.write_session import WriteSession

__all__ = ["IDLE", "LOOK_EVERY", "OpenVersion", "RefCounted", "Source", "in_use"]

IDLE = 300.0
"""Seconds without a user after which an object expires: longer than most pauses between two files of one program."""

LOOK_EVERY = 60.0
"""Seconds between two looks for expired objects."""


class RefCounted:
    """An object that calls share. Subclasses say in `busy` what keeps it between calls."""

    def __init__(self) -> None:
        self._calls = 0
        self._needed_at = trio.current_time()

    @property
    def busy(self) -> bool:
        raise NotImplementedError

    def hold(self) -> None:
        """Keep this object until the current call ends. Raises LookupError outside of `in_use()`."""
        held = _held.get()
        if self not in held:
            held.add(self)
            self._calls += 1

    def release(self) -> None:
        """The call that held this object has ended."""
        self._calls -= 1
        self._needed_at = trio.current_time()

    def expired(self) -> bool:
        """True after IDLE seconds in which no look found the object held or busy."""
        now = trio.current_time()
        if self._calls or self.busy:
            self._needed_at = now
        return now - self._needed_at >= IDLE


_held: ContextVar[set[RefCounted]] = ContextVar("held")


@contextmanager
def in_use() -> Iterator[None]:
    """Run one call and release the objects that it holds at its end."""
    held: set[RefCounted] = set()
    token = _held.set(held)
    try:
        yield
    finally:
        _held.reset(token)
        for each in held:
            each.release()


class OpenVersion:
    """One version of one file, for all who read it in this process."""

    def __init__(self, source: Source, path: bytes, file: OpenFile) -> None:
        self.source = source
        self.path = path
        self.file = file
        self.users = 1

    @property
    def status(self) -> Status:
        return self.file.status

    @property
    def pool(self) -> bytes | None:
        """The pool that the manifest of a striped file names; None for other files."""
        handle = self.file.handle
        if isinstance(handle, CachedHandle):
            handle = handle.inner
        return handle.manifest.pool if isinstance(handle, StripedHandle) else None

    async def close(self) -> None:
        """One user less."""
        await self.source.close(self)


class _Writers(RefCounted):
    """A write session, which runs in a scope of its own."""

    def __init__(self, session: WriteSession) -> None:
        super().__init__()
        self.session = session
        self.scope = trio.CancelScope()

    @property
    def busy(self) -> bool:
        return self.session.busy

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with self.scope:
            await self.session.run(task_status=task_status)


class Source(RefCounted):
    """A directory of a service. `store`: the view of its striped files; `files`: the same, with a cache if any."""

    def __init__(self, nursery: trio.Nursery, store: StripedStore, files: Store, reader: Reader) -> None:
        super().__init__()
        self.store = store
        self._files = files
        self.calls = Executor(reader.settings.io_timeout)
        self.layouts = DirectoryLayouts(store.inner, self.calls, self._vacate)
        self._nursery = nursery
        self._reader = reader
        self._open: dict[bytes, dict[Identity, OpenVersion]] = {}
        self._sessions: dict[tuple[WriteSettings, bool], _Writers] = {}
        self._turn = trio.Lock()

    @property
    def busy(self) -> bool:
        return bool(self._open or self._sessions)

    def close_idle(self) -> None:
        """End the write sessions that nobody uses: their tasks let go of what they have, and end."""
        for wanted, writers in list(self._sessions.items()):
            if writers.expired():
                del self._sessions[wanted]
                writers.scope.cancel()

    async def open(self, path: bytes, expect: Identity | None = None) -> OpenVersion:
        """The version `expect` of the file at `path`, else the one that is there now. `OpenVersion.close` gives it
        back.

        Raises what `Store.open` raises.
        """
        if versions := self._open.get(path):
            identity = expect or (await self.stat(path)).identity
            if found := versions.get(identity):
                found.users += 1
                return found
        file = await self.calls.persist(f"open {path!r}", lambda: self._reader.open(path, expect, store=self._files))
        versions = self._open.setdefault(path, {})
        if found := versions.get(file.status.identity):  # somebody else was quicker
            found.users += 1
            await file.aclose()
            return found
        versions[file.status.identity] = opened = OpenVersion(self, path, file)
        return opened

    async def close(self, opened: OpenVersion) -> None:
        opened.users -= 1
        if opened.users:
            return
        versions = self._open[opened.path]
        del versions[opened.status.identity]
        if not versions:
            del self._open[opened.path]
        await opened.file.aclose()

    async def stat(self, path: bytes) -> Status:
        return await self.calls.call(f"look up {path!r}", self.store.stat, path)

    async def listing(self, path: bytes) -> list[Status]:
        """Entries of a directory, in byte order of the names. Raises NotADirectory, NotFound."""

        def look() -> list[Status]:
            return [status for batch in self.store.scandir(path) for status in batch]

        return await self.calls.call(f"list {path!r}", look)

    def status(self) -> dict[str, Any]:
        """Figures, as `stripefs status --json` has them of a mount."""
        return {
            "source": self.store.url,
            "store": self.store.describe(),
            "reader": self._reader.snapshot(),
            **({"cache": self._files.cache.snapshot()} if isinstance(self._files, CachedStore) else {}),
            "writers": [writers.session.status() for writers in self._sessions.values()],
        }

    async def session(self, settings: Settings) -> WriteSession:
        """The write session of this source with these limits; the layout is told file by file."""
        plain = WriteSettings()
        limits = settings.write._replace(layout=plain.layout, layout_for=plain.layout_for)
        wanted = (limits, settings.cache.writes)
        async with self._turn:
            writers = self._sessions.get(wanted)
            if writers is None:
                files = self._files
                copies = files.written if settings.cache.writes and isinstance(files, CachedStore) else no_observer
                session = WriteSession(self.store, limits, self._reader.settings.io_timeout, copies=copies)
                writers = _Writers(session)
                await self._nursery.start(writers.run)
                self._sessions[wanted] = writers
            writers.hold()
        return writers.session

    def _vacate(self, folder: bytes) -> None:
        used = frozenset(version for each in list(self._sessions.values()) for version in each.session.drafts.versions)
        clear_for_rmdir(self.store.inner, self.store, folder, used)
