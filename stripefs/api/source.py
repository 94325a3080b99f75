"""One source of this process: a directory of a service, its open versions, and its write sessions.

`References` counts the calls that use a source or a write session; both are closed after minutes without a user.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import trio

from stripefs.assembly import AssembledStore
from stripefs.executor import Executor
from stripefs.gc.collect import clear_for_rmdir
from stripefs.read import OpenFile, Reader
from stripefs.settings import Settings, WriteSettings
from stripefs.store.base import Identity, Status
from stripefs.store.striped_handle import StripedHandle
from stripefs.store.wrapper import WrappedHandle
from stripefs.write.directory_layout import DirectoryLayouts
from stripefs.write_session import WriteSession

__all__ = ["IDLE", "LOOK_EVERY", "OpenVersion", "References", "Source", "in_use"]

IDLE = 300.0
"""Seconds without a user after which an object expires: longer than most pauses between two files of one program."""

LOOK_EVERY = 60.0
"""Seconds between two looks for expired objects."""


class References:
    """Counts the calls that use a shared object. busy(): True while something else keeps the object between calls."""

    def __init__(self, busy: Callable[[], bool]) -> None:
        self._busy = busy
        self._calls = 0
        self._needed_at = trio.current_time()

    def acquire(self) -> None:
        """Count the current call, until it ends. Raises LookupError outside of `in_use()`."""
        acquired = _acquired.get()
        if self not in acquired:
            acquired.add(self)
            self._calls += 1

    def release(self) -> None:
        """A call that was counted has ended."""
        self._calls -= 1
        self._needed_at = trio.current_time()

    def expired(self) -> bool:
        """True after IDLE seconds in which no look found the object used or busy."""
        now = trio.current_time()
        if self._calls or self._busy():
            self._needed_at = now
        return now - self._needed_at >= IDLE


_acquired: ContextVar[set[References]] = ContextVar("acquired")


@contextmanager
def in_use() -> Iterator[None]:
    """Run one call; at its end, release the references that it acquired."""
    acquired: set[References] = set()
    token = _acquired.set(acquired)
    try:
        yield
    finally:
        _acquired.reset(token)
        for each in acquired:
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
        if isinstance(handle, WrappedHandle):  # through the cache
            handle = handle.inner
        return handle.manifest.pool if isinstance(handle, StripedHandle) else None

    async def close(self) -> None:
        """One user less."""
        await self.source.close(self)


class _SharedSession:
    """A write session, which runs in a scope of its own."""

    def __init__(self, session: WriteSession) -> None:
        self.session = session
        self.scope = trio.CancelScope()
        self.references = References(lambda: session.busy)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with self.scope:
            await self.session.run(task_status=task_status)


class Source:
    """A directory of a service. store: the view of its striped files."""

    def __init__(self, nursery: trio.Nursery, assembled: AssembledStore, reader: Reader) -> None:
        self._assembled = assembled
        self.store = assembled.view
        self.references = References(lambda: bool(self._open or self._sessions))
        self.calls = Executor(reader.settings.io_timeout)
        self.layouts = DirectoryLayouts(assembled.base, self.calls, self._clear_directory)
        self._nursery = nursery
        self._reader = reader
        self._open: dict[bytes, dict[Identity, OpenVersion]] = {}
        self._sessions: dict[tuple[WriteSettings, bool], _SharedSession] = {}
        self._lock = trio.Lock()

    def close_idle(self) -> None:
        """End the write sessions without users: their tasks give up what they hold, and end."""
        for wanted, shared in list(self._sessions.items()):
            if shared.references.expired():
                del self._sessions[wanted]
                shared.scope.cancel()

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
        files = self._assembled.files
        file = await self.calls.persist(f"open {path!r}", lambda: self._reader.open(path, expect, store=files))
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
            **self._assembled.cache_status(),
            "writers": [shared.session.status() for shared in self._sessions.values()],
        }

    async def session(self, settings: Settings) -> WriteSession:
        """The write session of this source with these limits; each file has its layout."""
        plain = WriteSettings()
        limits = settings.write._replace(layout=plain.layout, layout_for=plain.layout_for)
        wanted = (limits, settings.cache.writes)
        async with self._lock:
            shared = self._sessions.get(wanted)
            if shared is None:
                shared = _SharedSession(WriteSession(self._assembled, settings._replace(write=limits)))
                await self._nursery.start(shared.run)
                self._sessions[wanted] = shared
            shared.references.acquire()
        return shared.session

    def _clear_directory(self, folder: bytes) -> None:
        uploads = [each.session.uploads for each in list(self._sessions.values())]
        for each in uploads:
            each.release_spares(folder)
        used = frozenset(version for each in uploads for version in each.versions)
        clear_for_rmdir(self.store.inner, self.store, folder, used)
