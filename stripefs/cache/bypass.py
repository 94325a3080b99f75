"""Bypass policy: the cache is not read while its disk is slower than the store. Pure.

Rates are bytes by the time in which anything was under way, however many reads that were: a loader needs the rate of
all its reads together. Times are in seconds of any clock that does not jump, rates in bytes a second.
"""

from __future__ import annotations

__all__ = ["BYPASS", "BusyRate", "BypassPolicy"]

LEAST_BUSY = 0.5
"""Seconds of reading after which a rate means something: 5 ms a seek no longer count then, nor does what others write
for a moment."""

LEAST_BYTES = 8 << 20
"""And bytes: a few small reads say how long a seek takes, not how fast the disk is."""

LONG_BUSY = 2.0
"""Seconds after which it means something however few bytes came: longer than good disks falter."""

FORGETS = 8.0
"""Seconds of being busy after which what was before counts half: in less, a disk at nine tenths of the store's rate
would not cost what is `LOST`."""

SLOWER = 0.9
"""Share of the store's rate: a disk that is nearly as fast spares the store and the network."""

LOST = 0.8
"""Seconds that a disk may cost, against the store, before it is left alone: a tenth of the 8 s in which 2 GiB come from
eight hosts of 40 MB/s. To leave a good disk alone costs far more: where a program keeps the processors from those who
read, one of 800 MB/s came below the store's 250 for a while."""

LOST_FRESH = 4.0
"""The same while what is read is being written, half of what can be lost: where four processes read 2 GiB as one after
the other fetches it, each gets 170 MB/s of such a disk, and one alone 240 from the store. Were it left alone, each of
them would fetch all of it."""

FRESH = 5.0
"""Seconds after which nobody writes any more."""

BYPASS = 60.0
"""Seconds for which a disk that was too slow is left alone; then it may show that it has become faster."""


class BusyRate:
    """A rate over the time in which something was under way."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.bytes = 0
        self._under_way = 0
        self._since = 0.0

    def began(self, now: float) -> None:
        if not self._under_way:
            self._since = now
        self._under_way += 1

    def ended(self, now: float, count: int) -> None:
        """One read is over that brought `count` bytes."""
        self._under_way -= 1
        self.seconds += now - self._since
        self._since = now
        self.bytes += count
        if self.seconds > FORGETS:
            self.seconds /= 2
            self.bytes //= 2

    def look(self, now: float) -> None:
        """Count what is under way up to now: a disk that hangs ends no read."""
        if self._under_way:
            self.seconds += now - self._since
            self._since = now

    def forget(self) -> None:
        self.seconds, self.bytes = 0.0, 0

    @property
    def rate(self) -> float | None:
        """None as long as too little was read to tell."""
        if self.seconds < LEAST_BUSY or (self.bytes < LEAST_BYTES and self.seconds < LONG_BUSY):
            return None
        return self.bytes / self.seconds


class BypassPolicy:
    """Compares the disk with the store."""

    def __init__(self) -> None:
        self.disk = BusyRate()
        self.store = BusyRate()
        self._until = 0.0
        self._fresh_until = -FRESH

    def note_fresh(self, now: float) -> None:
        """The blocks that are read were written just now."""
        self._fresh_until = now + FRESH

    def bypass(self, now: float, remembered: float = 0.0) -> bool:
        """True if the disk is to be avoided. remembered: the rate at which the file came from the store when it did."""
        if now < self._until:
            return True
        self.disk.look(now)
        disk, store = self.disk.rate, self.store.rate or remembered
        if disk is None or disk >= SLOWER * store:
            return False
        if self.disk.seconds - self.disk.bytes / store < (LOST_FRESH if now < self._fresh_until else LOST):
            return False
        self.disk.forget()
        self._until = now + BYPASS
        return True
