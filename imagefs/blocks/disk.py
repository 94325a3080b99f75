"""The local disk as something that may be full or fail: then it is left alone for a while, which costs speed only."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar, TypeVarTuple

import trio

from imagefs.blocks.figures import Figures
from stripefs import retry
from stripefs.executor import Lane
from stripefs.retry import Backoff, Seldom

__all__ = ["Disk"]

_log = logging.getLogger(__name__)

_T = TypeVar("_T")
_Args = TypeVarTuple("_Args")

THREADS = 4


class Disk:
    """What is below `folder` and its troubles. `lock` is held by whoever changes files."""

    def __init__(self, folder: Path, figures: Figures) -> None:
        self.folder = folder
        self.lock = trio.Lock()
        self.warn = Seldom(_log)
        self._figures = figures
        self._lane = Lane("disk", THREADS)
        self._loading = Lane("opening devices", THREADS)
        self._backoff = Backoff(retry.FIRST_PAUSE, retry.LONGEST_PAUSE)

    async def thread(self, function: Callable[[*_Args], _T], *arguments: *_Args) -> _T:
        """`function(*arguments)` in a thread, waited for even by who is cancelled: it may use descriptors of files."""
        return await self._lane.run("the cache's disk", function, *arguments, abandon=False)

    async def load(self, function: Callable[[*_Args], _T], *arguments: *_Args, late: Callable[[_T], object]) -> _T:
        """As `thread`, on threads of their own; late(result) is called when who is cancelled waits no more."""
        return await self._loading.run("the cache's disk", function, *arguments, late=late)

    @property
    def failing(self) -> bool:
        """Whether it is left alone now."""
        return self._backoff.paused(trio.current_time())

    def failed(self, what: str, error: OSError) -> None:
        self._figures.disk_errors += 1
        self._backoff.failed(trio.current_time())
        self.warn("disk", "%s in %s: %s; until it can, what is read is fetched", what, self.folder, error.strerror)

    def worked(self) -> None:
        """It took something."""
        self._backoff.worked()

    @contextlib.contextmanager
    def tolerant(self, what: str) -> Iterator[None]:
        """An OSError inside ends this, and is a failure of the disk in `what`."""
        try:
            yield
        except OSError as error:
            self.failed(what, error)
