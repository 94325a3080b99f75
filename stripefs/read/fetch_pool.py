"""Runs attempts: one blocking `Handle.read` each, on the threads of a lane.

A client that hangs on a silent host keeps its thread for as long as it likes: the lane has room for such threads beyond
the reads that may be under way.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import trio

from stripefs.errors import Abandoned, StoreError
from stripefs.executor import Lane
from stripefs.read.planner import Attempt
from stripefs.store.base import Buffer, Handle

__all__ = ["AttemptWatch", "FetchPool"]

log = logging.getLogger(__name__)

SPARE_THREADS = 32
"""Threads beyond the limit of reads, for those that cancelled attempts still occupy."""

Outcome = Buffer | Exception


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
        self._attempt.received = received
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
