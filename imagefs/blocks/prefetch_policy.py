"""Prefetch policy: in which order blocks are fetched ahead, and how many bytes are under way to a store. Pure.

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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from imagefs.format.index import NOWHERE, BlockLocation, Index

__all__ = ["FetchOrder", "Link", "Pace", "Run", "Transfer", "following"]

LOOK = 64
AT_ONCE = 512
"""Blocks looked at in one call, about a millisecond: most may be here already."""

Run = list[tuple[int, BlockLocation]]
"""Numbers and places of blocks, whose places are neighbours in one pack, or the same."""


def following(count: int, last_read: Callable[[], int]) -> Iterator[int]:
    """Every block of a device of `count` once, in an order that follows its readers: those behind the block that was
    read last come first. A device has the files of a directory side by side, so these are the rest of the file and its
    neighbours. last_read: -1 before the first read."""
    left = bytearray(b"\1") * count
    read, cursor = -1, 0
    while True:
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
