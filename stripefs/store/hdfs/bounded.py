"""A time limit for calls into a library that has none and cannot be interrupted.

A call runs on another thread, so that who waits can give up. Threads that are done wait a while for the next call,
since starting one takes longer (0.1 ms) than handing over to it. A call that hangs keeps its thread, and others take
others. They are daemons: what hangs does not hold up the end of the program.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from stripefs.errors import ServiceDown

__all__ = ["bounded"]

_T = TypeVar("_T")

_PATIENCE = 10.0
"""Seconds for which a thread waits for its next call; then it ends."""


def bounded(work: Callable[[], _T], timeout: float, what: str) -> _T:
    """What `work` answers or raises, or ServiceDown about `what` when it takes longer than `timeout` seconds.

    Its thread lives on until `work` ends: callers must see to it that they do not try again and again while the reason
    lasts.
    """
    answer: Future[_T] = Future()
    _take().calls.put((work, answer))
    try:
        return answer.result(timeout)
    except TimeoutError as error:
        if answer.done():  # raised by `work` itself
            raise
        raise ServiceDown(f"{what}: no answer within {timeout:g} s") from error
    finally:
        del answer  # which holds an error, whose traceback holds this frame


class _Thread:
    """Whoever took it from `_idle` may put one call."""

    def __init__(self) -> None:
        self.calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name="hdfs-bounded", daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                call = self.calls.get(timeout=_PATIENCE)
            except queue.Empty:
                if self._retire():
                    return
                call = self.calls.get()  # taken just now
            self._make(*call)
            del call  # an idle thread keeps nothing of what it did

    def _make(self, work: Callable[[], _T], answer: Future[_T]) -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - handed to the caller, who raises it
            self._offer()
            answer.set_exception(error)
            del answer  # as in `bounded`
        else:
            self._offer()  # first, so that who has the answer finds this thread for the next call
            answer.set_result(result)

    def _offer(self) -> None:
        with _lock:
            _idle.append(self)

    def _retire(self) -> bool:
        """Whether nobody can take this thread any more."""
        with _lock:
            if self not in _idle:
                return False
            _idle.remove(self)
            return True


_lock = threading.Lock()
_idle: list[_Thread] = []


def _take() -> _Thread:
    with _lock:
        if _idle:
            return _idle.pop()  # the last that was done, so that those too many grow old
    return _Thread()
