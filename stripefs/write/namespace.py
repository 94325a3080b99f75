"""Changes of the names of published files and directories: the rules that a mount and Python programs share.

Other writers are seen by their locks. A file that was closed just now is locked for a moment longer. The versions that
a rename or unlink takes the name from are found before it, and scheduled for deletion after it.

Each change waits for other writers, is repeated while the store is away (`Executor.change`), and has the striped
versions that lost their name deleted later. Callers look at the names before, so that hidden ones are not found, and
know of the files that they write themselves.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Set
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from stripefs.errors import Busy, Exists, Invalid, IsADirectory, NotADirectory, NotFound, StoreError, Transient
from stripefs.executor import Executor, retry_task
from stripefs.format.lock_and_record import LEASE
from stripefs.format.reserved_names import is_hidden, parse_reserved
from stripefs.retry import RetryPolicy
from stripefs.store.base import Kind, Status, Store
from stripefs.write.directory_layout import DirectoryLayouts
from stripefs.write.file_lock import lock_path, read_lock
from stripefs.write.store_ops import StoreClock
from stripefs.write.upload_names import join_path, split_path

if TYPE_CHECKING:
    from stripefs.write.session import UploadManager

__all__ = [
    "NamespaceChanges",
    "ScheduleDelete",
    "begin_file",
    "ensure_not_below",
    "find_writer",
    "find_writer_below",
    "not_renamed",
    "until_free",
    "wait_for_writers",
]


ScheduleDelete = Callable[[Iterable[str]], None]
"""Told which striped versions have lost their last name; see `stripefs.gc.deferred_delete`."""


_log = logging.getLogger(__name__)
_T = TypeVar("_T")

BUSY = RetryPolicy(seconds=5.0, first=0.02, longest=0.2, errors=(Busy,))
"""Locks get so long to go: that of a file that was closed just now goes after `close`."""


async def wait_for_writers(calls: Executor, refused: str, look: Callable[[bytes], str], *paths: bytes) -> None:
    """Raises Busy where `look` goes on to name a writer at one of the paths. refused: the message's beginning.

    look(path): the name of a writer of the file, or below the directory, on any node, "" for none; blocks.
    """

    def find() -> str:
        return next(filter(None, map(look, paths)), "")

    async def ensure_free() -> None:
        if who := await calls.call("look for locks", find):
            raise Busy(who)

    await until_free(refused, ensure_free)


async def until_free(refused: str, attempt: Callable[[], Awaitable[_T]]) -> _T:
    """`attempt()`, which raises Busy as long as somebody else writes: they may be about to be done."""
    try:
        return await retry_task(attempt, BUSY)
    except Busy as error:
        _log.warning("%s: %s", refused, error)
        raise Busy(f"{refused}: {error.message}", hint=error.hint) from None


def find_writer_below(
    store: Store, folder: bytes, owner: str = "", versions: Set[str] = frozenset(), *, seconds: float = LEASE
) -> str:
    """The writer of a file somewhere below `folder`, for people; "" for nobody, or where that cannot be told.

    owner: names the mount that asks, as in `acquire`; of its own locks only those of `versions` live. All names
    are looked at, a million of which take a NameNode ten seconds. Blocks; raises Transient.
    """
    return _first_live(store, folder, _locks(store, folder), owner, versions, seconds)


def find_writer(
    store: Store, path: bytes, owner: str = "", versions: Set[str] = frozenset(), *, seconds: float = LEASE
) -> str:
    """The writer of the file at `path`, as `find_writer_below` tells it."""
    return _first_live(store, split_path(path)[0], _lock_of(store, path), owner, versions, seconds)


def _first_live(
    store: Store, folder: bytes, locks: Iterable[tuple[bytes, int]], owner: str, versions: Set[str], seconds: float
) -> str:
    """The first writer whose lock, of these, lives. The store's clock is read in `folder`."""
    clock: StoreClock | None = None
    try:
        for path, mtime_ns in locks:
            clock = clock or StoreClock(store, folder)
            held = read_lock(store, path) if clock.now_ns() - mtime_ns <= seconds * 1e9 else None
            if held is None or (owner and held.owner.startswith(f"{owner}/") and not versions & set(held.versions)):
                continue
            return f"{held.path or path!r} is being written by {held.where}"
    except Transient:
        raise
    except StoreError as error:
        _log.info("nobody knows who writes in %r: %s", folder, error)
    return ""


def _lock_of(store: Store, path: bytes) -> Iterator[tuple[bytes, int]]:
    """The lock of the file at `path`, if there is one, and its time."""
    lock = lock_path(path)
    with contextlib.suppress(NotFound, NotADirectory):
        yield lock, store.stat(lock).mtime_ns


def _locks(store: Store, folder: bytes) -> Iterator[tuple[bytes, int]]:
    """The locks below `folder` and their times."""
    folders = [folder]
    while folders:
        folder = folders.pop()
        with contextlib.suppress(NotFound, NotADirectory):
            for batch in store.scandir(folder):
                for entry in batch:
                    found = parse_reserved(entry.name)
                    if entry.kind is Kind.DIRECTORY and not is_hidden(entry.name):
                        folders.append(join_path(folder, entry.name))
                    elif entry.kind is Kind.FILE and found is not None and found.kind == "lock":
                        yield join_path(folder, entry.name), entry.mtime_ns


class NamespaceChanges:
    """store: the view in which a striped file is one file. versions(path): the pool folders that a striped file needs;
    blocks, and raises what `Store.stat` raises. There are none without `schedule_delete` or `versions`.
    """

    def __init__(
        self,
        store: Store,
        calls: Executor,
        layouts: DirectoryLayouts,
        uploads: UploadManager,
        schedule_delete: ScheduleDelete | None,
        versions: Callable[[bytes], Iterable[str]] | None,
    ) -> None:
        self._store = store
        self._calls = calls
        self._layouts = layouts
        self._uploads = uploads
        self._schedule_delete = schedule_delete
        self._versions = versions

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
            await wait_for_writers(self._calls, f"{path!r} is not removed", self._uploads.writer_of, path)
        old = frozenset() if plain else await self._lost_with(path)
        await self._calls.change(f"remove {path!r}", NotFound, self._store.remove, path)
        await self._delete_later(old, path, held=locked)

    async def wait_for_rename(
        self, source: bytes, target: bytes, status: Status, *, target_locked: bool = False
    ) -> None:
        """Raises Busy where somebody goes on to write the file at `source` or `target`, or below a directory."""
        refused = not_renamed(source, target)
        if status.kind is Kind.DIRECTORY:
            await wait_for_writers(self._calls, refused, self._uploads.writer_below, source)
        else:
            paths = (source,) if target_locked else (source, target)
            await wait_for_writers(self._calls, refused, self._uploads.writer_of, *paths)

    async def rename(
        self, source: bytes, target: bytes, status: Status, *, replace: bool, locked: bool = False
    ) -> None:
        """Move the entry that `status` describes. locked: the caller has the lock of `target`.

        Raises NotFound, Exists where something is in the way and not to be replaced.
        """
        old = await self._lost_with(target) if replace and status.kind is Kind.FILE else frozenset()
        move = partial(self._store.rename, source, target, replace=replace)
        try:
            await self._calls.change(f"rename {source!r} to {target!r}", NotFound, move)
        finally:
            if status.kind is Kind.DIRECTORY:
                self._layouts.forget()
        await self._delete_later(old, target, held=locked)

    async def _lost_with(self, path: bytes) -> Set[str]:
        """The versions that lose their name with `path`. None where that cannot be told: gc finds those."""
        if self._schedule_delete is None or self._versions is None:
            return frozenset()
        try:
            return frozenset(await self._calls.call(f"look at {path!r}", self._versions, path))
        except StoreError:
            return frozenset()

    async def _delete_later(self, versions: Set[str], path: bytes, *, held: bool) -> None:
        """`versions` have lost the name `path`, whose lock is `held` by the caller or by nobody.

        A writer that took it just before may have read them, and publish a version that names them: gc decides then.
        """
        look, schedule_delete = self._versions, self._schedule_delete
        if look is None or schedule_delete is None or not versions:
            return

        def named_again() -> Set[str]:
            if not held and self._uploads.writer_of(path):
                return versions
            try:
                return frozenset(look(path))
            except (NotFound, NotADirectory):
                return frozenset()

        with contextlib.suppress(StoreError):
            schedule_delete(versions - await self._calls.call(f"look at {path!r}", named_again))


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
    absent: bool = False,
) -> _T:
    """`begin(status)` for the version that `find` finds at `path`, None for none; again where one came meanwhile.

    absent: nothing was there a moment ago, so that only `begin`, which has to look with the lock held, is asked first.

    exclusive: Exists is raised where there is one. A file that another writer is about to publish counts as there: the
    lock decides who made it, and a program that takes a file for a mutex expects EEXIST for everybody but one.
    Raises Busy where somebody writes the file.
    """
    while True:
        status = None if absent else await find(path)
        absent = False
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
