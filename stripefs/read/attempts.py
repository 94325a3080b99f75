"""Attempts under way: the threads that run them, and the confirmation that what came is of the version that is open.

`FetchPool` runs one blocking `Handle.read` for each attempt on the threads of a lane. A client that hangs on a silent
host keeps its thread for as long as it likes: the lane has room for such threads beyond the reads that may be under
way.

**Confirmation.** HDFS has to be asked after a read if the file is still the one that was opened. A question for each
range is 40 a second for a client that reads 320 MB/s, and 1,000 such clients are more than a NameNode answers. So
ranges of read-ahead wait for a question together, at most `TOGETHER` seconds, and less as long as reading ahead is
new: a file of 256 MiB would be over before its reader got the second range. A reader who comes to one of them, or is
about to, has the question asked at once, but for one case: as long as more read-ahead is on its way than ranges wait
for the question, the DataNodes have enough to do, and the reader gets as many bytes a second when it waits too. So the
first range of a file, its end and scattered reads are confirmed at once, and so is a window that is full of ranges that
have come. All of that runs on trio's thread; the question blocks a thread of a lane.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

import trio

from stripefs.errors import Abandoned, StoreError
from stripefs.executor import Executor, Lane
from stripefs.read.planner import Attempt, FilePlan, RangeState
from stripefs.store.base import Buffer, Handle

__all__ = ["TOGETHER", "AttemptWatch", "Confirmations", "FetchPool"]

log = logging.getLogger(__name__)

SPARE_THREADS = 32
"""Threads beyond the limit of reads, for those that cancelled attempts still occupy."""

Outcome = Buffer | Exception

TOGETHER_FIRST, TOGETHER = 1 / 16, 0.5
"""Seconds from one question to the next while read-ahead is on its way: the first, doubled from each to the next, and
the longest. 1,000 clients ask 2,000 times a second, and three times more for each file that they begin to read."""


class AttemptWatch:
    """The `Watch` of one attempt. Written by the reading thread, read by the planner's; both only store words."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._close: Callable[[], None] | None = None

    @property
    def cancelled(self) -> bool:
        return self._attempt.cancelled

    def progress(self, received: int) -> None:
        if self._attempt.cancelled:
            raise Abandoned("another replica answered first")
        self._attempt.progress_at = time.monotonic()

    def unconfirmed(self) -> None:
        self._attempt.unconfirmed = True

    def served_by(self, host: str) -> None:
        self._attempt.served_by = host

    def on_cancel(self, close: Callable[[], None] | None) -> None:
        self._close = close
        if close is not None and self._attempt.cancelled:
            close()

    def cancel(self) -> None:
        """Unblock the read if its client can be unblocked. The attempt is already marked cancelled."""
        close = self._close
        if close is not None:
            close()


class FetchPool:
    """`done(attempt, outcome)` is called on trio's thread when an attempt has ended, in whatever way."""

    def __init__(self, threads: int, done: Callable[[Attempt, Outcome], None]) -> None:
        self._lane = Lane("data", threads + SPARE_THREADS, spare=0)
        self._done = done
        self._token = trio.lowlevel.current_trio_token()
        self._watches: dict[Attempt, AttemptWatch] = {}
        self._closed = False

    def start(self, attempt: Attempt, handle: Handle) -> None:
        watch = self._watches[attempt] = AttemptWatch(attempt)
        self._lane.submit(self._run, attempt, handle, watch)

    def cancel(self, attempt: Attempt) -> None:
        watch = self._watches.get(attempt)
        if watch is not None:
            watch.cancel()

    def _run(self, attempt: Attempt, handle: Handle, watch: AttemptWatch) -> None:
        range_ = attempt.range
        outcome: Outcome
        try:
            if attempt.cancelled:
                raise Abandoned("cancelled before it began")
            outcome = handle.read_unconfirmed(
                range_.offset, range_.length, attempt.ahead, host=attempt.host, watch=watch
            )
            if len(outcome) != range_.length:
                raise StoreError(f"the client answered {len(outcome)} bytes where {range_.length} were asked for")
        except Exception as error:  # noqa: BLE001  # the border: readers get all that a client raises as an error
            outcome = error
        except BaseException as error:  # noqa: BLE001  # a panic of a client written in Rust is no Exception
            outcome = StoreError(f"the client failed unexpectedly: {error!r}")
        try:
            self._token.run_sync_soon(self._finished, attempt, outcome)
        except trio.RunFinishedError:
            log.debug("a read ended after the mount did")

    def _finished(self, attempt: Attempt, outcome: Outcome) -> None:
        del self._watches[attempt]
        if self._closed:
            return
        try:
            self._done(attempt, outcome)
        except Exception:  # the border to trio's loop, which an exception from a callback would end
            log.exception("the end of a read could not be handled; please report this")

    def close(self) -> None:
        """Cancel what runs and let the threads go without waiting for them."""
        self._closed = True
        for attempt, watch in list(self._watches.items()):
            attempt.late = attempt.cancelled = True
            watch.cancel()
        self._lane.close()


class Confirmations:
    """The confirmations of one open file. ended(attempt, outcome) is called for each attempt: with its bytes, or the
    error.

    start: starts a task beside all others. timeout: of one question, in seconds.
    """

    def __init__(
        self,
        name: str,
        handle: Handle,
        executor: Executor,
        start: Callable[..., None],
        ended: Callable[[Attempt, Buffer | Exception], None],
        timeout: float,
    ) -> None:
        self._what = f"confirming the version of {name}"
        self._handle = handle
        self._executor = executor
        self._start = start
        self._ended = ended
        self._timeout = timeout
        self._received: list[tuple[Attempt, Buffer]] = []
        self._running = False
        self._asked = -math.inf
        self._together = 0.0
        self._urgent = trio.Event()
        self._added = trio.Event()

    def add(self, attempt: Attempt, data: Buffer) -> None:
        """All bytes of the attempt are here."""
        self._received.append((attempt, data))
        if attempt.range.demanded or attempt.range.waiters:
            self._urgent.set()
        self._added.set()
        if not self._running:
            self._running = True
            self._start(self._what, self._run)

    def hurry(self) -> None:
        """A reader waits for one of them, or will soon."""
        if self._received:
            self._urgent.set()

    async def _run(self) -> None:
        try:
            while self._received:
                with trio.move_on_at(self._asked + self._together) as wait:
                    await self._urgent.wait()
                    while _ahead(self._received[0][0].range.file) > len(self._received):
                        self._added = trio.Event()
                        await self._added.wait()
                if wait.cancelled_caught:
                    self._together = min(max(TOGETHER_FIRST, 2 * self._together), TOGETHER)
                self._urgent = trio.Event()
                received, self._received = self._received, []
                self._asked = trio.current_time()
                error = await self._ask()
                for attempt, data in received:
                    try:
                        self._ended(attempt, data if error is None else error)
                    except Exception:  # the border: the others have to end all the same
                        log.exception("the end of a read could not be handled; please report this")
        finally:
            self._running = False

    async def _ask(self) -> Exception | None:
        lane = self._executor.lane("confirmation")
        try:
            await lane.run(self._what, self._handle.confirm, timeout=self._timeout)
        except Exception as error:  # noqa: BLE001  # the border: readers get all that a client raises as an error
            return error
        return None


def _ahead(file: FilePlan) -> int:
    """The number of ranges of the file that no reader waits for and whose bytes are on their way."""
    fetched = (each for each in file.ranges.values() if each.state is RangeState.FETCHING and not each.demanded)
    return sum(not each.waiters and not each.awaits_confirmation for each in fetched)
