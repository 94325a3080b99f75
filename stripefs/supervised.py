"""Background tasks that end nothing but themselves.

An exception that leaves a task of trio's cancels its siblings, and so would end the worker of a mount with all files
that are open in it. Every task that works for one object or runs beside the others is started through this module. It
logs any error and runs the task again after a pause that grows, or marks the one object that the task worked for.

Cancellation, KeyboardInterrupt and SystemExit pass. All other exceptions do not, also those that are no `Exception`:
clients written in Rust panic that way.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVarTuple

import trio

from stripefs.errors import StripefsError
from stripefs.retry import FIRST_PAUSE, LONGEST_PAUSE, Backoff

__all__ = ["contain", "supervise"]

_log = logging.getLogger(__name__)
_Args = TypeVarTuple("_Args")

_PASSING = (trio.Cancelled, KeyboardInterrupt, SystemExit, GeneratorExit)


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
