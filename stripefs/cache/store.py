"""A store whose files are read through the cache. It stands right below the reader, where a striped file is one."""

from __future__ import annotations

import os
import time
from typing import Any

from stripefs.cache.cache import Cache
from stripefs.cache.filling import Filling
from stripefs.cache.handle import CACHE, CachedHandle
from stripefs.cache.keep import checkpoint_of, matches
from stripefs.cache.key import key_of, place_of
from stripefs.cache.stretch import Known
from stripefs.cache.version import Version
from stripefs.cache.written import Written
from stripefs.store.base import Handle, Identity, Kind, Status, Store
from stripefs.store.wrapper import WrappedStore

__all__ = ["LEAST", "CachedStore"]

LEAST = 1 << 20
"""Bytes of a file below which it is not cached: it would take three names on disk, and to open it asks the store."""


class CachedStore(WrappedStore):
    """`inner` with `cache` in front, which others may use too; who made that closes it, after this."""

    NAME = "cached"
    PARAMETERS = {}  # noqa: RUF012  # it is not part of URLs

    def __init__(self, inner: Store, cache: Cache) -> None:
        super().__init__(inner)
        self.url = inner.url
        self.near = inner.near | {CACHE}
        self.cache = cache
        self._settings = cache.settings

    def open(self, path: bytes, expect: Identity | None = None) -> Handle:
        handle = self.inner.open(path, expect)
        known = self._known(path, handle.status)
        return handle if known is None else CachedHandle(handle, Version(Filling(self.cache, *known)))

    def written(self, path: bytes) -> Written | None:
        """What wants the bytes of the file at `path` while they are written; None where nothing does."""
        if not self._matches(path):
            return None
        about = self._about(path, Status(b"", Kind.FILE, mtime_ns=time.time_ns()))
        return Written(self.cache, self._known, about)

    def keeps(self, path: bytes, status: Status) -> bool:
        """Whether anything of this file is kept."""
        return status.length >= LEAST and self._matches(path)

    def _matches(self, path: bytes) -> bool:
        return not self._settings.match or matches(os.fsdecode(path), self._settings.match)

    def _known(self, path: bytes, status: Status) -> Known | None:
        if not self.keeps(path, status):
            return None
        key = key_of(self.url, path, status.identity, time.time_ns(), trust_mtime=self._settings.trust_mtime)
        return None if key is None else Known(key, status.length, self._about(path, status))

    def _about(self, path: bytes, status: Status) -> dict[str, Any]:
        keep = self._settings.keep_newest
        source, place = place_of(self.url, path)
        checkpoint = checkpoint_of(os.fsdecode(path), self._settings.match or ("*",)) if keep else ""
        return {
            "source": source,
            "path": place,
            "length": status.length,
            "mtime_ns": status.mtime_ns,
            "file_id": status.file_id,
            "keep": keep,
            "checkpoint": place_of(self.url, os.fsencode(checkpoint))[1] if checkpoint else "",
        }
