"""Fault injection: `faulty+` fails a share of the calls, `delayed+` delays calls, `short+` answers too few bytes.

A call of `faulty+` fails depending on the seed, on what is asked and on how often it was asked before, so a second try
of the same range draws again, and threads that race draw the same as threads that do not.

`delayed+` makes every call take `delay` longer, as a distant store's would. A cancelled read stops waiting.

`short+` answers fewer bytes than it was asked for now and then. With `checked`, the default, the answer passes the
check that every client owes (`common.exact`) and becomes HostFailed. Without it the short answer goes out, which breaks
the seam's promise: it shows whether a caller would notice.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar, TypeVar

from stripefs.errors import HostFailed, NoSpace, QuotaExceeded, ServiceDown, Transient
from stripefs.store.base import Buffer, Handle, Sink, Status, Store, Watch
from stripefs.store.common import exact
from stripefs.store.wrapper import (
    CHANGES,
    Parser,
    WrappedHandle,
    WrappedSink,
    WrappedStore,
    choices,
    fraction,
    pause,
    seeded,
    switch,
    whole,
)
from stripefs.units import parse_duration, shown

__all__ = ["DelayedStore", "FaultyStore", "ShortStore"]

_T = TypeVar("_T")

_DELAYED_READS = ("stat", "scandir", "open", "read")
_DELAYED_CALLS = (*_DELAYED_READS, "change", "write")


class DelayedStore(WrappedStore):
    """`delay` in seconds, before each call named in `on`; scandir waits before each batch and before its end.

    change stands for every call that changes names, attributes or whole files, a sink's close included; write is a
    sink's. Those two are for who names them: by default what reads is delayed.
    """

    NAME = "delayed"
    PARAMETERS: ClassVar[Mapping[str, Parser]] = {"delay": parse_duration, "on": choices(*_DELAYED_CALLS)}

    def __init__(self, inner: Store, *, delay: float = 0.005, on: tuple[str, ...] = _DELAYED_READS) -> None:
        super().__init__(inner)
        self._delay = delay
        self._on = on

    def scandir(self, path: bytes, after: bytes = b"") -> Iterator[Sequence[Status]]:
        self.wait("scandir")
        for batch in self.inner.scandir(path, after):
            yield batch
            self.wait("scandir")

    def on_query(self, call: str, path: bytes, act: Callable[[], _T]) -> _T:
        self.wait(call)
        return act()

    def on_change(self, call: str, paths: tuple[bytes, ...], act: Callable[[], _T]) -> _T:
        self.wait("change")
        return act()

    def handle(self, path: bytes, inner: Handle) -> Handle:
        return _Handle(inner, lambda _offset, _length, _host, watch: self.wait("read", watch))

    def sink(self, path: bytes, host: str, inner: Sink) -> Sink:
        return _DelayedSink(self, inner)

    def describe(self) -> dict[str, str]:
        return {**self.inner.describe(), "delayed": f"{self._delay * 1000:g} ms before {', '.join(self._on)}"}

    def wait(self, call: str, watch: Watch | None = None) -> None:
        if call in self._on:
            pause(self._delay, watch)


class _Handle(WrappedHandle):
    """before: called ahead of each read with its offset, length, host and watch, and may raise or wait."""

    def __init__(self, inner: Handle, before: Callable[[int, int, str, Watch | None], None]) -> None:
        super().__init__(inner)
        self._before = before

    def read(self, offset: int, length: int, *, host: str = "", watch: Watch | None = None) -> Buffer:
        self._before(offset, length, host, watch)
        return self.inner.read(offset, length, host=host, watch=watch)


class _DelayedSink(WrappedSink):
    def __init__(self, store: DelayedStore, inner: Sink) -> None:
        super().__init__(inner)
        self._store = store

    def write(self, data: Buffer) -> None:
        self._store.wait("write")
        self.inner.write(data)

    def close(self) -> Status:
        self._store.wait("change")
        return self.inner.close()


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


_FAULTY_CALLS = ("stat", "scandir", "open", "read", *CHANGES, "write", "close")
_FAULTY_KINDS = ("host", "service", "transient", "space", "quota", "wrong")


class FaultyStore(WrappedStore):
    """`rate` is the share of calls that fail, `on` the calls that may, `kinds` the errors drawn from.

    host, service and transient are HostFailed, ServiceDown and Transient, space and quota NoSpace and QuotaExceeded;
    wrong is a RuntimeError, which no client may raise: it shows what the callers make of a client's bug.

    write and close are a sink's, the others the store's. With `nth` no draw is made: of all calls named in `on` the
    n-th fails, counted from 1 since the store was made or `fail_at` was called, and no other. With `after` a change
    has its effect first and fails then, as when an answer gets lost on the way.
    """

    NAME = "faulty"
    PARAMETERS: ClassVar[Mapping[str, Parser]] = {
        "rate": fraction,
        "seed": int,
        "kinds": choices(*_FAULTY_KINDS),
        "on": choices(*_FAULTY_CALLS),
        "nth": whole,
        "after": switch,
    }

    def __init__(
        self,
        inner: Store,
        *,
        rate: float = 0.01,
        seed: int = 0,
        kinds: tuple[str, ...] = ("host", "service", "transient"),
        on: tuple[str, ...] = ("read",),
        nth: int = 0,
        after: bool = False,
    ) -> None:
        super().__init__(inner)
        self._rate = rate
        self._seed = seed
        self._kinds = kinds
        self._on = on
        self._asked: Counter[tuple[object, ...]] = Counter()
        self._lock = threading.Lock()
        self._nth = nth
        self._after = after
        self._calls = 0

    def fail_at(self, nth: int, *on: str, kind: str = "", after: bool | None = None) -> None:
        """From here on the `nth` call of those named in `on` (of those given before if empty) fails; 0: none does."""
        with self._lock:
            self._rate, self._calls, self._nth = 0.0, 0, nth
            self._on = on or self._on
            self._kinds = (kind,) if kind else self._kinds
            self._after = self._after if after is None else after

    def scandir(self, path: bytes, after: bytes = b"") -> Iterator[Sequence[Status]]:
        for number, batch in enumerate(self.inner.scandir(path, after)):
            self.maybe_fail("scandir", path, after, number)
            yield batch

    def on_query(self, call: str, path: bytes, act: Callable[[], _T]) -> _T:
        self.maybe_fail(call, path)
        return act()

    def on_change(self, call: str, paths: tuple[bytes, ...], act: Callable[[], _T]) -> _T:
        if self._after:
            answer = act()
            self.maybe_fail(call, *paths)
            return answer
        self.maybe_fail(call, *paths)
        return act()

    def handle(self, path: bytes, inner: Handle) -> Handle:
        return _Handle(
            inner, lambda offset, length, host, _watch: self.maybe_fail("read", path, offset, length, host=host)
        )

    def sink(self, path: bytes, host: str, inner: Sink) -> Sink:
        return _FaultySink(self, path, host, inner)

    def describe(self) -> dict[str, str]:
        return {**self.inner.describe(), "faulty": f"{self._rate:.2%} of {', '.join(self._on)}"}

    def maybe_fail(self, call: str, *what: object, host: str = "") -> None:
        if call not in self._on:
            return
        key = (call, *what, host)
        with self._lock:
            self._asked[key] += 1
            self._calls += 1
            turn, number = self._asked[key], self._calls
        draw = seeded(self._seed, turn, *key)
        if number != self._nth if self._nth else draw.random() >= self._rate:
            return
        kind = draw.choice(self._kinds)
        if kind == "host":
            raise HostFailed("an injected failure of a data host", host=host)
        if kind == "service":
            raise ServiceDown("an injected failure of the metadata service")
        if kind == "transient":
            raise Transient("an injected passing failure")
        if kind == "space":
            raise NoSpace("an injected want of room")
        if kind == "quota":
            raise QuotaExceeded("an injected quota")
        raise RuntimeError("an injected bug of the client")


class _FaultySink(WrappedSink):
    def __init__(self, store: FaultyStore, path: bytes, host: str, inner: Sink) -> None:
        super().__init__(inner)
        self._store = store
        self._path = path
        self._host = host
        self._offset = 0

    def write(self, data: Buffer) -> None:
        self._store.maybe_fail("write", self._path, self._offset, host=self._host)
        self.inner.write(data)
        self._offset += len(data)

    def close(self) -> Status:
        return self._store.on_change("close", (self._path,), self.inner.close)
