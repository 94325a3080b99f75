"""What is written of a file between two of its publications: blocks that get their version's key at the second one.

Who writes calls `offer`, then `publish` or `drop`; all else happens on the filler's threads.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from stripefs.cache.adoption import adopt
from stripefs.cache.cache import Cache
from stripefs.cache.filler import Work
from stripefs.cache.filling import Filling
from stripefs.cache.grid import BLOCK
from stripefs.cache.table import KEY, OPEN_END, digest
from stripefs.cache.waiting import blocks_of
from stripefs.store.allocator import aligned
from stripefs.store.base import Buffer

__all__ = ["Known", "Stretch"]


class Known(NamedTuple):
    """A published version: its key, length in bytes, and what is to be said about it."""

    key: bytes
    length: int
    about: dict[str, Any]


class Stretch:
    """about: what is said of it before it is published."""

    def __init__(self, cache: Cache, about: dict[str, Any]) -> None:
        self._cache = cache
        self._draft = _Draft(cache, about)
        self._filling: Filling | None = self._draft
        self._changed = threading.Condition()
        self._queued: dict[range, Sequence[Buffer]] = {}
        self._key = b""
        self._any = False
        self._writing = 0
        self._settling = False

    def offer(self, blocks: range, pieces: Sequence[Buffer]) -> None:
        """Have these neighbours written, which the pieces are the bytes of, unless too much waits for the disk."""
        self._any = True
        size = sum(map(len, pieces))
        with self._changed:
            self._queued[blocks] = pieces
        if not self._cache.filler.offer(Work(partial(self._fill, blocks), size, partial(self._forget, blocks))):
            self._forget(blocks)
            self._cache.figures.add("unfilled_bytes", size)

    def publish(self, known: Known, before: Known | None) -> None:
        """They are blocks of this version, whose others are those of the one `before`."""
        with self._changed:
            self._key = known.key
            for blocks, pieces in self._queued.items():
                for block, each in zip(blocks, blocks_of(pieces), strict=True):
                    self._cache.waiting.add(known.key, block, each)
        if self._any or before is not None:
            self._cache.filler.urge(Work(partial(self._settle, known, before), 0, lambda: None))

    def drop(self) -> None:
        """They are blocks of no version."""
        with self._changed:
            self._filling = None
        if self._any:
            self._cache.filler.urge(Work(self._remove, 0, lambda: None))

    def _forget(self, blocks: range) -> None:
        with self._changed:
            del self._queued[blocks]
            if self._key:
                self._cache.waiting.remove(self._key, blocks)

    # -- on the filler's threads ---------------------------------------------------------------------------------

    def _fill(self, blocks: range) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._settling)
            filling, pieces = self._filling, self._queued[blocks]
            self._writing += filling is not None
        if filling is None:
            return
        try:
            # Of what the writer gave, before anything is done with it.
            digests = [digest(block, each) for block, each in zip(blocks, blocks_of(pieces), strict=True)]
            filling.fill(blocks, _together(pieces), digests)
        finally:
            with self._changed:
                self._writing -= 1
                self._changed.notify_all()

    def _settle(self, known: Known, before: Known | None) -> None:
        filling = Filling(self._cache, *known)
        with self._changed:
            self._settling = True
            self._changed.wait_for(lambda: not self._writing)
        try:
            with self._cache.disk.tolerant("what was written cannot be kept", writing=True):
                if before is not None:
                    adopt(before.key, before.length, filling, before.length // BLOCK)
                adopt(self._draft.key, OPEN_END, filling, OPEN_END)
            self._draft.end()
        finally:
            with self._changed:
                self._filling, self._settling = filling, False
                self._changed.notify_all()

    def _remove(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._writing)
        self._draft.end()


class _Draft(Filling):
    """Under a key of its own, as long as there is no other."""

    def __init__(self, cache: Cache, about: dict[str, Any]) -> None:
        super().__init__(cache, secrets.token_bytes(KEY), OPEN_END, about)
        self._lock = threading.Lock()
        self._mark = -1

    def describe(self) -> None:
        with self._lock:
            if self._mark < 0:
                self._mark = self.cache.room.begin(self.key)
        super().describe()

    def end(self) -> None:
        """Nothing of it stays."""
        with self._lock:
            mark, self._mark = self._mark, -1
        if mark < 0:
            return
        with self.cache.disk.tolerant("what was not published cannot be removed", writing=True):
            if any(self.cache.place.pieces([self.key])):
                self.cache.room.remove([self.key])
        self.cache.place.tidy(self.key)
        self.cache.place.end(self.key, mark)


def _together(pieces: Sequence[Buffer]) -> memoryview:
    """Their bytes from where a page begins, as disks want them."""
    whole = aligned(sum(map(len, pieces)))
    begin = 0
    for piece in pieces:
        whole[begin : begin + len(piece)] = piece
        begin += len(piece)
    return whole
