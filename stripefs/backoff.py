"""Pauses that grow while something keeps failing, and log lines about it at a rate that people can read."""

from __future__ import annotations

import logging
import random
import time

__all__ = ["Backoff", "Seldom"]

LOG_EVERY = 60.0
"""Seconds between two lines of one kind."""

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds for which a disk that failed is left alone."""

FIRST_RETRY, LONGEST_RETRY = 0.1, 2.0
"""Seconds before a call to a service that is away is tried again."""

_JITTER = 0.25
"""Share of a pause that chance may take away, so that clients which failed together do not come back together."""


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
    """Pauses after failures, from `first` seconds on twice as long each time, `longest` at most. `now` in seconds.

    Those of a service that is away, FIRST_RETRY and LONGEST_RETRY, unless given.
    """

    def __init__(self, first: float | None = None, longest: float | None = None) -> None:
        self._first = self._pause = FIRST_RETRY if first is None else first
        self._longest = LONGEST_RETRY if longest is None else longest
        self._until = float("-inf")

    def paused(self, now: float) -> bool:
        """Whether the pause after the last failure lasts."""
        return now < self._until

    def failed(self, now: float) -> float:
        """Seconds of the pause that begins now."""
        pause = self._pause * (1 - _JITTER * random.random())  # noqa: S311  no secret
        self._until = now + pause
        self._pause = min(2 * self._pause, self._longest)
        return pause

    def worked(self) -> None:
        self._pause = self._first
