"""Trouble that comes again and again: log lines at a rate that somebody can read, and pauses that grow."""

from __future__ import annotations

import logging
import time

__all__ = ["Backoff", "Seldom"]

LOG_EVERY = 60.0
"""Seconds between two lines of one kind."""

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds for which a disk that failed is left alone."""


class Seldom:
    """Warnings of one logger: the first of its kind at once, later ones with how many were left out between."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._last: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def __call__(self, kind: str, message: str, *arguments: object) -> None:
        now = time.monotonic()
        if now - self._last.get(kind, -LOG_EVERY) < LOG_EVERY:
            self._left_out[kind] = self._left_out.get(kind, 0) + 1
            return
        self._last[kind] = now
        others = self._left_out.pop(kind, 0)
        self._log.warning(message + (f" (and {others} times more before)" if others else ""), *arguments)


class Backoff:
    """Something that failed is left alone for a while, twice as long each time until it works. `now` in seconds."""

    def __init__(self) -> None:
        self._until = float("-inf")
        self._pause = FIRST_PAUSE

    def paused(self, now: float) -> bool:
        """Whether it is left alone now."""
        return now < self._until

    def failed(self, now: float) -> None:
        self._until = now + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def worked(self) -> None:
        self._pause = FIRST_PAUSE
