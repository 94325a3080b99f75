"""`short+`: a client that now and then answers fewer bytes than it was asked for.

With `checked`, the default, the answer passes the check that every client owes (`ranges.exact`) and becomes
HostFailed. Without it the short answer goes out, which breaks the seam's promise: it shows whether a caller would
notice.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from typing import ClassVar

from stripefs.store.base import Buffer, Handle, Store, Watch
from stripefs.store.ranges import exact
from stripefs.store.wrappers.base import Parser, WrappedHandle, WrappedStore, fraction, seeded, switch
from stripefs.units import shown

__all__ = ["ShortStore"]


class ShortStore(WrappedStore):
    """`rate` is the share of reads that lose 1 byte to all of their bytes; a second try of a range draws again."""

    NAME = "short"
    PARAMETERS: ClassVar[Mapping[str, Parser]] = {"rate": fraction, "seed": int, "checked": switch}

    def __init__(self, inner: Store, *, rate: float = 0.01, seed: int = 0, checked: bool = True) -> None:
        super().__init__(inner)
        self._rate = rate
        self._seed = seed
        self._checked = checked
        self._asked: Counter[tuple[bytes, int, int]] = Counter()
        self._lock = threading.Lock()

    def handle(self, path: bytes, inner: Handle) -> Handle:
        return _ShortHandle(self, path, inner)

    def describe(self) -> dict[str, str]:
        return {**self.inner.describe(), "short": f"{self._rate:.2%} of reads"}

    def answer(self, data: Buffer, path: bytes, offset: int, host: str) -> Buffer:
        """`data`, or a part of it, or HostFailed instead of the part."""
        length = len(data)
        with self._lock:
            self._asked[path, offset, length] += 1
            turn = self._asked[path, offset, length]
        draw = seeded(self._seed, path, offset, length, turn)
        if length and draw.random() < self._rate:
            data = data[: draw.randrange(length)]
        where = f"{shown(path)} at {offset}"
        return exact(data, length, where=where, host=host) if self._checked else data


class _ShortHandle(WrappedHandle):
    def __init__(self, store: ShortStore, path: bytes, inner: Handle) -> None:
        super().__init__(inner)
        self._store = store
        self._path = path

    def read(self, offset: int, length: int, *, host: str = "", watch: Watch | None = None) -> Buffer:
        return self._store.answer(self.inner.read(offset, length, host=host, watch=watch), self._path, offset, host)
