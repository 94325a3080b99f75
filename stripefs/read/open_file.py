"""One version of one file that the reader has open: its reads, their waits, its observer, and its block locator.

All of it runs on trio's thread. `BlockLocator` asks the store where the blocks of the file lie, as far as readers and
read-ahead go; a failure ahead of the readers only pauses read-ahead.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import trio

from stripefs.errors import ServiceDown, StaleVersion, StoreError
from stripefs.executor import Executor
from stripefs.format.blocks import CHUNK
from stripefs.read.attempts import Confirmations
from stripefs.read.planner import FilePlan, Planner, Range, RangeState
from stripefs.store.allocator import PAGE, address_of
from stripefs.store.base import Block, Buffer, Handle, Status, Store
from stripefs.units import shown

if TYPE_CHECKING:
    from stripefs.read.reader import Reader

__all__ = ["BlockLocator", "FileObserver", "OpenFile", "wake"]

log = logging.getLogger(__name__)

LOCATE_AHEAD = 2 << 30
"""Bytes of a file whose blocks are asked for at once at most: twice the largest default budget."""

LOCATE_FIRST = 256 << 20
"""And the first time; then as many as are known already. To say where a striped file lies its parts must be opened, of
which a reader of the header alone should not wait for more than the first row."""

LOCATE_PAUSE = 2.0
"""Seconds before blocks that could not be located are asked for again without a reader that waits for them."""


class BlockLocator:
    """Asks `handle` where the blocks of `plan` lie and tells the planner.

    A metadata service that is away is waited for as long as `executor` says.
    """

    def __init__(self, name: str, handle: Handle, plan: FilePlan, planner: Planner, executor: Executor) -> None:
        self.busy = False
        """True if blocks are being asked for that no reader waits for: set by who begins that."""
        self._name = name
        self._handle = handle
        self._plan = plan
        self._planner = planner
        self._executor = executor
        self._lock = trio.Lock()
        self._asked = 0

    async def locate(self, offset: int, length: int) -> Sequence[Block]:
        """The blocks that overlap [offset, offset + length). Waits for a metadata service that is away."""
        return await self._ask(self._handle.locate, offset, length)

    async def placed(self, offset: int, length: int) -> Sequence[Block]:
        """As `locate`, without local hosts."""
        return await self._ask(self._handle.placed, offset, length)

    async def _ask(self, look: Callable[[int, int], Sequence[Block]], offset: int, length: int) -> Sequence[Block]:
        return await self._executor.call(f"locating blocks of {self._name}", look, offset, length, lane="location")

    async def known(self, offset: int, end: int) -> None:
        """Return when all blocks that overlap [offset, end) are known. Raises what `Handle.locate` raises."""
        while True:
            missing = self._plan.blocks.missing(offset, end)
            if missing is None:
                return
            async with self._lock:
                if self._plan.blocks.missing(missing, missing + 1) is None:
                    continue
                ahead = min(LOCATE_AHEAD, max(LOCATE_FIRST, self._asked))
                length = min(ahead, self._plan.length - missing)
                self._asked += length
                self._planner.located(self._plan, await self.locate(missing, length))
                # Counting would not do: known blocks may come back in other pieces.
                if self._plan.blocks.missing(missing, missing + 1) is not None:
                    raise StoreError(f"the store does not say where byte {missing} of this file lies")

    async def look(self, offset: int, *, again: bool) -> None:
        """Learn the blocks from `offset` on for look-ahead; a failure shows when a reader gets there. again: learn
        where the block lies now, as replicas move while a file is open for days."""
        try:
            if again:
                self._planner.located(self._plan, await self.locate(offset, 1))
            else:
                await self.known(offset, offset + 1)
        except Exception as error:  # noqa: BLE001  # as in `fetch`: a client's bug must not end the reader of all files
            log.warning("locating blocks of %s: %s; look-ahead pauses", self._name, error)
            await trio.sleep(LOCATE_PAUSE)
        finally:
            self.busy = False


CLOSE = 5.0
"""Seconds for closing a handle, which holds nothing that a reader waits for."""

GRACE = 5.0
"""Seconds past io_timeout after which a read ends whatever the planner thinks."""

AT_ONCE = 1 << 20
"""Bytes that are copied at once while all other tasks wait, at most: as many as a request of the kernel has."""

FILLED_LEAST = 8 << 20
"""Bytes of a read below which read-ahead serves it better: a disk wants several requests under way. The planner is
asked for so many at once of what the disk fails to bring."""

FILLED_SMALL_SHARE = 4
FILLED_SMALL_MOST = 64 << 20
"""Smaller reads among larger ones go to the disk too, since read-ahead would fetch what the larger ones read: as long
as the blocks that they take are at most a quarter of the bytes of the larger ones, the last 256 MiB of which count."""

FILLED_MOST = 16 << 20
"""Bytes that a thread reads from a local disk into memory of a caller before that can leave, at most: some 20 ms."""

FILLED_WITHIN = 1.0
"""Seconds in which a disk must have said what it has; else it may hang, and the planner knows the ways around it."""

FILLERS = 4
"""Threads that do so for one read, at most."""


class FileObserver(Protocol):
    """Observes one open file, on trio's thread. A host is that of `Range.host`."""

    def took(self, host: str, size: int) -> None:
        """A read that was answered has `size` bytes that had come from this host."""

    def waits(self) -> None:
        """A read begins to wait."""

    def waited(self, begun: float, host: str) -> None:
        """A read waited since `begun`, by the monotonic clock, for bytes; for this host the longest."""

    def closed(self) -> None: ...


class PieceConsumer(Protocol):
    """Gets pieces of a read. It must copy the bytes that it keeps of all pieces but the last."""

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
        self.locator = BlockLocator(self.name, handle, self.plan, reader.planner, reader.executor)
        self.confirmations = Confirmations(
            self.name, handle, reader.executor, reader.start_task, reader.ended, reader.settings.io_timeout
        )
        self._reader = reader
        self._observer: FileObserver | None = None
        self._small_fills = 0
        """Bytes of blocks that reads of less than FILLED_LEAST may still take past the planner."""
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
        """As `read`, of len(buffer) bytes, copied once; the number of bytes read. Large buffers want several calls."""
        at = 0

        def take(part: memoryview, **_: bool) -> None:
            nonlocal at
            buffer[at : at + len(part)] = part
            at += len(part)

        await self._read(offset, len(buffer), take)
        return at

    async def fill(self, offset: int, buffer: memoryview) -> bool:
        """Fill `buffer`, which ends inside the file, from `offset` on with bytes on a local disk, all but its ends
        without a copy. False, and nothing read, where that cannot be.

        The planner only says whether the disk is avoided. A call that is cancelled waits for what the disk has begun to
        bring, as the memory is the caller's.
        """
        if not buffer or (address_of(buffer) - offset) % PAGE or not self._spared_from_plans(len(buffer)):
            return False
        host, executor = self.handle.fills, self._reader.executor
        if self._reader.planner.hosts.local_of((host,), time.monotonic()) is None:
            return False
        lane, look, what = executor.lane("disk"), executor.lane("presence"), f"reading {self.name} from the {host}"
        try:
            can = await look.run(what, self.handle.can_fill, offset, len(buffer), timeout=FILLED_WITHIN)
        except ServiceDown:
            return False
        if not can or self.plan.failed is not None or self.plan.closed:
            return False
        end = offset + len(buffer)
        step = min(FILLED_MOST, max(FILLED_LEAST // 2, len(buffer) // FILLERS // CHUNK * CHUNK))
        steps = iter(range(offset // CHUNK * CHUNK, end, step))
        left: list[tuple[int, memoryview]] = []

        async def some() -> None:
            for begin in steps:
                at = max(begin, offset)
                piece = buffer[at - offset : min(begin + step, end) - offset]
                try:
                    good = await lane.run(what, self.handle.fill, at, piece, drop=True)
                except StoreError:  # which the planner meets, or goes round
                    good = False
                if not good:
                    left.append((at, piece))
                    continue
                self._reader.figures.reads += 1
                self._reader.figures.bytes_read += len(piece)
                self._reader.figures.bytes_at_once += len(piece)
                if self._observer is not None:
                    self._observer.took(host, len(piece))

        async with trio.open_nursery() as nursery:
            for _ in range(FILLERS):
                nursery.start_soon(some)
        for at, piece in sorted(left):
            for begin in range(0, len(piece), FILLED_LEAST):
                await self.read_into(at + begin, piece[begin : begin + FILLED_LEAST])
        return True

    def _spared_from_plans(self, size: int) -> bool:
        """True for large reads and for smaller ones among them, for which the planner would fetch the large ones."""
        if size >= FILLED_LEAST:
            self._small_fills = min(FILLED_SMALL_MOST, self._small_fills + size // FILLED_SMALL_SHARE)
            return True
        spared = self._small_fills >= max(size, CHUNK)
        if spared:
            self._small_fills -= max(size, CHUNK)
        return spared

    async def _read(self, offset: int, size: int, take: PieceConsumer) -> None:
        """Hand the bytes to `take`, piece by piece in order. Raises what `read` raises."""
        end = min(offset + size, self.status.length)
        if end <= offset:
            return
        began = time.monotonic()
        part = self._at_once(offset, end) or self._present(offset, end, began)
        if part is not None:
            take(part, last=True)
        else:
            try:
                with trio.fail_after(self._reader.settings.io_timeout + GRACE):
                    await self._read_pieces(offset, end, take)
            except trio.TooSlowError:
                raise StoreError(
                    f"no bytes of {self.name} within --io-timeout",
                    hint="look at `stripefs status` for hosts that are avoided",
                ) from None
            self._reader.figures.waited += time.monotonic() - began
        self._reader.figures.reads += 1
        self._reader.figures.bytes_read += end - offset

    def _at_once(self, offset: int, end: int) -> memoryview | None:
        """The bytes where the store has them in memory and the planner, which would have fetched them, nothing of the
        file: as long as its reader never waits, nothing is to be planned."""
        if self.plan.ranges or end - offset > AT_ONCE or self.plan.failed is not None or self.plan.closed:
            return None
        data = self.handle.read_now(offset, end - offset)
        if data is None:
            return None
        self._reader.figures.bytes_at_once += len(data)
        if self._observer is not None:
            self._observer.took("", len(data))
        return memoryview(data)

    def _present(self, offset: int, end: int, now: float) -> memoryview | None:
        """The bytes where one range has all of them, as for most reads of a stream: without a wait or a time limit."""
        range_ = self.plan.range_at(offset)
        if range_ is None or range_.state is not RangeState.READY or range_.end < end:
            return None
        part = memoryview(range_.data)[offset - range_.offset : end - range_.offset]
        self._begin(offset, end, now)
        self._go_on(range_)
        if self._observer is not None:
            self._observer.took(range_.host, end - offset)
        return part

    def _begin(self, offset: int, end: int, now: float) -> None:
        """A read of [offset, end), whose blocks are known, begins."""
        self._reader.planner.read(self.plan, offset, end - offset, now)
        if self._next_files is not None and self._next_files.open_next(self):
            self._next_files = None

    def _go_on(self, range_: Range) -> None:
        """A read has what it wants of this range."""
        # Not before: new attempts may take the memory of a range that this read was the last to need.
        self._reader.pump()
        if (following := self.plan.ranges.get(range_.end)) is not None and following.awaits_confirmation:
            self.confirmations.hurry()  # so that the reader, who comes to it next, need not wait for the answer

    async def _read_pieces(self, offset: int, end: int, take: PieceConsumer) -> None:
        parts: list[tuple[str, int]] = []
        await self.locator.known(offset, end)
        self._check()
        self._begin(offset, end, time.monotonic())
        while offset < end:
            range_ = await self._ready(offset)
            stop = min(end, range_.end)
            part = memoryview(range_.data)[offset - range_.offset : stop - range_.offset]
            self._go_on(range_)
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
            if range_.state is RangeState.WANTED:
                self._reader.pump()
            state = range_.state if range_.state is RangeState.READY else await self._outcome(range_)
            if state is RangeState.FAILED and range_.error is not None:
                raise range_.error
            # A range may have lost its tail for want of memory: then the byte is asked for anew.
            if state is RangeState.READY and offset < range_.end:
                return range_

    async def _outcome(self, range_: Range) -> RangeState:
        """Wait until something happened to the range. Its data stays at least until the next await."""
        if range_.signal is None:
            range_.signal = trio.Event()
        range_.waiters += 1
        if range_.awaits_confirmation:
            self.confirmations.hurry()
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
        """The places of the blocks in the store that overlap [offset, offset + length), whatever is cached of them.

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
