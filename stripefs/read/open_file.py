"""One version of one file that the reader has open: its reads, their waits, and what it tells of them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import trio

from stripefs.errors import ServiceDown, StaleVersion, StoreError
from stripefs.read.locating import Locator
from stripefs.read.policy import Range, State
from stripefs.store.base import Block, Buffer, Handle, Status, Store
from stripefs.units import shown

if TYPE_CHECKING:
    from stripefs.read.reader import Reader

__all__ = ["FileObserver", "OpenFile", "wake"]

CLOSE = 5.0
"""Seconds for closing a handle, which holds nothing that a reader waits for."""

GRACE = 5.0
"""Seconds past io_timeout after which a read ends whatever the planner thinks."""


class FileObserver(Protocol):
    """Is told of one open file, on trio's thread. A host is that of `Range.host`."""

    def took(self, host: str, size: int) -> None:
        """A read that was answered has `size` bytes that had come from this host."""

    def waits(self) -> None:
        """A read begins to wait."""

    def waited(self, begun: float, host: str) -> None:
        """A read waited since `begun`, by the monotonic clock, for bytes; for this host the longest."""

    def closed(self) -> None: ...


class Take(Protocol):
    """Gets pieces of a read. What it keeps of one that is not the last must be a copy."""

    def __call__(self, part: memoryview, *, last: bool) -> None: ...


class OpenFile:
    """One version of one file. Every handle that shows this version shares it."""

    def __init__(self, reader: Reader, path: bytes, store: Store, handle: Handle) -> None:
        self.path = path
        self.store = store
        self.since = time.monotonic()
        self.handle = handle
        self.status: Status = handle.status
        self.plan = reader.planner.open(handle.status.length)
        self.name = shown(path)
        self.locator = Locator(
            self.name,
            handle,
            self.plan,
            reader.planner,
            reader.executor,
        )
        self._reader = reader
        self._observer: FileObserver | None = None
        self._next_files = reader.next_files
        """Asked after each read, until nothing more is to be learned of this file."""

    def observe(self) -> None:
        """A reader has opened it."""
        if self._reader.observer is not None:
            self._observer = self._reader.observer.opened(self.name, self.status.length)

    def same_as(self, other: OpenFile) -> bool:
        """True where it shows the version that the other does, and can be read."""
        same = self.path == other.path and self.store is other.store and self.status.identity == other.status.identity
        return same and self.plan.failed is None and not self.plan.closed

    async def read(self, offset: int, size: int) -> Buffer:
        """Exactly min(size, length - offset) bytes from `offset`; b"" at the end and beyond.

        Raises StaleVersion when the version is gone, StoreError when no replica answered within io_timeout.
        """
        parts: list[Buffer] = []

        def take(part: memoryview, *, last: bool) -> None:
            # A copy, so that no whole range is held without being accounted while the next one is awaited.
            parts.append(part if last and not parts else bytes(part))

        await self._read(offset, size, take)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def read_into(self, offset: int, buffer: memoryview) -> int:
        """As `read`, of len(buffer) bytes, copied once; how many there were. Large buffers want several calls."""
        at = 0

        def take(part: memoryview, **_: bool) -> None:
            nonlocal at
            buffer[at : at + len(part)] = part
            at += len(part)

        await self._read(offset, len(buffer), take)
        return at

    async def _read(self, offset: int, size: int, take: Take) -> None:
        """Hand the bytes to `take`, piece by piece in order. Raises what `read` raises."""
        end = min(offset + size, self.status.length)
        if end <= offset:
            return
        began = time.monotonic()
        try:
            with trio.fail_after(self._reader.settings.io_timeout + GRACE):
                await self._read_pieces(offset, end, take)
        except trio.TooSlowError:
            raise StoreError(
                f"no bytes of {self.name} within --io-timeout",
                hint="look at `stripefs status` for hosts that are avoided",
            ) from None
        self._reader.figures.reads += 1
        self._reader.figures.bytes_read += end - offset
        self._reader.figures.waited += time.monotonic() - began

    async def _read_pieces(self, offset: int, end: int, take: Take) -> None:
        planner = self._reader.planner
        parts: list[tuple[str, int]] = []
        await self.locator.known(offset, end)
        self._check()
        planner.read(self.plan, offset, end - offset, time.monotonic())
        if self._next_files is not None and self._next_files.foretell(self):
            self._next_files = None
        while offset < end:
            range_ = await self._ready(offset)
            stop = min(end, range_.end)
            part = memoryview(range_.data)[offset - range_.offset : stop - range_.offset]
            # Only now: what is started may take the room of a range that this read was the last to need.
            self._reader.pump()
            take(part, last=stop == end)
            del part
            parts.append((range_.host, stop - offset))
            offset = stop
        if self._observer is not None:  # not before all is here: a read that fails is asked again
            for host, size in parts:
                self._observer.took(host, size)

    async def _ready(self, offset: int) -> Range:
        while True:
            self._check()
            range_ = self._reader.planner.need(self.plan, offset, time.monotonic())
            if range_.state is State.WANTED:
                self._reader.pump()
            state = range_.state if range_.state is State.READY else await self._settled(range_)
            if state is State.FAILED and range_.error is not None:
                raise range_.error
            # A range may have lost its tail for want of memory: then the byte is asked for anew.
            if state is State.READY and offset < range_.end:
                return range_

    async def _settled(self, range_: Range) -> State:
        """Wait until something happened to the range. What it holds stays at least until the next await."""
        if range_.signal is None:
            range_.signal = trio.Event()
        range_.waiters += 1
        begun = time.monotonic()
        if self._observer is not None:
            self._observer.waits()
        try:
            await range_.signal.wait()
        finally:
            range_.waiters -= 1
            if self._observer is not None:
                under_way = range_.attempts[0].host if range_.attempts else ""
                self._observer.waited(begun, range_.slowest[1] or under_way)
        return range_.state

    def _check(self) -> None:
        if self.plan.closed:
            raise StaleVersion(f"{self.name} was closed")

    async def locate(self, offset: int, length: int) -> Sequence[Block]:
        """Where the store has the blocks that overlap [offset, offset + length), whatever is cached of them.

        Waits for a metadata service that is away.
        """
        return await self.locator.placed(offset, length)

    async def aclose(self) -> None:
        self._reader.forget(self)
        if self._observer is not None:
            self._observer.closed()
            self._observer = None
        lane = self._reader.executor.lane("open")
        with trio.CancelScope(shield=True), contextlib.suppress(ServiceDown):
            await lane.run(f"close {self.name}", self.handle.close, timeout=CLOSE)

    def snapshot(self) -> dict[str, Any]:
        return {
            "path": self.name,
            "length": self.status.length,
            "cursors": [
                {"position": cursor.position, "window": cursor.window, "read": cursor.consumed}
                for cursor in self.plan.cursors
            ],
        }


def wake(range_: Range) -> None:
    """Let those who wait for the range look at its state again."""
    if range_.signal is not None:
        range_.signal.set()
        range_.signal = None
