"""How much to have under way to a store when fetching ahead, so that the way is full and a reader need not wait long.

What is under way when a reader's own fetch begins delays it: on a way of `rate` bytes a second by what is in flight /
rate. Less than rate x delay (the time of one fetch on an idle way) in flight leaves the way idle. So the *window* is
rate times three delays, but at least 40 ms of it, below which the hops between threads would show.

The rate is what arrived in the last 0.2 s without a pause; as in BBR congestion control the greatest of the last two
seconds counts, since fetches that did not fill the way show less. The delay is the shortest of the last fetches that
had the way for themselves.

Pure arithmetic; times are seconds of any one clock.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

__all__ = ["Link", "Pace", "Transfer"]

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
        """Whether `size` more may begin."""
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
