"""Calls to the store for metadata: in threads of their own, tried again while the store is away, one at a time per key.

A call that raises Transient is repeated until `timeout` seconds have passed (`stripefs.retry`). A call that does not
come back within that time is abandoned with its thread and becomes ServiceDown.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar, TypeVarTuple

import trio

from stripefs.errors import Abandoned, StoreError
from stripefs.retry import persist

__all__ = ["Calls"]

_T = TypeVar("_T")
_Args = TypeVarTuple("_Args")

THREADS = 32
"""Metadata calls under way at once. A NameNode answers one in 0.3 ms, so this bounds threads, not speed."""


class Calls:
    """Runs blocking or asynchronous calls to one store, `threads` at once. `timeout` in seconds."""

    def __init__(self, timeout: float, threads: int = THREADS) -> None:
        self.timeout = timeout
        self.retries = 0
        self._limiter = trio.CapacityLimiter(threads)
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

    async def change(
        self, what: str, stands: type[StoreError] | tuple[()], function: Callable[..., None], *args: object
    ) -> None:
        """As `thread`, for a call that changes the store and raises `stands` when its effect stands already.

        Of a second try that is success, as the first one's answer was lost.
        """
        tries = 0

        def once() -> None:
            nonlocal tries
            tries += 1
            try:
                function(*args)
            except stands:
                if tries == 1:
                    raise

        await self.thread(what, once)

    async def persist(self, what: str, attempt: Callable[[], Awaitable[_T]]) -> _T:
        """`await attempt()`, tried again as the module says."""
        return await persist(what, attempt, self.timeout, self._retried)

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

    def _retried(self) -> None:
        self.retries += 1


class _Flight(Generic[_T]):
    def __init__(self) -> None:
        self.landed = trio.Event()
        self.value: list[_T] = []
        self.error: Exception = Abandoned("the call was given up")
