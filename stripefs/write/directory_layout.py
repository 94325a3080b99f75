"""The layout that a directory asks for: the extended attribute `user.stripefs.layout`.

A directory's layout holds for the files made in it and below, until a directory further down has its own. It is a line
of text in the hidden file `..stripefs-layout` of the directory, since not every store keeps attributes; so other mounts
see it too, within `_KEPT` seconds. `QuotaDirectories` finds directories with a quota of their own, below which no file
is striped.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

import trio

from stripefs.errors import Invalid, NotADirectory, NotEmpty, NotFound, StoreError, Transient
from stripefs.executor import Executor
from stripefs.format.reserved_names import LAYOUT_NAME, is_hidden
from stripefs.settings import LAYOUTS
from stripefs.store.base import Store
from stripefs.units import shown

__all__ = ["DirectoryLayouts"]

_log = logging.getLogger(__name__)

_KEPT = 10.0
"""Seconds for which an answer is believed: each directory above a new file costs a question else."""

_MOST = 10_000

_QUOTA_KEPT = 600.0
"""Seconds: a NameNode sums up a directory without a quota when it is asked for one."""


class _Known(NamedTuple):
    """`until` on trio's clock, and only while names have changed as often as `names` says."""

    layout: str
    until: float
    names: int


class QuotaDirectories:
    """Directories below the source's root that have a quota of their own. Parts lie in the pool at the root, where such
    a quota does not bind them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[bytes, tuple[bool, float]] = {}
        self.found: list[bytes] = []

    def binding(self, path: bytes) -> bytes:
        """The nearest directory above `path` that has a quota, b"" for none. Blocks; an unknown quota is none."""
        folder = path.rpartition(b"/")[0]
        while folder:
            if self._has(folder):
                return folder
            folder = folder.rpartition(b"/")[0]
        return b""

    def _has(self, folder: bytes) -> bool:
        has, until = self._known.get(folder, (False, -1.0))
        now = time.monotonic()
        if now < until:
            return has
        try:
            has = self._store.has_quota(folder)
        except Transient:
            raise
        except StoreError as error:  # a user who may not sum a directory up sees no quota
            _log.info("nobody knows whether %r has a quota: %s", folder, error)
            has = False
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[folder] = (has, now + _QUOTA_KEPT)
        if has and folder not in self.found:
            self.found.append(folder)
            _log.warning("%r has a quota, which would not bind parts in the pool: below it striped is concat", folder)
        return has


class DirectoryLayouts:
    """`store` is the one below the view that hides such files. clear(directory): removes from a directory what is
    hidden in it and nobody's, and raises NotEmpty where something stays; blocks."""

    def __init__(self, store: Store, calls: Executor, clear: Callable[[bytes], None] | None = None) -> None:
        self._store = store
        self._clear = clear
        self._calls = calls
        self._known: dict[bytes, _Known] = {}
        self._names = 0  # number of name changes

    async def for_file(self, path: bytes) -> str:
        """The layout that the nearest directory above `path` asks for, "" where none does."""
        folder = path.rpartition(b"/")[0]
        while True:
            if (layout := await self.of(folder or b"/")) or not folder:
                return layout
            folder = folder.rpartition(b"/")[0]

    async def of(self, directory: bytes) -> str:
        """The layout that a directory itself asks for, "" for none.

        While the store fails or the file is damaged it is the layout that was asked for last, where that is known; else
        raises StoreError.
        """
        known = self._known.get(directory)
        now = trio.current_time()
        if known is not None and now < known.until and known.names == self._names:
            return known.layout
        names = self._names
        try:
            layout = await self._calls.call("read a directory's layout", self._read, directory)
        except StoreError as error:
            if known is None:
                raise
            _log.warning("%s keeps the layout %s: %s", shown(directory), known.layout or "of the mount", error)
            layout = known.layout
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[directory] = _Known(layout, now + _KEPT, names)
        return layout

    async def set(self, directory: bytes, value: bytes) -> None:
        """Raises Invalid for what is no layout."""
        layout = value.decode(errors="replace").strip()
        if layout not in LAYOUTS:
            raise Invalid(f"{layout!r} is no layout", hint=f"the layouts are {', '.join(LAYOUTS)}")
        file = _file(directory)
        await self._calls.call("set a layout", lambda: self._store.put(file, [layout.encode() + b"\n"], replace=True))
        self.forget()

    async def remove(self, directory: bytes) -> None:
        """Raises NotFound where the directory asks for nothing."""
        await self._calls.call("remove a layout", self._store.remove, _file(directory))
        self.forget()

    def forget(self) -> None:
        """Names have changed: ask again."""
        self._names += 1

    def rmdir(self, directory: bytes) -> None:
        """Remove a directory that is empty but for its layout and what nobody needs any more.

        Blocks; raises what `Store.rmdir` raises.
        """
        try:
            return self._store.rmdir(directory)
        except NotEmpty:
            names = _names(self._store, directory)
            if names - {LAYOUT_NAME} and (self._clear is None or not all(map(is_hidden, names))):
                raise
        if names - {LAYOUT_NAME} and self._clear is not None:
            self._clear(directory)
        if LAYOUT_NAME not in names:
            return self._store.rmdir(directory)
        kept = bytes(self._store.get(_file(directory)))
        self._store.remove(_file(directory))
        try:
            self._store.rmdir(directory)
        except StoreError:
            self._store.put(_file(directory), [kept], replace=True)
            raise
        return None

    def _read(self, directory: bytes) -> str:
        try:
            layout = bytes(self._store.get(_file(directory))).decode(errors="replace").strip()
        except (NotFound, NotADirectory):
            return ""
        if layout not in LAYOUTS:
            raise StoreError(
                f"the layout of {shown(directory)} is damaged or of a later version: {layout[:20]!r} names no layout",
                hint="setfattr -n user.stripefs.layout sets it anew, setfattr -x removes it",
            )
        return layout


def _names(store: Store, directory: bytes) -> set[bytes]:
    return {status.name for batch in store.scandir(directory) for status in batch}


def _file(directory: bytes) -> bytes:
    return directory.rstrip(b"/") + b"/" + LAYOUT_NAME
