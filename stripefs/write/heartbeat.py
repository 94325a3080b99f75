"""One heartbeat a mount renews the locks of all files that are being written there.

Every third of a lease one lock reads the store's clock, and all others take its reading. Their renewals run at once, on
the threads of one lane. For n files a beat makes 2n + 4 calls to the store: each lock's time is set and the lock looked
at, and the first one is compared and its clock read before, by a file that is put, looked at and removed. When each
lock read the clock by itself, n files took 6n calls.

Why the locks stay one a file, each with a time of its own: programs of every version, `gc` and `recover` among them,
see in a listing whether a lock lives. A lock that points to one lease of its mount would look dead, after a minute, to
those that know only locks with times of their own, and they would take a living writer's file. A lock dated far into
the future would outlive its writer for them.

Failure: a reading that fails, or takes longer than a sixth of the lease, is replaced by the last one that worked and
the time that has passed since, and another lock reads at the next beat. A renewal that hangs is given up after a third
of the lease and holds up neither other renewals nor the next beat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import trio

from stripefs.supervised import contain
from stripefs.write.clock import Reading

__all__ = ["Heartbeat"]


class _Writer(Protocol):
    """A file that is being written."""

    @property
    def path(self) -> bytes: ...

    async def renew(self, reading: Reading | None, timeout: float) -> Reading | None:
        """Renew its locks by a reading of the store's clock; None reads it. Answers the one that was used."""


class Heartbeat:
    """One a mount, on trio's thread. writers: all that are open now. seconds: of the lease."""

    def __init__(self, writers: Callable[[], Iterable[_Writer]], seconds: float) -> None:
        self._writers = writers
        self._seconds = seconds
        self._beats = 0
        self._renewing: set[_Writer] = set()
        self._reading: Reading | None = None

    async def run(self, before: Callable[[], object]) -> None:
        """Beat until cancelled. before(): called with each beat, first of all, while there are writers."""
        async with trio.open_nursery() as nursery:
            while True:
                await trio.sleep(self._seconds / 3)
                if any(True for _ in self._writers()):
                    before()
                    nursery.start_soon(contain, "renewing locks", self.beat)

    async def beat(self) -> None:
        """Renew all locks once, but for those that the last beat is still at."""
        writers = [writer for writer in self._writers() if writer not in self._renewing]
        if not writers:
            return
        self._beats += 1
        first = writers.pop(self._beats % len(writers))
        self._renewing.update(writers)  # they have their turn in this beat
        try:
            await self._renew(first, None, self._seconds / 6)
            async with trio.open_nursery() as nursery:
                for writer in writers:
                    nursery.start_soon(self._renew, writer, self._reading, self._seconds / 3)
        finally:
            self._renewing.difference_update(writers)

    async def _renew(self, writer: _Writer, reading: Reading | None, timeout: float) -> None:
        """One that fails concerns its writer alone."""

        async def renew() -> None:
            self._reading = await writer.renew(reading, timeout) or self._reading

        self._renewing.add(writer)
        try:
            await contain(f"renewing the lock of {writer.path!r}", renew)
        finally:
            self._renewing.discard(writer)
