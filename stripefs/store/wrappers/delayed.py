"""`delayed+`: every call takes `delay` longer, as a distant store's would. A cancelled read stops waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar, TypeVar

from stripefs.store.base import Buffer, Handle, Sink, Status, Store, Watch
from stripefs.store.wrappers.base import Parser, WrappedHandle, WrappedSink, WrappedStore, choices, pause
from stripefs.units import parse_duration

__all__ = ["DelayedStore"]

_T = TypeVar("_T")

_READING = ("stat", "scandir", "open", "read")
_CALLS = (*_READING, "change", "write")


class DelayedStore(WrappedStore):
    """`delay` in seconds, before each call named in `on`; scandir waits before each batch and before its end.

    change stands for every call that changes names, attributes or whole files, a sink's close included; write is a
    sink's. Those two are for who names them: by default what reads is delayed.
    """

    NAME = "delayed"
    PARAMETERS: ClassVar[Mapping[str, Parser]] = {"delay": parse_duration, "on": choices(*_CALLS)}

    def __init__(self, inner: Store, *, delay: float = 0.005, on: tuple[str, ...] = _READING) -> None:
        super().__init__(inner)
        self._delay = delay
        self._on = on

    def scandir(self, path: bytes, after: bytes = b"") -> Iterator[Sequence[Status]]:
        self.wait("scandir")
        for batch in self.inner.scandir(path, after):
            yield batch
            self.wait("scandir")

    def asking(self, call: str, path: bytes, act: Callable[[], _T]) -> _T:
        self.wait(call)
        return act()

    def changing(self, call: str, paths: tuple[bytes, ...], act: Callable[[], _T]) -> _T:
        self.wait("change")
        return act()

    def handle(self, path: bytes, inner: Handle) -> Handle:
        return _DelayedHandle(self, inner)

    def sink(self, path: bytes, host: str, inner: Sink) -> Sink:
        return _DelayedSink(self, inner)

    def describe(self) -> dict[str, str]:
        return {**self.inner.describe(), "delayed": f"{self._delay * 1000:g} ms before {', '.join(self._on)}"}

    def wait(self, call: str, watch: Watch | None = None) -> None:
        if call in self._on:
            pause(self._delay, watch)


class _DelayedHandle(WrappedHandle):
    def __init__(self, store: DelayedStore, inner: Handle) -> None:
        super().__init__(inner)
        self._store = store

    def read(self, offset: int, length: int, *, host: str = "", watch: Watch | None = None) -> Buffer:
        self._store.wait("read", watch)
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
