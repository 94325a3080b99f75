"""Fetches blocks before anybody asks for them, in a given order, giving way to those who do.

Ranges of neighbours, several at once. A range begins only when no reader's own fetch is under way, when the way to the
store has room, when the disk has kept up with what came before, and when the rate allows it. A block that a reader
wants is fetched for it at once, or waited for where it is under way already; when its turn comes here it is skipped.
Blocks are fetched ahead to be kept: when the disk has no room left but that of blocks in use, or does not work, this
ends early rather than drive out what was needed more.

Blocks are handed out in runs that one read of a pack fetches. A run begins with the block whose turn it is, and takes
what lies behind it in the pack, as long as that is among the next `LOOK` blocks: processes that start side by side
touch their files in turns, so neighbours are often a few places apart in a recorded order.

Fetches that are under way when a reader's own begins delay it: on a link of `rate` bytes a second by what is in flight
/ rate. Less than rate x delay (the time of one fetch on an idle link) in flight leaves the link idle. So the *window*
is rate times three delays, but at least 40 ms of it, below which the hops between threads would show. The rate is what
arrived in the last 0.2 s without a pause; as in BBR congestion control the greatest of the last two seconds counts,
since fetches that did not fill the link show less. The delay is the shortest of the last fetches that had the link for
themselves. Times are seconds of any one clock.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from imagefs.format.index import BLOCK, NOWHERE, BlockLocation, Index
from stripefs.errors import Abandoned

if TYPE_CHECKING:
    from imagefs.blocks.device import BlockDevice
    from imagefs.blocks.fetcher import BlockFetch
    from imagefs.blocks.store import BlockStore

__all__ = ["FetchOrder", "FetchReport", "Link", "Pace", "Run", "Transfer", "fetch_ahead", "following"]

LOOK = 64
AT_ONCE = 512
"""Blocks looked at in one call, about a millisecond: most may be here already."""

Run = list[tuple[int, BlockLocation]]
"""Numbers and places of blocks, whose places are neighbours in one pack, or the same."""


def following(count: int, last_read: Callable[[], int], likely: deque[int]) -> Iterator[int]:
    """Every block of a device of `count` once: the `likely` ones, which may come at any time and are taken from there,
    then in an order that follows its readers: those behind the block that was read last come first. A device has the
    files of a directory side by side, so these are the rest of the file and its neighbours. last_read: -1 before the
    first read."""
    left = bytearray(b"\1") * count
    read, cursor = -1, 0
    while True:
        while likely:
            if (block := likely.popleft()) < count and left[block]:
                left[block] = 0
                yield block
        if (latest := last_read()) != read:
            read, cursor = latest, latest + 1
        block = left.find(1, cursor)
        if block < 0:
            block = left.find(1)
        if block < 0:
            return
        left[block] = 0
        cursor = block + 1
        yield block


class FetchOrder:
    """`blocks` of `index` in this order. Numbers outside the index are left out."""

    def __init__(self, blocks: Iterable[int], index: Index) -> None:
        self._blocks: Iterator[int] | None = iter(blocks)
        self._index = index
        self._next: OrderedDict[tuple[int, int], Run] = OrderedDict()
        self.skipped = 0
        """Blocks that were not lacking when it was their turn."""

    @property
    def ended(self) -> bool:
        """Tells whether nothing is left."""
        return self._blocks is None and not self._next

    def take(self, size: int, lacks: Callable[[int, BlockLocation], bool]) -> Run:
        """The next run, of at most `size` stored bytes or one block; of blocks that `lacks` holds for.

        Empty when nothing is left, and when so many were not lacking that the caller should let others work first.
        """
        self._look_ahead(lacks)
        while self._next:
            run: Run = []
            stored = 0
            key = next(iter(self._next))
            while key in self._next:
                place = self._next[key][0][1]
                if run and stored + place.stored > size:
                    break
                wanted = [one for one in self._next.pop(key) if self._wants(lacks, *one)]
                if not wanted:
                    break
                run += wanted
                stored += place.stored
                key = place.pack, place.offset + place.stored
            if run:
                return run
        return []

    def _look_ahead(self, lacks: Callable[[int, BlockLocation], bool]) -> None:
        for _ in range(AT_ONCE):
            if self._blocks is None or len(self._next) >= LOOK:
                return
            block = next(self._blocks, None)
            if block is None:
                self._blocks = None
            elif 0 <= block < self._index.blocks:
                place = self._index.place(block)
                if place.pack != NOWHERE and self._wants(lacks, block, place):
                    run = self._next.setdefault((place.pack, place.offset), [])
                    if all(block != other for other, _ in run):
                        run.append((block, place))

    def _wants(self, lacks: Callable[[int, BlockLocation], bool], block: int, place: BlockLocation) -> bool:
        if lacks(block, place):
            return True
        self.skipped += 1
        return False


FIRST_WINDOW = 1 << 20
"""Bytes in flight before anything is known: 50 ms of 20 MB/s."""

LEAST_WINDOW = 512 << 10
"""Bytes: eight blocks that compress by half."""

DELAYS = 3
LEAST_TIME, MOST_TIME = 0.04, 1.0
SPAN = 0.2
RATE_SECONDS = 2.0
DELAY_SAMPLES = 16
BURST = 0.1
"""Seconds of its rate that a `Pace` lets through at once."""


@dataclass(slots=True)
class Transfer:
    """A fetch under way: its bytes, and when it began."""

    size: int
    begun: float
    ended: bool = False


class Link:
    """The way to one store. `most` bytes bound the window."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.in_flight = 0
        self.arrived = 0
        self._history: deque[tuple[float, int]] = deque()  # (when, all that had arrived), the last `SPAN`
        self._rates: deque[tuple[float, float]] = deque()  # (when, rate), rates falling
        self._delays: deque[float] = deque(maxlen=DELAY_SAMPLES)
        self._alone: Transfer | None = None

    def begin(self, size: int, now: float) -> Transfer:
        """`size` bytes are being fetched from now on."""
        transfer = Transfer(size, now)
        self._alone = None if self.in_flight else transfer
        if not self.in_flight:
            self._history.clear()
            self._history.append((now, self.arrived))
        self.in_flight += size
        return transfer

    def end(self, transfer: Transfer, now: float, *, arrived: bool) -> None:
        """They have arrived, or will not. A second call does nothing."""
        if transfer.ended:
            return
        transfer.ended = True
        self.in_flight -= transfer.size
        alone, self._alone = self._alone is transfer, None
        if not arrived:
            return
        self.arrived += transfer.size
        if alone:
            self._delays.append(now - transfer.begun)
        self._history.append((now, self.arrived))
        while len(self._history) > 2 and self._history[1][0] <= now - SPAN:
            self._history.popleft()
        since, before = self._history[0]
        rate = (self.arrived - before) / max(now - since, 1e-6)
        while self._rates and self._rates[-1][1] <= rate:
            self._rates.pop()
        self._rates.append((now, rate))
        while self._rates[0][0] < now - RATE_SECONDS:
            self._rates.popleft()

    @property
    def rate(self) -> float:
        """Bytes a second, 0 before anything arrived."""
        return self._rates[0][1] if self._rates else 0.0

    @property
    def window(self) -> int:
        """Bytes that may be in flight together."""
        if not self._rates:
            return min(self.most, FIRST_WINDOW)
        delay = min(self._delays, default=0.0)
        window = int(self.rate * min(MOST_TIME, max(LEAST_TIME, DELAYS * delay)))
        return min(self.most, max(LEAST_WINDOW, window))

    def has_room(self, size: int) -> bool:
        """Tells whether `size` more may begin."""
        return not self.in_flight or self.in_flight + size <= self.window


class Pace:
    """Lets `rate` bytes a second through, 0 for any number, on the average and but for `BURST` seconds of it."""

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._paid_until = now

    def delay(self, now: float) -> float:
        """Seconds until something may begin."""
        return max(0.0, self._paid_until - now) if self._rate else 0.0

    def spend(self, size: int, now: float) -> None:
        """`size` bytes begin."""
        if self._rate:
            self._paid_until = max(self._paid_until, now - BURST) + size / self._rate


LARGE = 1 << 20
"""Stored bytes from which on a range's size does not matter: a request takes 1.3 ms of a processor, a MiB 4."""

FEW = 2
"""Ranges that keep the way full where larger ones are worth more than further ones."""


@dataclass(slots=True)
class FetchReport:
    """The result of a prefetch.

    blocks, bytes, stored: those that came from the store, their bytes, and the bytes that travelled. copied: blocks
    found elsewhere on this machine. skipped: blocks that were here already. failed: blocks that could not be had. full:
    whether it ended early because the disk took no more.
    """

    blocks: int = 0
    bytes: int = 0
    stored: int = 0
    copied: int = 0
    skipped: int = 0
    failed: int = 0
    full: bool = False
    seconds: float = 0.0


async def fetch_ahead(
    store: BlockStore, target: BlockDevice, blocks: Iterable[int], at_once: int, rate: float
) -> FetchReport:
    """Fetch `blocks` in this order, `at_once` ranges under way, `rate` stored bytes a second, 0 for any.

    When cancelled, what is under way still arrives. Raises Abandoned when nothing can be fetched any more.
    """
    report = FetchReport()
    order = FetchOrder(blocks, target.index)
    begun = trio.current_time()
    pace = Pace(rate, begun)
    most = int(rate * BURST) if rate else 1 << 62
    slots = trio.Semaphore(at_once)

    async def arrive(fetches: Sequence[tuple[int, BlockFetch[BlockDevice]]]) -> None:
        for _, fetch in fetches:
            await fetch.finished.wait()
            if fetch.data is None:
                report.failed += 1
            elif fetch.copied:
                report.copied += 1
            else:
                report.blocks += 1
                report.bytes += len(fetch.data)
                report.stored += fetch.place.stored
        slots.release()

    async with trio.open_nursery() as nursery:
        while True:
            await slots.acquire()
            size = max(BLOCK, min(most, max(_size(target.upstream.link.window, at_once), target.upstream.least)))
            if not await _turn(store, target, pace, size):
                break
            run = order.take(size, target.lacks)
            if run and not await target.has_room(sum(place.length for _, place in run)):
                report.full = True
                break
            if run:
                pace.spend(sum(place.stored for _, place in run), trio.current_time())
                nursery.start_soon(arrive, target.begin(run))
            elif order.ended:
                break
            else:
                slots.release()
                await trio.lowlevel.checkpoint()
    if store.fetcher.nursery is None:
        raise Abandoned("the block store is not running")
    report.skipped = order.skipped
    report.seconds = trio.current_time() - begun
    return report


def _size(window: int, at_once: int) -> int:
    """Stored bytes of a range: as many ranges as may be under way fill the window, unless that makes them small."""
    return max(window // at_once, min(LARGE, window // FEW))


async def _turn(store: BlockStore, target: BlockDevice, pace: Pace, size: int) -> bool:
    """Wait until a range of `size` stored bytes may begin; False when none will any more."""
    while store.fetcher.nursery is not None:
        delay = pace.delay(trio.current_time())
        if delay:
            await trio.sleep(delay)
        elif target.upstream.demand or store.writeback.backlogged or not target.upstream.link.has_room(size):
            await store.changed.park()
        else:
            return True
    return False
