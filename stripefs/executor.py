"""Blocking calls on bounded threads, with deadlines, and tried again with back-off while a service is away.

A *lane* has a bounded number of threads for calls of one kind, so calls that hang in one lane never take the threads of
another. trio's own threads are not used: all of a process share those.

- The caller is answered at the deadline of its call, whatever the call does. The thread of a call that nobody waits for
  any more is replaced, up to a bound. When every thread of a lane hangs past its call's deadline, further calls fail at
  once with `LaneBlocked`, so neither threads nor waiting callers grow without limit.
- Threads are daemons: a call that hangs does not hold up the end of the process. Idle threads end after IDLE seconds.
- An exception of a call reaches its caller. One that is no `Exception` (clients written in Rust panic that way) becomes
  StoreError, since it would pass every handler on its way and end the process.

`Executor` has the lanes of one service or mount and repeats calls that raise Transient; `retry_task` repeats any other
call of a task by the policy that its caller states. Time is trio's clock, so tests use a virtual one.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Generic, Literal, TypeVar, TypeVarTuple

import trio

from stripefs.errors import Abandoned, ServiceDown, StoreError, Transient
from stripefs.retry import Attempts, RetryPolicy

__all__ = ["Executor", "Lane", "LaneBlocked", "LaneName", "persist", "retry_task"]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_Args = TypeVarTuple("_Args")

IDLE = 10.0
"""Seconds for which a thread waits for its next call before it ends."""

LaneName = Literal["metadata", "listing", "open", "location", "confirmation", "decisions", "presence", "disk"]

THREADS: dict[LaneName, int] = {
    "metadata": 32,  # a NameNode answers in 0.3 ms: this bounds threads, not speed
    "listing": 16,
    "open": 32,
    "location": 16,
    "confirmation": 16,
    "decisions": 8,  # about a process that closes or opens a file, by /proc
    "presence": 8,  # of blocks on a local disk
    "disk": 8,
}
"""Calls of each kind that run at once in one executor."""


class LaneBlocked(ServiceDown):
    """No thread of a lane is free, and all of them hang past the deadlines of their calls."""


class _Call:
    """`until`: the time from which it counts as hung, by the clock of its caller."""

    def __init__(self, work: Callable[[], Any], until: float) -> None:
        self.work = work
        self.until = until
        self.left = False  # True once its caller waits no more, while its thread still runs it
        self.future: Future[Any] = Future()


def _outcome(work: Callable[[], Any], future: Future[Any]) -> Callable[[], None]:
    """Runs `work`; the result delivers what it answered or raised."""
    try:
        return partial(future.set_result, work())
    except Exception as error:  # noqa: BLE001  the border: its caller raises it
        return partial(future.set_exception, error)
    except BaseException as error:  # noqa: BLE001  as the module says
        return partial(future.set_exception, StoreError(f"the client failed unexpectedly: {error!r}"))
    finally:
        del future  # it holds the error, whose traceback holds this frame


class Lane:
    """Threads for calls of one kind. Safe to use from many threads; `run` is for trio's.

    threads: calls that run at once while their callers wait. spare: further threads, in place of those whose callers
    have left; as many as `threads` unless given. Either `run` or `call` is to be used of one lane, as they differ in
    their clocks.
    """

    def __init__(self, name: str, threads: int, spare: int | None = None) -> None:
        self.name = name
        self.threads = threads
        self.limit = threads + (threads if spare is None else spare)
        self._changed = threading.Condition()
        self._waiting: deque[_Call] = deque()
        self._running: set[_Call] = set()
        self._left = 0
        self._idle = 0
        self._alive = 0
        self._closed = False

    @property
    def busy(self) -> int:
        """Threads that run a call now."""
        return len(self._running)

    async def run(
        self,
        what: str,
        function: Callable[[*_Args], _T],
        *args: *_Args,
        timeout: float = math.inf,
        late: Callable[[_T], object] | None = None,
        abandon: bool = True,
        drop: bool = False,
    ) -> _T:
        """`function(*args)` on a thread of this lane. A cancelled caller waits for it only if `abandon` is False, or if
        `drop` is true and the call has begun; one that has not never begins then.

        Raises what `function` raises, ServiceDown after `timeout` seconds and LaneBlocked. late(result) is called on a
        thread when the result comes after the caller has left. `what` names the call in messages.
        """
        token = trio.lowlevel.current_trio_token()
        done = trio.Event()

        def wake(_: Future[_T]) -> None:
            with contextlib.suppress(trio.RunFinishedError):
                token.run_sync_soon(done.set)

        until = trio.current_time() + timeout
        await trio.lowlevel.checkpoint_if_cancelled()
        call = self._begin(partial(function, *args), until, trio.current_time())
        call.future.add_done_callback(wake)
        with trio.CancelScope(deadline=until, shield=not (abandon or drop)) as scope:
            while not done.is_set():
                try:
                    await done.wait()
                except trio.Cancelled:
                    if drop and not scope.shield and not call.future.cancel():  # it has begun
                        scope.shield = True
                        continue
                    self._leave(call)
                    if late is not None:
                        call.future.add_done_callback(partial(self._hand_over, late))
                    raise
            try:
                result: _T = call.future.result()
                return result
            finally:
                del call  # it may hold an error, whose traceback holds this frame
        raise _no_answer(what, timeout)

    def call(self, what: str, work: Callable[[], _T], timeout: float) -> _T:
        """As `run`, for a thread that waits. Raises TimeoutError only where `work` does."""
        call = self._begin(work, math.inf, -math.inf)
        try:
            result: _T = call.future.result(timeout)
            return result
        except TimeoutError:
            if call.future.done():
                raise
            call.until = -math.inf
            self._leave(call)
            raise _no_answer(what, timeout) from None
        finally:
            del call

    def submit(self, function: Callable[[*_Args], _T], /, *args: *_Args) -> Future[_T]:
        """Runs `function(*args)` when a thread is free. Raises RuntimeError once the lane is closed."""
        return self._begin(partial(function, *args), math.inf, -math.inf).future

    def close(self) -> None:
        """Drop the calls that have not begun. Waits for nothing."""
        with self._changed:
            self._closed = True
            dropped = [call.future for call in self._waiting]
            self._waiting.clear()
            self._changed.notify_all()
        for future in dropped:
            future.cancel()

    def _begin(self, work: Callable[[], Any], until: float, now: float) -> _Call:
        call = _Call(work, until)
        with self._changed:
            if self._closed:
                raise RuntimeError(f"the lane {self.name} is closed")
            if len(self._running) >= self.limit and all(one.left and one.until <= now for one in self._running):
                raise LaneBlocked(
                    f"all {self.limit} threads for {self.name} calls hang",
                    hint="the store, its network or the local disk does not answer; see whether it is reachable",
                )
            self._waiting.append(call)
            self._wake()
        return call

    def _leave(self, call: _Call) -> None:
        """The caller has gone: a call that has not begun never does; the thread of one that has is replaced."""
        with self._changed:
            if call.future.cancel():
                with contextlib.suppress(ValueError):
                    self._waiting.remove(call)
            elif call in self._running and not call.left:
                call.left = True
                self._left += 1
                self._wake()

    def _hand_over(self, late: Callable[[_T], object], future: Future[_T]) -> None:
        if not future.cancelled() and future.exception() is None:
            with contextlib.suppress(RuntimeError):  # closed: the process ends
                self._begin(partial(late, future.result()), math.inf, -math.inf)

    def _startable(self) -> int:
        """Waiting calls that may begin now."""
        free = min(self.threads - (len(self._running) - self._left), self.limit - len(self._running))
        return min(len(self._waiting), free)

    def _wake(self) -> None:
        if self._startable() > self._idle and self._alive < self.limit:
            self._alive += 1
            self._idle += 1
            threading.Thread(target=self._serve, name=self.name, daemon=True).start()
        else:
            self._changed.notify()

    def _serve(self) -> None:
        while (call := self._next()) is not None:
            deliver = _outcome(call.work, call.future)
            with self._changed:  # first, so that a caller who has the result finds this thread for the next call
                self._running.discard(call)
                self._left -= call.left
                self._idle += 1
            deliver()
            del call, deliver  # an idle thread keeps nothing of its last call

    def _next(self) -> _Call | None:
        """The next call; None when this thread is to end."""
        with self._changed:
            until = time.monotonic() + IDLE
            while True:
                while self._startable() > 0:
                    call = self._waiting.popleft()
                    if call.future.set_running_or_notify_cancel():
                        self._idle -= 1
                        self._running.add(call)
                        return call
                if self._closed or time.monotonic() >= until:
                    self._idle -= 1
                    self._alive -= 1
                    return None
                self._changed.wait(max(0.0, until - time.monotonic()))


def _no_answer(what: str, timeout: float) -> ServiceDown:
    return ServiceDown(
        f"{what}: no answer within {timeout:g} s",
        hint="see whether the store is up and reachable; --io-timeout sets how long to wait",
    )


async def retry_task(
    attempt: Callable[[], Awaitable[_T]],
    policy: RetryPolicy,
    on_retry: Callable[[Exception, float], object] = lambda _error, _pause: None,
) -> _T:
    """`await attempt()`, tried again as `policy` says; raises what the last try raises.

    on_retry(error, pause): called before each pause of so many seconds.
    """
    attempts = Attempts(policy, trio.current_time())
    while True:
        try:
            return await attempt()
        except Exception as error:
            pause = attempts.failed(error, trio.current_time())
            if pause is None:
                raise
            on_retry(error, pause)
        await trio.sleep(pause)


async def persist(
    what: str, attempt: Callable[[], Awaitable[_T]], timeout: float, on_retry: Callable[[], None] = lambda: None
) -> _T:
    """`await attempt()`, again for as long as it raises Transient; `on_retry()` before each repetition.

    After `timeout` seconds the last error stands, and an attempt that has not come back is cancelled and becomes
    ServiceDown. LaneBlocked stands at once. `what` names the call in messages.
    """
    deadline = trio.current_time() + timeout

    async def in_time() -> _T:
        with trio.move_on_at(deadline):
            return await attempt()
        raise _no_answer(what, timeout)

    def retried(error: Exception, pause: float) -> None:
        _log.info("%s failed, next try in %.1f s: %s", what, pause, error)
        on_retry()

    return await retry_task(in_time, RetryPolicy(timeout, fatal=(LaneBlocked,)), retried)


class Executor:
    """The lanes of one service or mount. `timeout` in seconds bounds each call with its repetitions.

    failed(what, error): called for each try that raised Transient. threads: of the lane "metadata", THREADS unless
    given. Use it on trio's thread.
    """

    def __init__(
        self, timeout: float, failed: Callable[[str, Transient], None] | None = None, *, threads: int | None = None
    ) -> None:
        self.timeout = timeout
        self.retries = 0
        self._failed = failed
        self._lanes: dict[LaneName, Lane] = {} if threads is None else {"metadata": Lane("metadata", threads)}
        self._shared_calls: dict[object, _PendingCall[Any]] = {}

    def lane(self, name: LaneName) -> Lane:
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = Lane(name, THREADS[name])
        return lane

    @property
    def busy(self) -> int:
        """Threads of all lanes that run a call now."""
        return sum(lane.busy for lane in self._lanes.values())

    async def call(
        self,
        what: str,
        function: Callable[[*_Args], _T],
        *args: *_Args,
        repeat: Callable[[*_Args], _T] | None = None,
        lane: LaneName = "metadata",
        timeout: float | None = None,
    ) -> _T:
        """`function(*args)` on a thread, from the second try on `repeat(*args)`, until `timeout` seconds have passed.

        A call that changes the store needs a `repeat` that takes "already so" for success: the first answer may have
        been lost. Raises what the last try raised, ServiceDown and LaneBlocked.
        """
        limit = self.timeout if timeout is None else timeout
        deadline = trio.current_time() + limit
        turn = function

        async def attempt() -> _T:
            nonlocal turn
            now, turn = turn, repeat or function
            try:
                return await self.lane(lane).run(what, now, *args, timeout=max(0.0, deadline - trio.current_time()))
            except Transient as error:
                if self._failed is not None:
                    self._failed(what, error)
                raise

        return await self.persist(what, attempt, limit)

    async def change(
        self, what: str, stands: type[StoreError] | tuple[()], function: Callable[[*_Args], None], *args: *_Args
    ) -> None:
        """As `call`, for a change that raises `stands` when its effect stands already: success of a second try."""

        def repeat(*args: *_Args) -> None:
            with contextlib.suppress(*([stands] if isinstance(stands, type) else [])):
                function(*args)

        await self.call(what, function, *args, repeat=repeat)

    async def persist(self, what: str, attempt: Callable[[], Awaitable[_T]], timeout: float | None = None) -> _T:
        """`await attempt()`, tried again as `call` is."""
        return await persist(what, attempt, self.timeout if timeout is None else timeout, self._retried)

    async def shared(self, key: object, call: Callable[[], Awaitable[_T]]) -> _T:
        """`await call()`, or the result of the call under way for an equal `key`."""
        under_way: _PendingCall[_T] | None = self._shared_calls.get(key)
        if under_way is not None:
            await under_way.ended.wait()
            if under_way.value:
                return under_way.value[0]
            raise under_way.error
        pending: _PendingCall[_T] = _PendingCall()
        self._shared_calls[key] = pending
        try:
            pending.value = [await call()]
        except Exception as error:
            pending.error = error
            raise
        finally:
            if self._shared_calls.get(key) is pending:
                del self._shared_calls[key]
            pending.ended.set()
        return pending.value[0]

    def outdate(self, key: object) -> None:
        """Let no caller join the call under way for `key`, because its subject has changed since."""
        self._shared_calls.pop(key, None)

    def _retried(self) -> None:
        self.retries += 1


class _PendingCall(Generic[_T]):
    def __init__(self) -> None:
        self.ended = trio.Event()
        self.value: list[_T] = []
        self.error: Exception = Abandoned("the call was given up")
