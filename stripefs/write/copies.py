"""Who wants the bytes of a file while they are written: a cache, so that who reads them need not fetch them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from stripefs.store.base import Status

__all__ = ["NO_COPY", "Copies", "Copy", "no_copies"]


class Copy(Protocol):
    """Of one draft. Nothing of it blocks or raises."""

    def behind(self, path: bytes, status: Status) -> None:
        """What comes goes behind the published file `status`, whose bytes are not added."""

    def add(self, data: memoryview) -> None:
        """The next bytes, which do not change any more."""

    def publish(self, path: bytes, status: Status | None) -> None:
        """All bytes so far are the version `status` at `path`; None where it cannot be told which version they are."""

    def drop(self) -> None:
        """What is not published never will be; what comes next is the file's beginning."""


class _NoCopy:
    def behind(self, path: bytes, status: Status) -> None: ...

    def add(self, data: memoryview) -> None: ...

    def publish(self, path: bytes, status: Status | None) -> None: ...

    def drop(self) -> None: ...


NO_COPY = _NoCopy()

Copies = Callable[[bytes], Copy | None]
"""Who wants those of the file that is written at a path, None where nobody does."""


def no_copies(_path: bytes) -> None:
    """Nobody does anywhere."""
