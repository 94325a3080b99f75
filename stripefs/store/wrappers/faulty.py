"""`faulty+`: a share of the calls fails, in the ways in which stores fail.

Whether a call fails depends on the seed, on what is asked and on how often it was asked before, so a second try of the
same range draws again, and threads that race draw the same as threads that do not.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from stripefs.errors import HostFailed, ServiceDown, Transient
from stripefs.store.base import Buffer, Handle, Identity, Status, Store, Watch
from stripefs.store.wrappers.base import Parser, WrappedHandle, WrappedStore, choices, fraction, seeded

__all__ = ["FaultyStore"]

_CALLS = ("stat", "scandir", "open", "read")
_KINDS = ("host", "service", "transient", "wrong")


class FaultyStore(WrappedStore):
    """`rate` is the share of calls that fail, `on` the calls that may, `kinds` the errors drawn from.

    host, service and transient are HostFailed, ServiceDown and Transient; wrong is a RuntimeError, which no client
    may raise: it shows what the callers make of a client's bug.
    """

    NAME = "faulty"
    PARAMETERS: ClassVar[Mapping[str, Parser]] = {
        "rate": fraction,
        "seed": int,
        "kinds": choices(*_KINDS),
        "on": choices(*_CALLS),
    }

    def __init__(
        self,
        inner: Store,
        *,
        rate: float = 0.01,
        seed: int = 0,
        kinds: tuple[str, ...] = ("host", "service", "transient"),
        on: tuple[str, ...] = ("read",),
    ) -> None:
        super().__init__(inner)
        self._rate = rate
        self._seed = seed
        self._kinds = kinds
        self._on = on
        self._asked: Counter[tuple[object, ...]] = Counter()
        self._lock = threading.Lock()

    def stat(self, path: bytes) -> Status:
        self.maybe_fail("stat", path)
        return self.inner.stat(path)

    def scandir(self, path: bytes, after: bytes = b"") -> Iterator[Sequence[Status]]:
        for number, batch in enumerate(self.inner.scandir(path, after)):
            self.maybe_fail("scandir", path, after, number)
            yield batch

    def open(self, path: bytes, expect: Identity | None = None) -> Handle:
        self.maybe_fail("open", path)
        return _FaultyHandle(self, path, self.inner.open(path, expect))

    def describe(self) -> dict[str, str]:
        return {**self.inner.describe(), "faulty": f"{self._rate:.2%} of {', '.join(self._on)}"}

    def maybe_fail(self, call: str, *what: object, host: str = "") -> None:
        if call not in self._on:
            return
        key = (call, *what, host)
        with self._lock:
            self._asked[key] += 1
            turn = self._asked[key]
        draw = seeded(self._seed, turn, *key)
        if draw.random() >= self._rate:
            return
        kind = draw.choice(self._kinds)
        if kind == "host":
            raise HostFailed("an injected failure of a data host", host=host)
        if kind == "service":
            raise ServiceDown("an injected failure of the metadata service")
        if kind == "transient":
            raise Transient("an injected passing failure")
        raise RuntimeError("an injected bug of the client")


class _FaultyHandle(WrappedHandle):
    def __init__(self, store: FaultyStore, path: bytes, inner: Handle) -> None:
        super().__init__(inner)
        self._store = store
        self._path = path

    def read(self, offset: int, length: int, *, host: str = "", watch: Watch | None = None) -> Buffer:
        self._store.maybe_fail("read", self._path, offset, length, host=host)
        return self.inner.read(offset, length, host=host, watch=watch)
