"""Calls to the store for metadata: in threads of their own, tried again while the store is away, one at a time per key.

A call that raises Transient is repeated after 0.1 s, 0.2 s, … 2 s until `timeout` seconds have passed; then the last
error stands. A call that does not come back within that time is abandoned with its thread and becomes ServiceDown.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar, TypeVarTuple

import trio

from stripefs.errors import Abandoned, ServiceDown, Transient

__all__ = ["Calls"]

_log = logging.getLogger(__name__)

_T = TypeVar("_T")
_Args = TypeVarTuple("_Args")

THREADS = 32
"""Metadata calls under way at once. A NameNode answers one in 0.3 ms, so this bounds threads, not speed."""

_FIRST_DELAY = 0.1
_LONGEST_DELAY = 2.0


class Calls:
    """Runs blocking or asynchronous store calls for one tree. `timeout` in seconds."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.retries = 0
        self._limiter = trio.CapacityLimiter(THREADS)
        self._flights: dict[object, _Flight[Any]] = {}

    @property
    def busy(self) -> int:
        """Threads that a metadata call holds now."""
        return self._limiter.borrowed_tokens

    async def thread(self, what: str, function: Callable[[*_Args], _T], *args: *_Args) -> _T:
        """`function(*args)` in a thread, tried again as the module says; `what` names it in messages."""

        async def attempt() -> _T:
            return await trio.to_thread.run_sync(function, *args, abandon_on_cancel=True, limiter=self._limiter)

        return await self.persist(what, attempt)

    async def persist(self, what: str, attempt: Callable[[], Awaitable[_T]]) -> _T:
        """`await attempt()`, tried again as the module says."""
        deadline = trio.current_time() + self.timeout
        delay = _FIRST_DELAY
        while True:
            with trio.move_on_at(deadline):
                try:
                    return await attempt()
                except Transient as error:
                    if trio.current_time() + delay >= deadline:
                        raise
                    self.retries += 1
                    _log.info("%s failed, next try in %.1f s: %s", what, delay, error)
                await trio.sleep(delay)
                delay = min(2 * delay, _LONGEST_DELAY)
                continue
            raise ServiceDown(
                f"{what}: no answer within {self.timeout:g} s",
                hint="see whether the store is up and reachable; --io-timeout sets how long to wait",
            )

    async def shared(self, key: object, call: Callable[[], Awaitable[_T]]) -> _T:
        """`await call()`, or the result of the call under way for an equal `key`."""
        under_way: _Flight[_T] | None = self._flights.get(key)
        if under_way is not None:
            await under_way.landed.wait()
            if under_way.value:
                return under_way.value[0]
            raise under_way.error
        flight: _Flight[_T] = _Flight()
        self._flights[key] = flight
        try:
            flight.value = [await call()]
        except Exception as error:
            flight.error = error
            raise
        finally:
            if self._flights.get(key) is flight:
                del self._flights[key]
            flight.landed.set()
        return flight.value[0]

    def outdate(self, key: object) -> None:
        """Let nobody join the call under way for `key`: what it asked has changed since."""
        self._flights.pop(key, None)


class _Flight(Generic[_T]):
    def __init__(self) -> None:
        self.landed = trio.Event()
        self.value: list[_T] = []
        self.error: Exception = Abandoned("the mount is being shut down")
