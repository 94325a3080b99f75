"""Opens the next of numbered files before its reader does, so that look-ahead goes on into it.

`stripefs.read.policy.series` says which one that is, `Planner.announce` how far is looked ahead in it. A file that was
opened so serves its reader when the store still has that version at the reader's own open.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from stripefs.errors import StoreError
from stripefs.read.policy import Cursor, Series
from stripefs.store.base import Kind, Store
from stripefs.units import shown

if TYPE_CHECKING:
    from stripefs.read.open_file import OpenFile
    from stripefs.read.reader import Reader

__all__ = ["NextFiles"]

log = logging.getLogger(__name__)

KEPT = 10.0
"""Seconds for which a file waits for its reader, since that was last seen in the file before."""


class NextFiles:
    """Of one reader; on trio's thread."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._series: WeakKeyDictionary[Store, Series] = WeakKeyDictionary()
        self._waiting: dict[OpenFile, Cursor] = {}
        """Files whose reader has not come, and its cursor in the file before."""

    def foretell(self, file: OpenFile) -> bool:
        """After a read of `file`: have the next one opened where that is known. True when there is no more to learn."""
        series = self._series.setdefault(file.store, Series())
        halfway = file.plan.cursors.trust.read * 2 >= file.status.length
        if halfway:
            series.read(file.path)
        cursor = self._reader.planner.nearing_end(file.plan)
        if cursor is None:
            return False
        path = series.next(file.path)
        if path is None:
            return halfway
        series.read(file.path)  # as far as can be seen
        self._reader.beside(f"opening {shown(path)} ahead", self._open, path, file, cursor)
        return True

    async def _open(self, path: bytes, before: OpenFile, cursor: Cursor) -> None:
        known = self._reader.files(before.store, path)
        if not known:
            try:
                opened = await self._reader.open_unobserved(before.store, path, None)
            except StoreError as error:  # it was the last one, as a rule; a reader that comes is told
                log.debug("opening %s ahead: %s", shown(path), error)
                self._series[before.store].missed(path)
                return
            known = [file for file in self._reader.files(before.store, path) if file is not opened]
            if known or opened.status.kind is not Kind.FILE:
                await opened.aclose()
            else:
                self._waiting[opened] = cursor
                known = [opened]
        file = known[-1]
        if not file.plan.cursors.announced:
            self._reader.planner.announce(file.plan, cursor, before.status.length, time.monotonic())
            self._reader.pump()
            self.foretell(file)  # the window may go beyond this one too

    async def taken(self, opened: OpenFile) -> OpenFile:
        """The file that a reader has just opened, or the same version of it, if that was opened ahead."""
        for file in self._waiting:
            if file.same_as(opened):
                del self._waiting[file]
                await opened.aclose()
                return file
        return opened

    async def close_unread(self, now: float) -> None:
        """Look beyond those whose readers are on their way, and close those whose readers did not come."""
        for file, cursor in list(self._waiting.items()):
            self.foretell(file)
            if max(cursor.seen, file.since) < now - KEPT:
                self._series[file.store].missed(file.path)
                await self._close(file)

    async def close(self) -> None:
        for file in list(self._waiting):
            await self._close(file)

    async def _close(self, file: OpenFile) -> None:
        del self._waiting[file]
        await file.aclose()
