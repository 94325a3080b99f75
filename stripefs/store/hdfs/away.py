"""Whether the NameNodes are away, without every thread waiting to find that out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from stripefs.errors import ServiceDown

__all__ = ["Away"]

_BETWEEN = 1.0  # seconds between two looks whether one is back


class Away:
    """`look` raises ServiceDown while no NameNode serves; once that was found, one thread a second calls it."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look
        self._looking = threading.Lock()
        self._since = 0.0  # of the last look that found none, on the monotonic clock; 0 while one serves

    def note(self) -> None:
        """A call found them away."""
        self._since = time.monotonic()

    def now(self) -> bool:
        """Whether they are, as far as is known."""
        if not self._since:
            return False
        if time.monotonic() - self._since > _BETWEEN and self._looking.acquire(blocking=False):
            try:
                self._look()
                self._since = 0.0
            except ServiceDown:
                self._since = time.monotonic()
            finally:
                self._looking.release()
        return bool(self._since)
