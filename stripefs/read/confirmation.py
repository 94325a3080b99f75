"""Confirmation that bytes which came are of the version that is open: one question for all that came before it.

HDFS has to be asked after a read if the file is still the one that was opened. A question for each range is 40 a second
for a client that reads 320 MB/s, and 1,000 such clients are more than a NameNode answers. So ranges of read-ahead wait
for a question together, at most `TOGETHER` seconds. Their DataNodes read on meanwhile, and a reader who comes to one of
them, or is about to, has the question asked at once.

All of it runs on trio's thread; the question blocks a thread of a lane.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import trio

from stripefs.executor import Executor
from stripefs.read.planner import Attempt
from stripefs.store.base import Buffer, Handle

__all__ = ["TOGETHER", "Confirmations"]

log = logging.getLogger(__name__)

TOGETHER = 0.5
"""Seconds from one question to the next that nobody waits for: 1,000 clients ask 2,000 times a second."""


class Confirmations:
    """Those of one open file. ended(attempt, outcome) is called for each attempt: with its bytes, or the error.

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
        self._landed: list[tuple[Attempt, Buffer]] = []
        self._running = False
        self._asked = -math.inf
        self._urgent = trio.Event()

    def add(self, attempt: Attempt, data: Buffer) -> None:
        """All bytes of the attempt are here."""
        self._landed.append((attempt, data))
        if attempt.range.demanded or attempt.range.waiters:
            self._urgent.set()
        if not self._running:
            self._running = True
            self._start(self._what, self._run)

    def hurry(self) -> None:
        """A reader waits for one of them, or will soon."""
        if self._landed:
            self._urgent.set()

    async def _run(self) -> None:
        try:
            while self._landed:
                with trio.move_on_at(self._asked + TOGETHER):
                    await self._urgent.wait()
                self._urgent = trio.Event()
                landed, self._landed = self._landed, []
                self._asked = trio.current_time()
                error = await self._ask()
                for attempt, data in landed:
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
