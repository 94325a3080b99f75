"""`counting+`: counts of a store's calls, bytes and concurrency per host, and of bytes that were fetched twice."""

from __future__ import annotations

import bisect
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

from stripefs.store.base import Buffer, Handle, Identity, Sink, Status, Store, Watch
from stripefs.store.wrapper import Parser, WrappedHandle, WrappedSink, WrappedStore

__all__ = ["CountingStore", "Counts"]

_T = TypeVar("_T")


@dataclass
class Counts:
    """Totals since the store was made. Hosts are as the reads named them, "" where the client chose.

    Only reads that succeeded add to bytes and bytes_by_host. refetched is how many of those bytes lay in a range of the
    same version that had been read before. peak and peak_by_host are the most reads under way at once.

    changes counts the calls that change the store by name (create, put, remove, mkdir, rmdir, rename, attributes,
    concat), those that failed too. written holds the bytes that sinks took, by the host that `create` named;
    sinks_peak is the most of them open at once, sinks_now how many are.
    """

    stats: int = 0
    scandirs: int = 0
    opens: int = 0
    open_now: int = 0
    reads: int = 0
    failed: int = 0
    bytes: int = 0
    refetched: int = 0
    peak: int = 0
    bytes_by_host: Counter[str] = field(default_factory=Counter)
    peak_by_host: Counter[str] = field(default_factory=Counter)
    changes: Counter[str] = field(default_factory=Counter)
    written: Counter[str] = field(default_factory=Counter)
    sinks_now: int = 0
    sinks_peak: int = 0


class CountingStore(WrappedStore):
    """`counts` grows while the store works; read it when the calls of interest have ended."""

    NAME = "counting"
    PARAMETERS: ClassVar[Mapping[str, Parser]] = {}

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.counts = Counts()
        self._lock = threading.Lock()
        self._under_way: Counter[str] = Counter()
        self._covered: dict[tuple[bytes, Identity], _Covered] = {}

    def scandir(self, path: bytes, after: bytes = b"") -> Iterator[Sequence[Status]]:
        with self._lock:
            self.counts.scandirs += 1
        return self.inner.scandir(path, after)

    def on_query(self, call: str, path: bytes, act: Callable[[], _T]) -> _T:
        with self._lock:
            self.counts.stats += call == "stat"
        return act()

    def on_change(self, call: str, paths: tuple[bytes, ...], act: Callable[[], _T]) -> _T:
        with self._lock:
            self.counts.changes[call] += 1
        return act()

    def handle(self, path: bytes, inner: Handle) -> Handle:
        return _CountingHandle(self, path, inner)

    def sink(self, path: bytes, host: str, inner: Sink) -> Sink:
        return _CountingSink(self, host, inner)

    def describe(self) -> dict[str, str]:
        counts = self.counts
        return {
            **self.inner.describe(),
            "counted": f"{counts.opens} opens, {counts.reads} reads, {counts.bytes} bytes, "
            f"{counts.changes.total()} changes, {counts.written.total()} bytes written",
        }

    def sinks(self, change: int) -> None:
        with self._lock:
            self.counts.sinks_now += change
            self.counts.sinks_peak = max(self.counts.sinks_peak, self.counts.sinks_now)

    def wrote(self, host: str, length: int) -> None:
        with self._lock:
            self.counts.written[host] += length

    def begin(self, host: str) -> None:
        with self._lock:
            self.counts.reads += 1
            self._under_way[host] += 1
            self.counts.peak = max(self.counts.peak, self._under_way.total())
            self.counts.peak_by_host[host] = max(self.counts.peak_by_host[host], self._under_way[host])

    def succeeded(self, version: tuple[bytes, Identity], offset: int, length: int, host: str) -> None:
        with self._lock:
            self.counts.bytes += length
            self.counts.bytes_by_host[host] += length
            covered = self._covered.setdefault(version, _Covered())
            self.counts.refetched += covered.add(offset, offset + length)

    def end(self, host: str, *, failed: bool) -> None:
        with self._lock:
            self._under_way[host] -= 1
            self.counts.failed += failed

    def opened(self) -> None:
        with self._lock:
            self.counts.opens += 1
            self.counts.open_now += 1

    def closed(self) -> None:
        with self._lock:
            self.counts.open_now -= 1


class _CountingHandle(WrappedHandle):
    def __init__(self, store: CountingStore, path: bytes, inner: Handle) -> None:
        super().__init__(inner)
        self._store = store
        self._version = (path, inner.status.identity)
        self._open = True
        store.opened()

    def read(self, offset: int, length: int, *, host: str = "", watch: Watch | None = None) -> Buffer:
        self._store.begin(host)
        failed = True
        try:
            data = self.inner.read(offset, length, host=host, watch=watch)
            self._store.succeeded(self._version, offset, length, host)
            failed = False
            return data
        finally:
            self._store.end(host, failed=failed)

    def close(self) -> None:
        if self._open:
            self._open = False
            self._store.closed()
        self.inner.close()


class _CountingSink(WrappedSink):
    def __init__(self, store: CountingStore, host: str, inner: Sink) -> None:
        super().__init__(inner)
        self._store = store
        self._host = host
        self._open = True
        store.sinks(+1)

    def write(self, data: Buffer) -> None:
        self.inner.write(data)
        self._store.wrote(self._host, len(data))

    def close(self) -> Status:
        status = self.inner.close()
        self._count_closed()
        return status

    def abort(self) -> None:
        self._count_closed()
        self.inner.abort()

    def _count_closed(self) -> None:
        if self._open:
            self._open = False
            self._store.sinks(-1)


class _Covered:
    """A set of bytes as disjoint ranges: `_edges` holds start, end, start, end … in rising order."""

    def __init__(self) -> None:
        self._edges: list[int] = []

    def add(self, start: int, end: int) -> int:
        """Add [start, end) and answer how many of its bytes were in the set already."""
        if start >= end:
            return 0
        edges = self._edges
        first, last = bisect.bisect_left(edges, start), bisect.bisect_right(edges, end)
        # An odd position lies inside a range, or at its end: that range grows instead of a new one starting.
        inner = edges[first:last]
        bounds = [*([start] if first % 2 else []), *inner, *([end] if last % 2 else [])]
        seen = sum(b - a for a, b in zip(bounds[::2], bounds[1::2], strict=True))
        edges[first:last] = [*([] if first % 2 else [start]), *([] if last % 2 else [end])]
        return seen
