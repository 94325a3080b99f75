"""The reader: carries out the planner's decisions (`stripefs.read.planner`) and gives readers their bytes.

All state is touched on trio's thread only; between two awaits nothing else moves. Threads run the blocking reads
(`attempts`), and a watchdog looks for silent and slow attempts while any is under way.

`NextFiles` opens the next of numbered files before its reader does, so that read-ahead goes on into it.
`FileSeries` predicts that file, `Planner.announce` bounds the read-ahead in it. A file that was opened so serves its
reader when the store still has that version at the reader's own open.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import methodcaller
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import trio
from trio import TaskStatus

from stripefs.background import contain, supervise
from stripefs.errors import Abandoned, Corrupt, StoreError
from stripefs.executor import Executor, Lane
from stripefs.read.attempts import FetchPool, Outcome
from stripefs.read.open_file import BlockLocator, FileObserver, OpenFile, wake
from stripefs.read.planner import Attempt, Cursor, FilePlan, FileSeries, Planner
from stripefs.read.planner.hosts import Limits
from stripefs.settings import ReadSettings, default_budget
from stripefs.store.allocator import Heap
from stripefs.store.base import Identity, Kind, Store
from stripefs.units import Pace, shown

__all__ = ["NextFiles", "ReadObserver", "Reader"]

log = logging.getLogger(__name__)

KEPT = 10.0
"""Seconds for which a file waits for its reader, since that was last seen in the file before."""


class NextFiles:
    """Of one reader; on trio's thread."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._series: WeakKeyDictionary[Store, FileSeries] = WeakKeyDictionary()
        self._waiting: dict[OpenFile, Cursor] = {}
        """Files whose reader has not come, and its cursor in the file before."""

    def open_next(self, file: OpenFile) -> bool:
        """After a read of `file`: have the next one opened where that is known. True when there is no more to learn."""
        series = self._series.setdefault(file.store, FileSeries())
        halfway = file.plan.cursors.trust.read * 2 >= file.status.length
        if halfway:
            series.read(file.path)
        cursor = self._reader.planner.nearing_end(file.plan)
        if cursor is None:
            return False
        path = series.next(file.path)
        if path is None:
            return halfway
        series.read(file.path)  # as far as can be seen
        self._reader.start_task(f"opening {shown(path)} ahead", self._open, path, file, cursor)
        return True

    async def _open(self, path: bytes, before: OpenFile, cursor: Cursor) -> None:
        known = self._reader.files(before.store, path)
        if not known:
            try:
                opened = await self._reader.open_unobserved(before.store, path, None)
            except StoreError as error:  # it was the last one, as a rule; a reader that comes gets the error
                log.debug("opening %s ahead: %s", shown(path), error)
                self._series[before.store].missed(path)
                return
            known = [file for file in self._reader.files(before.store, path) if file is not opened]
            if known or opened.status.kind is not Kind.FILE:
                await opened.aclose()
            else:
                self._waiting[opened] = cursor
                known = [opened]
        file = known[-1]
        if not file.plan.cursors.announced:
            self._reader.planner.announce(file.plan, before.plan, cursor, time.monotonic())
            self._reader.pump()
            self.open_next(file)  # the window may go beyond this one too

    async def taken(self, opened: OpenFile) -> OpenFile:
        """The file that a reader has just opened, or the same version of it, if that was opened ahead."""
        for file in self._waiting:
            if file.same_as(opened):
                del self._waiting[file]
                await opened.aclose()
                return file
        return opened

    async def close_unread(self, now: float) -> None:
        """Look beyond those whose readers are on their way, and close those whose readers did not come."""
        for file, cursor in list(self._waiting.items()):
            self.open_next(file)
            if max(cursor.seen, file.since) < now - KEPT:
                self._series[file.store].missed(file.path)
                await self._close(file)

    async def close(self) -> None:
        for file in list(self._waiting):
            await self._close(file)

    async def _close(self, file: OpenFile) -> None:
        del self._waiting[file]
        await file.aclose()


WATCH_EVERY = 0.1
"""Seconds between looks at what is under way: a tenth of the time after which a host counts as silent."""

TICK_EVERY = 1.0


class Reader:
    """Reads files of one service through one memory budget. Start `run` before the first `open`.

    store: one of that service; others reached in the same way can do the same. heap: of a process that keeps freed
    buffers for this reader; it is trimmed while buffers come and go, and when the last is gone. observer: is told of
    files and waits. open_next: True if numbered files that are read in order are opened ahead.
    """

    def __init__(
        self,
        store: Store,
        settings: ReadSettings,
        heap: Heap | None = None,
        observer: ReadObserver | None = None,
        *,
        open_next: bool = True,
    ) -> None:
        self.store = store
        self.observer = observer
        self.settings = settings
        self.budget = settings.memory or default_budget()
        range_size = min(settings.range_size, self.budget // 8)
        # Memory of the client beside our own buffers: each thread's range, a quarter of the budget at most.
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
                local_hosts=store.local_hosts,
            ),
            store.health,
        )
        self._files: dict[FilePlan, OpenFile] = {}
        self.next_files = NextFiles(self) if open_next else None
        self.executor = Executor(settings.io_timeout)
        self._trimming = Lane("memory", 1)
        self._fetcher: FetchPool | None = None
        self._nursery: trio.Nursery | None = None
        self._started = trio.Event()
        self._heap = heap
        self.figures = ReadStats()

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """The watchdog; until cancelled."""
        self._fetcher = FetchPool(self.settings.threads, self._done)
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
        """Statistics for `status` and metrics: sizes in bytes, times in seconds, counts since the start."""
        now = time.monotonic()
        planner = self.planner
        return {
            "memory": {"budget": self.budget, "used": planner.pool.used, "peak": planner.pool.peak},
            "reads": self.figures.reads,
            "bytes_read": self.figures.bytes_read,
            "bytes_fetched": planner.bytes_fetched + self.figures.bytes_at_once,
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

    def start_task(self, what: str, work: Callable[..., Awaitable[None]], *args: Any) -> None:
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
            self.start_task(f"locating blocks of {self._files[plan].name}", self._look, locator, offset, again)

    async def _look(self, locator: BlockLocator, offset: int, again: bool) -> None:
        await locator.look(offset, again=again)
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
        self._started.set()

    def _done(self, attempt: Attempt, outcome: Outcome) -> None:
        file = self._files.get(attempt.range.file)
        if isinstance(outcome, Exception) or not attempt.unconfirmed or attempt.cancelled or file is None:
            self.ended(attempt, outcome)
            return
        self.planner.received(attempt, time.monotonic())
        file.confirmations.add(attempt, outcome)
        self.pump()

    def ended(self, attempt: Attempt, outcome: Outcome) -> None:
        """The attempt has failed, or its bytes are here and are the version's."""
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
        """Log and count the failure of an attempt. Unexpected exceptions become an error that is not retried."""
        if attempt.cancelled:
            return Abandoned("cancelled")
        self.figures.errors[type(error).__name__] += 1
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
                    await self._started.wait()
            self._started = trio.Event()
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
                trim = partial(self._heap.trim, busy=busy, room=self.planner.pool.free)
                await self._trimming.run("giving memory back", trim, abandon=False)
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


@dataclass(slots=True)
class ReadStats:
    """Counters of the reader for its status. bytes_at_once: those of bytes_read in which the planner had no part: the
    store had them in memory, or they went from a local disk to the reader's memory. corrupt: messages about blocks
    without an intact replica, each once, the latest last.
    """

    reads: int = 0
    bytes_read: int = 0
    bytes_at_once: int = 0
    waited: float = 0.0
    errors: Counter[str] = field(default_factory=Counter)
    corrupt: deque[str] = field(default_factory=lambda: deque(maxlen=8))
    pace: Pace = field(default_factory=Pace)


class ReadObserver(Protocol):
    """Called with every file that is opened, on trio's thread."""

    def opened(self, name: str, length: int) -> FileObserver | None:
        """Observes the reads of this file for events; None where there are none."""

    def tick(self) -> None:
        """A second has passed, or more."""
