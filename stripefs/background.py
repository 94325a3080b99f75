"""Work in the background that harms nothing but itself: tasks that may fail, and figures whose source may hang.

**Tasks.** An exception that leaves a task of trio's cancels its siblings, and so would end the worker of a mount with
all files that are open in it. Every task that works for one object or runs beside the others is started through
`supervise` or `contain`. They log any error and run the task again after a pause that grows, or mark the one object
that the task worked for. Cancellation, KeyboardInterrupt and SystemExit pass. All other exceptions do not, also those
that are no `Exception`: clients written in Rust panic that way.

**Figures.** `status` and metrics are answered on trio's thread. A figure of a local disk (how full it is) must not be
asked for there: a disk that is dead answers never, and the whole worker would stop with it. `Sampled` asks the source
on a thread of its own, and shows the last known value while it hangs.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Generic, TypeVar, TypeVarTuple

import trio

from stripefs.errors import StripefsError
from stripefs.executor import Lane
from stripefs.retry import FIRST_PAUSE, LONGEST_PAUSE, Backoff

__all__ = ["Sampled", "contain", "supervise"]

_log = logging.getLogger(__name__)
_Args = TypeVarTuple("_Args")

_PASSING = (trio.Cancelled, KeyboardInterrupt, SystemExit, GeneratorExit)

_T = TypeVar("_T")

PATIENCE = 0.2
"""Seconds for which the caller waits when it asks the source, once for as long as that hangs."""


async def supervise(what: str, work: Callable[[*_Args], Awaitable[None]], *args: *_Args) -> None:
    """`await work(*args)`, again after each error, with pauses of 1 s to 60 s, until it returns or is cancelled.

    what: the task, for the log.
    """
    backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
    while True:
        began = trio.current_time()
        failures: list[BaseException] = []
        await contain(what, work, *args, failed=failures.append)
        if not failures:
            return
        if trio.current_time() - began > LONGEST_PAUSE:
            backoff.worked()
        await trio.sleep(backoff.failed(trio.current_time()))


async def contain(
    what: str,
    work: Callable[[*_Args], Awaitable[None]],
    *args: *_Args,
    failed: Callable[[BaseException], object] | None = None,
) -> None:
    """`await work(*args)`, once; an error is logged and given to `failed`, which marks the object concerned."""
    try:
        await work(*args)
    except BaseException as error:
        failure = error
        if isinstance(error, BaseExceptionGroup):
            passing, rest = error.split(_PASSING)
            if passing is not None:
                if rest is not None:
                    _tell(what, rest)
                raise passing from None
            failure = rest or error
        elif isinstance(error, _PASSING):
            raise
        _tell(what, failure)
        if failed is not None:
            failed(failure)


def _tell(what: str, error: BaseException) -> None:
    if isinstance(error, StripefsError):
        _log.warning("%s: %s", what, error)
    else:
        _log.error("%s failed unexpectedly; please report this", what, exc_info=error)


class Sampled(Generic[_T]):
    """`look` is called on a thread, one call at a time; `unknown` stands before its first answer.

    One thread at a time may use this.
    """

    def __init__(self, name: str, look: Callable[[], _T], unknown: _T) -> None:
        self._look = look
        self._lane = Lane(name, 1, spare=0)
        self._under_way: Future[_T] | None = None
        self._known = unknown

    def value(self) -> _T:
        """The value now, or the last known one while the source hangs. Raises what `look` raises."""
        asked, patience = self._under_way, 0.0
        if asked is None:
            asked, patience = self._lane.submit(self._look), PATIENCE
        self._under_way = None
        try:
            self._known = asked.result(patience)
        except TimeoutError:
            if asked.done():  # the look has timed out itself, or has ended just now
                self._known = asked.result()
            else:
                self._under_way = asked
        return self._known
