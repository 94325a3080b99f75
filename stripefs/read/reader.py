"""The reader: carries out what `stripefs.read.policy` decides, and hands readers their bytes.

All state is touched on trio's thread only; between two awaits nothing else moves. Threads run the blocking reads
(`fetch`), and a watchdog looks for silent and slow attempts while any is under way.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from operator import methodcaller
from typing import Any, Protocol

import trio
from trio import TaskStatus

from stripefs.errors import Abandoned, Corrupt, ServiceDown, StaleVersion, StoreError
from stripefs.executor import Executor, Lane
from stripefs.read.fetch import Fetcher, Outcome
from stripefs.read.locating import Locator
from stripefs.read.next_files import NextFiles
from stripefs.read.policy import Attempt, FilePlan, Limits, Planner, Range, State
from stripefs.settings import ReadSettings, default_budget
from stripefs.store.allocator import Heap
from stripefs.store.base import Block, Buffer, Handle, Identity, Status, Store
from stripefs.supervised import contain, supervise
from stripefs.units import Pace, shown

__all__ = ["FileObserver", "Observer", "OpenFile", "Reader"]

log = logging.getLogger(__name__)

WATCH_EVERY = 0.1
"""Seconds between looks at what is under way: a tenth of the time after which a host counts as silent."""

TICK_EVERY = 1.0

CLOSE = 5.0
"""Seconds for closing a handle, which holds nothing that a reader waits for."""

GRACE = 5.0
"""Seconds past io_timeout after which a read ends whatever the planner thinks."""


class Reader:
    """Reads files of one service through one memory budget. Start `run` before the first `open`.

    store: one of that service; others reached in the same way can do the same. heap: of a process that keeps freed
    buffers for this reader; it is trimmed while buffers come and go, and when the last is gone. observer: is told of
    files and waits. foretells: whether numbered files that are read in order are opened ahead.
    """

    def __init__(
        self,
        store: Store,
        settings: ReadSettings,
        heap: Heap | None = None,
        observer: Observer | None = None,
        *,
        foretells: bool = True,
    ) -> None:
        self.store = store
        self.observer = observer
        self.settings = settings
        self.budget = settings.memory or default_budget()
        range_size = min(settings.range_size, self.budget // 8)
        # What the client holds beside our own buffers: of every thread's range, for a quarter of the budget at most.
        held = min(settings.threads * range_size, self.budget // 4) if store.capabilities.copies else 0
        self.planner = Planner(
            Limits(
                budget=self.budget - held,
                range_size=range_size,
                threads=settings.threads,
                per_host=settings.per_host,
                io_timeout=settings.io_timeout,
                hedge=settings.hedge,
                choose_host=store.capabilities.choose_host,
                near=store.near,
            ),
            store.health,
        )
        self._files: dict[FilePlan, OpenFile] = {}
        self.next_files = NextFiles(self) if foretells else None
        self.executor = Executor(settings.io_timeout)
        self._trimming = Lane("memory", 1)
        self._fetcher: Fetcher | None = None
        self._nursery: trio.Nursery | None = None
        self._stir = trio.Event()
        self._heap = heap
        self.figures = Figures()

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """The watchdog; until cancelled."""
        self._fetcher = Fetcher(self.settings.threads, self._done)
        try:
            async with trio.open_nursery() as self._nursery:
                task_status.started()
                await supervise("watching reads", self._watch)
        finally:
            if self.next_files is not None:
                await self.next_files.close()
            self._fetcher.close()
            self._trimming.close()

    async def open(self, path: bytes, expect: Identity | None = None, *, store: Store | None = None) -> OpenFile:
        """Open one version of the file at `path`, in `store` where that is given. Raises what `Store.open` raises."""
        file = await self.open_unobserved(store or self.store, path, expect)
        if self.next_files is not None:
            file = await self.next_files.taken(file)
        file.observe()
        return file

    async def open_unobserved(self, store: Store, path: bytes, expect: Identity | None) -> OpenFile:
        handle = await self.executor.lane("open").run(
            f"open {shown(path)}", store.open, path, expect,
            timeout=self.settings.io_timeout, late=methodcaller("close"),
        )  # fmt: skip
        file = OpenFile(self, path, store, handle)
        self._files[file.plan] = file
        return file

    def snapshot(self) -> dict[str, Any]:
        """Figures for `status` and metrics: sizes in bytes, times in seconds, counts since the start."""
        now = time.monotonic()
        planner = self.planner
        return {
            "memory": {"budget": self.budget, "used": planner.pool.used, "peak": planner.pool.peak},
            "reads": self.figures.reads,
            "bytes_read": self.figures.bytes_read,
            "bytes_fetched": planner.bytes_fetched,
            "bytes_wasted": planner.bytes_wasted,
            "throughput": self.figures.pace.rate,
            "starved": planner.starved,
            "waited_seconds": self.figures.waited,
            "hedges": planner.hedges,
            "hedge_wins": planner.hedge_wins,
            "retries": planner.retries,
            "dropped": planner.pool.dropped,
            "errors": dict(self.figures.errors),
            "corrupt": list(self.figures.corrupt),
            "in_flight": planner.hosts.in_flight,
            "threads": self.settings.threads,
            "range_size": planner.range_size(),
            "hosts": [
                {
                    "name": host.name,
                    "in_flight": host.in_flight,
                    "bytes": host.bytes_total,
                    "errors": host.errors,
                    "suspected": host.suspected,
                    "avoided_seconds": planner.hosts.health.seconds(host.name, now),
                    "reason": planner.hosts.health.reason(host.name),
                }
                for host in planner.hosts.states()
            ],
            "files": [file.snapshot() for file in self._files.values()],
        }

    # -- carrying out --------------------------------------------------------------------------------------------

    def files(self, store: Store, path: bytes) -> list[OpenFile]:
        """The open versions of a file."""
        return [file for file in self._files.values() if file.path == path and file.store is store]

    def beside(self, what: str, work: Callable[..., Awaitable[None]], *args: Any) -> None:
        """Do that beside all else, while the reader runs. An error in it is logged."""
        if self._nursery is not None:
            self._nursery.start_soon(contain, what, work, *args)

    def pump(self) -> None:
        """Start whatever the planner wants started now."""
        self._start(self.planner.dispatch(time.monotonic()))
        while self.planner.unlocated:
            self._locate(*self.planner.unlocated.popitem(), again=False)
        while self.planner.outdated:
            self._locate(*self.planner.outdated.popitem(), again=True)

    def _locate(self, plan: FilePlan, offset: int, *, again: bool) -> None:
        locator = self._files[plan].locator
        # One at a time: every pump asks for it as long as nothing is known, and readers wait behind it.
        if self._nursery is not None and not locator.busy:
            locator.busy = True
            look = locator.look_again if again else locator.look_ahead
            self.beside(f"locating blocks of {self._files[plan].name}", self._located, look, offset)

    async def _located(self, look: Callable[[int], Awaitable[None]], offset: int) -> None:
        await look(offset)
        self.pump()

    def _start(self, attempts: Sequence[Attempt]) -> None:
        if not attempts:
            return
        if self._fetcher is None:
            raise RuntimeError("Reader.run is not running")
        for attempt in attempts:
            if self.store.capabilities.cancel:
                attempt.progress_at = attempt.started
            self._fetcher.start(attempt, self._files[attempt.range.file].handle)
        self._stir.set()

    def _done(self, attempt: Attempt, outcome: Outcome) -> None:
        now = time.monotonic()
        others = [other for other in attempt.range.attempts if other is not attempt]
        if isinstance(outcome, Exception):
            for range_ in self.planner.failed(attempt, self._noted(attempt, outcome), now):
                wake(range_)
        else:
            arrived = self.planner.succeeded(attempt, outcome, now)
            if arrived is not None:
                wake(arrived)
        self.cancel(others)
        self.pump()

    def cancel(self, attempts: Sequence[Attempt]) -> None:
        """Unblock those of `attempts` that the planner marked cancelled."""
        for attempt in attempts:
            if attempt.cancelled and self._fetcher is not None:
                self._fetcher.cancel(attempt)

    def _noted(self, attempt: Attempt, error: Exception) -> StoreError:
        """Log and count the failure of an attempt. What a client may not raise becomes an error that no retry mends."""
        if attempt.cancelled:
            return Abandoned("cancelled")
        name = type(error).__name__
        self.figures.errors[name] = self.figures.errors.get(name, 0) + 1
        file = self._files.get(attempt.range.file)
        what = f"{file.name if file else 'a closed file'} at {attempt.range.offset}"
        if isinstance(error, Corrupt) and error.message not in self.figures.corrupt:
            self.figures.corrupt.append(error.message)
        if isinstance(error, StoreError):
            log.info("reading %s from %s: %s", what, attempt.host or "a host of the client's choice", error)
            return error
        log.error("reading %s failed unexpectedly; please report this", what, exc_info=error)
        return StoreError(f"reading {what} failed unexpectedly: {error!r}")

    async def _watch(self) -> None:
        next_tick = 0.0
        while True:
            if not self.planner.attempts and not self.planner.waiting:
                with trio.move_on_after(TICK_EVERY):
                    await self._stir.wait()
            self._stir = trio.Event()
            now = time.monotonic()
            self._start(self.planner.overdue(now))
            if now >= next_tick:
                self.planner.tick(now)
                if self.next_files is not None:
                    await self.next_files.close_unread(now)
                self.figures.pace.tick(now, self.figures.bytes_read)
                if self.observer is not None:
                    self.observer.tick()
                next_tick = now + TICK_EVERY
            self.pump()
            if self._heap is not None:
                busy = bool(self.planner.pool.used)
                # Not on trio's thread: it waits for the locks of the heap, up to 0.2 s.
                await self._trimming.run("giving memory back", partial(self._heap.trim, busy=busy), abandon=False)
            await trio.sleep(WATCH_EVERY)

    def forget(self, file: OpenFile) -> None:
        """Drop a file's ranges and cancel what is under way for it."""
        attempts = [attempt for attempt in self.planner.attempts if attempt.range.file is file.plan]
        ranges = set(file.plan.ranges.values())
        self.planner.close(file.plan)
        self.cancel(attempts)
        self._files.pop(file.plan, None)
        for range_ in ranges:
            wake(range_)


class Figures:
    """What the reader counts for people."""

    def __init__(self) -> None:
        self.reads = 0
        self.bytes_read = 0
        self.waited = 0.0
        self.errors: dict[str, int] = {}
        self.corrupt: deque[str] = deque(maxlen=8)
        """Messages about blocks without an intact replica, each once, the latest last."""
        self.pace = Pace()


class Observer(Protocol):
    """Is told of every file that is opened, on trio's thread."""

    def opened(self, name: str, length: int) -> FileObserver | None:
        """Observes the reads of this file for events; None where there are none."""

    def tick(self) -> None:
        """A second has passed, or more."""


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
        """Whether it shows the version that the other does, and can be read."""
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
