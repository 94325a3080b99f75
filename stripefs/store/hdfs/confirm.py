"""Many threads share one confirmation, as a database's group commit does.

A reader's bytes are proven by asking the NameNode *after* they arrived. With 32 threads each finishing a range every
few milliseconds one question each would be most of the NameNode's work for us; instead those who come while a question
is under way wait for the next one, together.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from stripefs.errors import StoreError

__all__ = ["GroupCommit"]


class _Run:
    def __init__(self) -> None:
        self.over = threading.Event()
        self.succeeded = False
        self.failure: StoreError | None = None


class GroupCommit:
    """Calling it returns, or raises, what a run of `action` did that *started* after the call. One runs at a time."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._next: _Run | None = None

    def __call__(self) -> None:
        with self._lock:
            run = self._next
            leads = run is None
            if run is None:
                run = self._next = _Run()
        if leads:
            self._lead(run)
            return
        run.over.wait()
        if run.failure is not None:
            raise type(run.failure)(run.failure.message, hint=run.failure.hint) from run.failure
        if not run.succeeded:  # a bug ended the leader: meet it ourselves instead of taking silence for a yes
            self()

    def _lead(self, run: _Run) -> None:
        with self._turn:
            with self._lock:
                self._next = None  # who comes from here on needs a run that starts later
            try:
                self._action()
                run.succeeded = True
            except StoreError as failure:
                run.failure = failure
                raise
            finally:
                run.over.set()
