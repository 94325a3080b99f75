"""Failover between NameNodes: the first that serves is asked, and one that was found away is asked again now and then.

`Availability` spares the other threads of a process the time-out by which one thread found the NameNodes away.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from stripefs.errors import ServiceDown

__all__ = ["Availability", "Unanswered", "first_serving"]

_T = TypeVar("_T")


class Unanswered(ServiceDown):
    """A change was asked for, and whether it was made is not known."""


def first_serving(addresses: Sequence[str], start: int, ask: Callable[[str], _T]) -> tuple[int, _T]:
    """The index and the answer of the first NameNode that serves, looked for from `addresses[start]` on.

    `ask` raises ServiceDown for one that does not serve. Raises the only failure as it is, else ServiceDown with all of
    them; and what `ask` raises besides, Unanswered too.
    """
    failures: list[ServiceDown] = []
    for step in range(len(addresses)):
        index = (start + step) % len(addresses)
        try:
            return index, ask(addresses[index])
        except Unanswered:
            raise
        except ServiceDown as failure:
            failures.append(failure)
    if len(failures) == 1:
        raise failures[0]
    raise ServiceDown("; ".join(failure.message for failure in failures), hint=failures[-1].hint)


_BETWEEN = 1.0  # seconds between two looks whether one is back


class Availability:
    """`look` raises ServiceDown while no NameNode serves; once that was found, one thread a second calls it."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look
        self._looking = threading.Lock()
        self._since = 0.0  # of the last look that found none, on the monotonic clock; 0 while one serves

    def note(self) -> None:
        """A call found them away."""
        self._since = time.monotonic()

    def now(self) -> bool:
        """True if they are away, as far as is known."""
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
