"""Operations on the tree of a source: names that are made, moved and removed, trees included, and disk usage.

Usage counts the files' own bytes, and the bytes that the store keeps for them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import NamedTuple

import trio

from stripefs.api.engine import as_os_error
from stripefs.api.source import Source
from stripefs.api.sources import SourceAddress, Sources
from stripefs.errors import NotEmpty, NotFound, StoreError, StripefsError, Unsupported
from stripefs.format.manifest import STRIPED_ID, Manifest
from stripefs.format.reserved_names import POOL
from stripefs.store.base import Attributes, Kind, Status
from stripefs.write.namespace import NamespaceChanges, ensure_not_below
from stripefs.write.upload_names import ensure_usable, join_path
from stripefs.write_session import WriteSession

__all__ = ["NestedSource", "SourceNamespace", "Usage", "remove_tree", "usage"]

_REMOVALS_AT_ONCE = 16
"""Files that are removed side by side."""

_MANIFESTS_AT_ONCE = 32
"""Manifests read at once: a directory of striped files waits for the store's round trips."""


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
        self._limiter = trio.CapacityLimiter(_REMOVALS_AT_ONCE)

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
            for _ in range(min(_REMOVALS_AT_ONCE, len(entries))):
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


class Usage(NamedTuple):
    """Usage of `path`, with all below it. Sizes in bytes.

    files: their number. size: bytes that programs read in them. stored: bytes that the store keeps for that, in all
    replicas where it has any: of a striped file its parts with their checksums and the manifest.
    """

    path: str
    files: int
    size: int
    stored: int


async def usage(
    sources: Sources, address: SourceAddress, path: bytes, name: Callable[[bytes], str]
) -> tuple[list[Usage], list[OSError]]:
    """Usage of each directory from `path` down, those inside before the one they are in, or a file alone; and what
    could not be looked at. `name` makes a URL of a path. Raises StoreError where it is `path` itself."""
    view = await sources.view(address)
    limiter = trio.CapacityLimiter(_MANIFESTS_AT_ONCE)
    errors: list[OSError] = []

    async def of_file(file: bytes, status: Status) -> Usage:
        stored = status.length
        if STRIPED_ID.search(status.file_id):
            async with limiter:
                stored = await _stored(sources, address, file) or stored
        return Usage(os.fsdecode(file), 1, status.length, stored * max(1, status.replication))

    async def of_folder(folder: bytes, above: list[int]) -> None:
        """Directories in it are done later, and add their sums to `above` then."""
        entries = await view.listing(folder)
        sums = [0, 0, 0]
        seen.append((folder, sums, above))

        async def add(file: bytes, status: Status) -> None:
            try:
                _add(sums, (await of_file(file, status))[1:])
            except NotFound:
                pass  # it went since it was listed
            except StripefsError as error:
                errors.append(as_os_error(error, name(file)))

        async with trio.open_nursery() as nursery:
            for status in entries:
                if status.kind is Kind.FILE:
                    nursery.start_soon(add, join_path(folder, status.name), status)
        remaining.extend((join_path(folder, status.name), sums) for status in entries if status.kind is Kind.DIRECTORY)

    status = await view.stat(path)
    if status.kind is not Kind.DIRECTORY:
        return [await of_file(path, status)], errors
    seen: list[tuple[bytes, list[int], list[int]]] = []  # each before what is in it, the last of a directory first
    remaining: list[tuple[bytes, list[int]]] = []
    await of_folder(path, [0, 0, 0])
    while remaining:
        folder, above = remaining.pop()
        try:
            await of_folder(folder, above)
        except NotFound:
            pass
        except StripefsError as error:
            errors.append(as_os_error(error, name(folder)))
    found = []
    for folder, sums, above in reversed(seen):
        _add(above, sums)
        found.append(Usage(os.fsdecode(folder), *sums))
    return found, errors


def _add(sums: list[int], more: Sequence[int]) -> None:
    sums[:] = [one + other for one, other in zip(sums, more, strict=True)]


async def _stored(sources: Sources, address: SourceAddress, path: bytes) -> int:
    """Bytes of all objects of a striped file, one replica of each; 0 where another file is there by now."""
    source, inner = await sources.at(address, path)
    manifest: Manifest | None = await source.calls.call(f"look at {path!r}", source.store.manifest, inner)
    if manifest is None:
        return 0
    listed = manifest.parts_list()
    outside = len(listed[1]) if listed is not None else 0
    return len(manifest.to_bytes()) + outside + sum(part.length for part in manifest.parts)
