"""Figures whose source may hang: the last known value is shown, and the source is asked on a thread of its own.

`status` and metrics are answered on trio's thread. A figure of a local disk (how full it is) must not be asked for
there: a disk that is dead answers never, and the whole worker would stop with it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from stripefs.executor import Lane

__all__ = ["Sampled"]

_T = TypeVar("_T")

PATIENCE = 0.2
"""Seconds for which the caller waits when it asks the source, once for as long as that hangs."""


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
        asked = self._under_way
        if asked is None:
            asked = self._under_way = self._lane.submit(self._look)
            patience = PATIENCE
        else:
            patience = 0.0
        try:
            self._known = asked.result(patience)
        except TimeoutError:
            if not asked.done():
                return self._known
            self._under_way = None
            raise
        except BaseException:
            self._under_way = None
            raise
        self._under_way = None
        return self._known
