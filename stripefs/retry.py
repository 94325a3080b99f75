"""Trying again while a store is away: after 0.1 s, 0.2 s, … 2 s."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from stripefs.errors import ServiceDown, Transient

__all__ = ["next_delay", "persist"]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

_FIRST_DELAY = 0.1
_LONGEST_DELAY = 2.0


def next_delay(delay: float = 0.0) -> float:
    """Seconds to wait before the next try, `delay` those before the last one, 0 if that was the first."""
    return min(max(_FIRST_DELAY, 2 * delay), _LONGEST_DELAY)


async def persist(what: str, attempt: Callable[[], Awaitable[_T]], timeout: float, on_retry: Callable[[], None]) -> _T:
    """`await attempt()`, again for as long as it raises Transient; `on_retry()` before each repetition.

    After `timeout` seconds the last error stands, and an attempt that has not come back is cancelled and becomes
    ServiceDown. `what` names it in messages.
    """
    deadline = trio.current_time() + timeout
    delay = next_delay()
    while True:
        with trio.move_on_at(deadline):
            try:
                return await attempt()
            except Transient as error:
                if trio.current_time() + delay >= deadline:
                    raise
                _log.info("%s failed, next try in %.1f s: %s", what, delay, error)
            on_retry()
            await trio.sleep(delay)
            delay = next_delay(delay)
            continue
        raise ServiceDown(
            f"{what}: no answer within {timeout:g} s",
            hint="see whether the store is up and reachable; --io-timeout sets how long to wait",
        )
