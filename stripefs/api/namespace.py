"""Namespace of a source: existence checks, and directories and files that are made, moved and removed, trees
included."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence

import trio

from stripefs.api.source import Source
from stripefs.errors import NotEmpty, NotFound, StoreError, Unsupported
from stripefs.format.manifest import STRIPED_ID
from stripefs.format.reserved_names import POOL
from stripefs.store.base import Attributes, Kind, Status
from stripefs.write.namespace import NamespaceChanges, ensure_not_below
from stripefs.write.upload_names import ensure_usable, join_path
from stripefs.write_session import WriteSession

__all__ = ["NestedSource", "SourceNamespace", "remove_tree"]


class SourceNamespace:
    """`session`: of the same source; it deletes the striped versions that lose their name."""

    def __init__(self, source: Source, session: WriteSession) -> None:
        self.source = source
        self._calls = source.calls
        self._deletions = session.deletions
        self._changes = NamespaceChanges(
            source.store, source.calls, source.layouts, session.uploads, session.deletions.schedule, session.versions
        )

    async def mkdir(self, path: bytes, mode: int) -> None:
        """Raises Exists, NotFound where the directory above is missing."""
        ensure_usable(path, self.source.store)
        await self._changes.mkdir(path, mode)

    async def rmdir(self, path: bytes) -> None:
        """Raises NotEmpty, NotFound, NotADirectory."""
        await self.source.stat(path)  # which knows nothing of hidden names
        await self._changes.rmdir(path)

    async def set_attributes(self, path: bytes, wanted: Attributes) -> None:
        """Raises NotFound, PermissionDenied, Unsupported."""
        await self.source.stat(path)  # which knows nothing of hidden names
        if not self.source.store.capabilities.attributes:
            raise Unsupported(f"{self.source.store.url} keeps no permissions and no times")
        change = self.source.store.set_attributes
        await self._calls.change(f"set attributes of {path!r}", (), change, path, wanted)

    async def remove(self, path: bytes, seen: Status | None = None) -> None:
        """Remove the name of a file. seen: its status by a fresh listing. Raises NotFound, IsADirectory, Busy
        where somebody writes it."""
        plain = seen is not None and not STRIPED_ID.search(seen.file_id)
        await self._changes.remove(path, seen or await self.source.stat(path), plain=plain)

    async def remove_pool(self) -> None:
        """The pool of a source in which no file is left. Raises NotEmpty where it keeps something."""
        await self._deletions.wait_due()
        store = self.source.store.inner
        try:
            await self._calls.change("remove a pool", NotFound, store.rmdir, POOL)
        except NotEmpty:
            raise NotEmpty(
                f"the pool of {self.source.store.url} stays, as it keeps parts of removed files for their readers",
                hint="a gc removes them a day later; with a grace of 0 they go at once",
            ) from None
        except (NotFound, Unsupported):
            pass  # there is none, or the store knows no directories without files

    async def rename(self, path: bytes, target: bytes, *, replace: bool) -> None:
        """Raises NotFound, Exists where something is in the way and not to be replaced; Busy where somebody, this
        process too, writes a file of either name, or below a directory."""
        ensure_usable(target, self.source.store)
        ensure_not_below(path, target)
        status = await self.source.stat(path)
        if path == target:
            return
        await self._changes.wait_for_rename(path, target, status)
        await self._changes.rename(path, target, status, replace=replace)


_AT_ONCE = 16
"""Files that are removed side by side."""

NestedSource = Callable[[bytes], Awaitable[SourceNamespace | None]]
"""The names of the source that a directory is by itself, with a pool of its own; None for any other."""


async def remove_tree(names: SourceNamespace, path: bytes, full_path: bytes, inside: NestedSource) -> None:
    """Remove a directory with all that is in it, or a file: `path` in the source of `names`, which is `full_path` for
    `inside`. A pool in it goes with the directory, once nothing is kept in it.

    Entries that others put there meanwhile keep the directory. Raises the first error when all the rest was removed.
    """
    if (await names.source.stat(path)).kind is not Kind.DIRECTORY:
        await names.remove(path)
        return
    removal = _TreeRemoval(inside)
    await removal.clear(names, path, full_path)
    if removal.failed:
        raise removal.failed[0]


class _TreeRemoval:
    def __init__(self, inside: NestedSource) -> None:
        self.failed: list[StoreError] = []
        self._inside = inside
        self._limiter = trio.CapacityLimiter(_AT_ONCE)

    async def clear(self, names: SourceNamespace, folder: bytes, full_path: bytes) -> None:
        with self._collecting_errors():
            own = await self._inside(full_path)
            if own is None:
                await self._empty(names, folder, full_path)
            else:
                await self._empty(own, b"/", full_path)
                if not self.failed:
                    await own.remove_pool()
            if not self.failed:
                await names.rmdir(folder)

    async def _empty(self, names: SourceNamespace, folder: bytes, full_path: bytes) -> None:
        entries: Sequence[Status] = ()
        with self._collecting_errors():
            entries = await names.source.listing(folder)
        remaining = iter(entries)

        async def work() -> None:
            for status in remaining:
                below = join_path(folder, status.name)
                if status.kind is Kind.DIRECTORY:
                    await self.clear(names, below, join_path(full_path, status.name))
                else:
                    await self._remove(names, below, status)

        async with trio.open_nursery() as nursery:
            for _ in range(min(_AT_ONCE, len(entries))):
                nursery.start_soon(work)

    async def _remove(self, names: SourceNamespace, file: bytes, seen: Status) -> None:
        with self._collecting_errors():
            async with self._limiter:
                await names.remove(file, seen)

    @contextlib.contextmanager
    def _collecting_errors(self) -> Iterator[None]:
        try:
            yield
        except NotFound:
            pass  # somebody else was quicker
        except StoreError as error:
            self.failed.append(error)
