"""Changes of names wait for those who write: a file that was closed just now is locked for a moment longer."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from stripefs.backoff import Backoff
from stripefs.errors import Busy
from stripefs.executor import Executor

__all__ = ["until_free", "wait_for_writers"]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

_PASSES = 5.0
"""Seconds that locks get to go: that of a file that was closed just now goes after `close`."""

_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 0.2


async def wait_for_writers(calls: Executor, refused: str, look: Callable[[bytes], str], *paths: bytes) -> None:
    """Raises Busy where `look` goes on to name a writer at one of the paths. refused: what then is not done.

    look(path): who writes the file, or below the directory, on any node, "" for nobody; blocks.
    """

    def find() -> str:
        return next(filter(None, map(look, paths)), "")

    async def ensure_free() -> None:
        if who := await calls.call("look for locks", find):
            raise Busy(who)

    await until_free(refused, ensure_free)


async def until_free(refused: str, attempt: Callable[[], Awaitable[_T]]) -> _T:
    """`attempt()`, which raises Busy as long as somebody else writes: they may be about to be done."""
    deadline, backoff = trio.current_time() + _PASSES, Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
    while True:
        try:
            return await attempt()
        except Busy as error:
            if trio.current_time() >= deadline:
                _log.warning("%s: %s", refused, error)
                raise Busy(f"{refused}: {error.message}", hint=error.hint) from None
        await trio.sleep(backoff.failed(trio.current_time()))
