"""Changes of the names of published files and directories: the rules that a mount and Python programs share.

Each change waits for other writers, is repeated while the store is away (`Executor.change`), and has the striped
versions that lost their name deleted later. Callers look at the names before, so that hidden ones are not found, and
know of the files that they write themselves.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Protocol, TypeVar

from stripefs.errors import Busy, Exists, IsADirectory, NotFound
from stripefs.executor import Executor
from stripefs.store.base import Kind, Status, Store
from stripefs.write.directory_layout import DirectoryLayouts
from stripefs.write.errors import Invalid
from stripefs.write.namespace import LostVersions, ScheduleDelete, wait_for_writers

__all__ = ["NamespaceChanges", "begin_file", "ensure_not_below", "not_renamed"]

_T = TypeVar("_T")


class OtherWriters(Protocol):
    """Finds who else writes, on any node, as `UploadManager` does: "" for nobody. Both block."""

    def writer_of(self, path: bytes) -> str: ...
    def writer_below(self, directory: bytes) -> str: ...


class NamespaceChanges:
    """store: the view in which a striped file is one file. `schedule_delete` and `versions`: as `LostVersions` wants
    them."""

    def __init__(
        self,
        store: Store,
        calls: Executor,
        layouts: DirectoryLayouts,
        writers: OtherWriters,
        schedule_delete: ScheduleDelete | None,
        versions: Callable[[bytes], Iterable[str]] | None,
    ) -> None:
        self._store = store
        self._calls = calls
        self._layouts = layouts
        self._writers = writers
        self._lost = LostVersions(calls, schedule_delete, versions, writers.writer_of)

    async def mkdir(self, path: bytes, mode: int) -> None:
        """Raises Exists, NotFound where the directory above is missing."""
        await self._calls.change(f"make directory {path!r}", (), self._store.mkdir, path, mode)

    async def rmdir(self, path: bytes) -> None:
        """Raises NotEmpty, NotFound, NotADirectory."""
        try:
            await self._calls.change(f"remove directory {path!r}", NotFound, self._layouts.rmdir, path)
        finally:
            self._layouts.forget()

    async def remove(self, path: bytes, status: Status, *, locked: bool = False, plain: bool = False) -> None:
        """Remove the name of the file that `status` describes. locked: the caller has its lock. plain: it is known not
        to be striped.

        Raises IsADirectory, NotFound, Busy where somebody goes on to write it.
        """
        if status.kind is Kind.DIRECTORY:
            raise IsADirectory(f"{path!r} is a directory")
        if not locked:
            await wait_for_writers(self._calls, f"{path!r} is not removed", self._writers.writer_of, path)
        old = frozenset() if plain else await self._lost.of(path)
        await self._calls.change(f"remove {path!r}", NotFound, self._store.remove, path)
        await self._lost.schedule_delete(old, path, held=locked)

    async def wait_for_rename(
        self, source: bytes, target: bytes, status: Status, *, target_locked: bool = False
    ) -> None:
        """Raises Busy where somebody goes on to write the file at `source` or `target`, or below a directory."""
        refused, writers = not_renamed(source, target), self._writers
        if status.kind is Kind.DIRECTORY:
            await wait_for_writers(self._calls, refused, writers.writer_below, source)
        else:
            paths = (source,) if target_locked else (source, target)
            await wait_for_writers(self._calls, refused, writers.writer_of, *paths)

    async def rename(
        self, source: bytes, target: bytes, status: Status, *, replace: bool, locked: bool = False
    ) -> None:
        """Move the entry that `status` describes. locked: the caller has the lock of `target`.

        Raises NotFound, Exists where something is in the way and not to be replaced.
        """
        old = await self._lost.of(target) if replace and status.kind is Kind.FILE else frozenset()
        move = partial(self._store.rename, source, target, replace=replace)
        try:
            await self._calls.change(f"rename {source!r} to {target!r}", NotFound, move)
        finally:
            if status.kind is Kind.DIRECTORY:
                self._layouts.forget()
        await self._lost.schedule_delete(old, target, held=locked)


def ensure_not_below(source: bytes, target: bytes) -> None:
    """Raises Invalid where a rename would put `source` below itself."""
    if target.startswith(source + b"/"):
        raise Invalid(f"{source!r} cannot go below itself")


def not_renamed(source: bytes, target: bytes) -> str:
    """The beginning of the message of a rename that a writer hinders."""
    return f"{source!r} is not renamed to {target!r}"


async def begin_file(
    path: bytes,
    find: Callable[[bytes], Awaitable[Status | None]],
    begin: Callable[[Status | None], Awaitable[_T]],
    *,
    exclusive: bool,
) -> _T:
    """`begin(status)` for the version that `find` finds at `path`, None for none; again where one came meanwhile.

    exclusive: Exists is raised where there is one. A file that another writer is about to publish counts as there: the
    lock decides who made it, and a program that takes a file for a mutex expects EEXIST for everybody but one.
    Raises Busy where somebody writes the file.
    """
    while True:
        status = await find(path)
        if status is not None and exclusive:
            raise Exists(f"{path!r} exists")
        try:
            return await begin(status)
        except Busy as error:
            if exclusive:
                raise Exists(f"{path!r} exists: {error.message}", hint=error.hint) from error
            raise
        except Exists:  # published since it was looked for: then that is the version to continue or replace
            if exclusive or status is not None:
                raise
