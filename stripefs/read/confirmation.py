"""Confirmation that bytes which came are of the version that is open: one question for all that came before it.

HDFS has to be asked after a read if the file is still the one that was opened. A question for each range is 40 a second
for a client that reads 320 MB/s, and 1,000 such clients are more than a NameNode answers. So ranges of read-ahead wait
for a question together, at most `TOGETHER` seconds. A reader who comes to one of them, or is about to, has the question
asked at once, but for one case: as long as more read-ahead is on its way than ranges wait for the question, the
DataNodes have enough to do, and the reader gets as many bytes a second when it waits too. So the first range of a file,
its end and scattered reads are confirmed at once, and so is a window that is full of ranges that have come.

All of it runs on trio's thread; the question blocks a thread of a lane.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import trio

from stripefs.executor import Executor
from stripefs.read.planner import Attempt, FilePlan, RangeState
from stripefs.store.base import Buffer, Handle

__all__ = ["TOGETHER", "Confirmations"]

log = logging.getLogger(__name__)

TOGETHER = 0.5
"""Seconds from one question to the next while read-ahead is on its way: 1,000 clients ask 2,000 times a second."""


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
        self._added = trio.Event()

    def add(self, attempt: Attempt, data: Buffer) -> None:
        """All bytes of the attempt are here."""
        self._landed.append((attempt, data))
        if attempt.range.demanded or attempt.range.waiters:
            self._urgent.set()
        self._added.set()
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
                    while _ahead(self._landed[0][0].range.file) > len(self._landed):
                        self._added = trio.Event()
                        await self._added.wait()
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


def _ahead(file: FilePlan) -> int:
    """The number of ranges of the file that no reader waits for and whose bytes are on their way."""
    fetched = (each for each in file.ranges.values() if each.state is RangeState.FETCHING and not each.demanded)
    return sum(not each.waiters and not any(attempt.landed_at for attempt in each.attempts) for each in fetched)
