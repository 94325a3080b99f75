"""A time limit for calls into a library that has none and cannot be interrupted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from stripefs.errors import ServiceDown

__all__ = ["bounded"]

_T = TypeVar("_T")


def bounded(work: Callable[[], _T], timeout: float, what: str) -> _T:
    """What `work` answers or raises, or ServiceDown about `what` when it takes longer than `timeout` seconds.

    It runs on a daemon thread of its own (0.1 ms), which lives on until `work` ends: callers must see to it that they
    do not try again and again while the reason lasts.
    """
    answer: Future[_T] = Future()
    threading.Thread(target=_run, args=(work, answer), name="hdfs-bounded", daemon=True).start()
    try:
        return answer.result(timeout)
    except TimeoutError as error:
        if answer.done():  # raised by `work` itself
            raise
        raise ServiceDown(f"{what}: no answer within {timeout:g} s") from error


def _run(work: Callable[[], _T], answer: Future[_T]) -> None:
    try:
        answer.set_result(work())
    except BaseException as error:  # noqa: BLE001 - handed to the caller, who raises it
        answer.set_exception(error)
