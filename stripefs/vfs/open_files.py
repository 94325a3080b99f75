"""Open files for reading: one open file of the reader for each version, however many handles there are.

A file stays open while calls use it and while its node has handles. After a worker has died the next one opens it anew
for the first handle that reads.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

import trio

from stripefs.errors import NotFound, StaleVersion
from stripefs.executor import Executor
from stripefs.store.base import Block, Buffer, Identity, Status
from stripefs.vfs.inodes import Inode, InodeTable

__all__ = ["FileReader", "OpenFiles", "ReadableFile"]


class ReadableFile(Protocol):
    """One version of a file, open for reading; `stripefs.read` has the real one."""

    status: Status

    async def read(self, offset: int, size: int) -> Buffer: ...
    async def locate(self, offset: int, length: int) -> Sequence[Block]: ...
    async def aclose(self) -> None: ...


class FileReader(Protocol):
    async def open(self, path: bytes, expect: Identity | None) -> ReadableFile: ...


class OpenFiles:
    """The open files of a tree.

    confirm: raises StaleVersion when the path of this node has another version now. valid: for how many seconds its
    answer holds.
    """

    def __init__(
        self,
        state: InodeTable,
        calls: Executor,
        reader: FileReader,
        confirm: Callable[[int], Awaitable[object]],
        valid: float,
    ) -> None:
        self._state = state
        self._calls = calls
        self._reader = reader
        self._confirm = confirm
        self._valid = valid
        self._files: dict[int, _SharedFile] = {}

    @asynccontextmanager
    async def use(self, node: Inode, expect: Identity | None, *, fresh: bool = False) -> AsyncIterator[ReadableFile]:
        """The file of `node`, opened if it is not; with `fresh` its version is the path's now, or was while valid."""
        shared = self._files.get(node.id)
        if shared is None:
            shared = self._files[node.id] = _SharedFile()
        shared.users += 1
        try:
            yield await self._file(node.id, shared, expect, fresh)
        finally:
            await self._drop(node, shared)

    async def of_handle(self, node: Inode, status: Status) -> ReadableFile:
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

    async def _file(self, node_id: int, shared: _SharedFile, expect: Identity | None, fresh: bool) -> ReadableFile:
        async with shared.lock:
            path = self._state.path(node_id)
            if shared.file is None:
                shared.file = await self._calls.persist(f"open {path!r}", lambda: self._reader.open(path, expect))
            elif fresh and trio.current_time() - shared.checked > self._valid:
                await self._confirm(node_id)
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


class _SharedFile:
    """State that all handles of one version share. `users` are calls under way, not handles."""

    def __init__(self) -> None:
        self.file: ReadableFile | None = None
        self.users = 0
        self.lock = trio.Lock()
        self.checked = -1.0
