"""A store whose files are read through the cache. It stands right below the reader, where a striped file is one."""

from __future__ import annotations

import os
import time
from typing import Any

from stripefs.cache.cache import Cache
from stripefs.cache.handle import CACHE, CachedHandle
from stripefs.cache.keep import checkpoint_of, matches
from stripefs.cache.key import key_of, place_of
from stripefs.cache.version import Version
from stripefs.store.base import Handle, Identity, Status, Store
from stripefs.store.wrappers.base import WrappedStore

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
        key = self._key(path, handle.status)
        if key is None:
            return handle
        return CachedHandle(handle, Version(self.cache, key, handle.status.length, self._about(path, handle.status)))

    def _key(self, path: bytes, status: Status) -> bytes | None:
        if status.length < LEAST or (self._settings.match and not matches(os.fsdecode(path), self._settings.match)):
            return None
        return key_of(self.url, path, status.identity, time.time_ns(), trust_mtime=self._settings.trust_mtime)

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
