"""Reference counts of connections and write sessions, which are closed after minutes without a user.

Each call to the engine runs in `in_use()`. An object that the call reaches is held (`Shared.hold`) until the call has
ended, however long that takes; tasks that the call starts belong to it. Between calls an object also stays while
`Shared.busy` is true: files are open, or a version is being written. An object that is neither held nor busy for IDLE
seconds expires. Its owner then removes it from its table and closes it, and the next call makes another one.

Owners look every LOOK_EVERY seconds, so an object lives at most that much longer. Everything runs on trio's thread, and
the time is trio's clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import trio

__all__ = ["IDLE", "LOOK_EVERY", "Shared", "in_use"]

IDLE = 300.0
"""Seconds without a user after which an object expires: longer than most pauses between two files of one program."""

LOOK_EVERY = 60.0
"""Seconds between two looks for expired objects."""


class Shared:
    """An object that calls share. Subclasses say in `busy` what keeps it between calls."""

    def __init__(self) -> None:
        self._calls = 0
        self._needed_at = trio.current_time()

    @property
    def busy(self) -> bool:
        raise NotImplementedError

    def hold(self) -> None:
        """Keep this object until the current call ends. Raises LookupError outside of `in_use()`."""
        held = _held.get()
        if self not in held:
            held.add(self)
            self._calls += 1

    def release(self) -> None:
        """The call that held this object has ended."""
        self._calls -= 1
        self._needed_at = trio.current_time()

    def expired(self) -> bool:
        """True after IDLE seconds in which no look found the object held or busy."""
        now = trio.current_time()
        if self._calls or self.busy:
            self._needed_at = now
        return now - self._needed_at >= IDLE


_held: ContextVar[set[Shared]] = ContextVar("held")


@contextmanager
def in_use() -> Iterator[None]:
    """Run one call: what it holds is released at its end."""
    held: set[Shared] = set()
    token = _held.set(held)
    try:
        yield
    finally:
        _held.reset(token)
        for each in held:
            each.release()
