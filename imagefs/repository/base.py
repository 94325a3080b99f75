"""The repository seam: what a place must do in which images, traces, plans and dependency snapshots lie.

A repository holds objects at paths such as `/packs/ab/abcdef…` or `/tags/NAME` (`imagefs.repository.images`,
`traces` and `snapshots` say which there are). Those whose names are digests never change. All calls block, and many
threads may call at once. A call answers, or raises a StoreError; what is read is not checked here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from stripefs.errors import Unsupported
from stripefs.store.base import Buffer, Status

if TYPE_CHECKING:
    from stripefs.write.file_lock import FileLock

__all__ = ["Capabilities", "RangeReader", "Repository"]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The capabilities of a repository.

    put: `put` and `remove` are tried at all. list: `entries` works. put_if_absent: of several `put` of one path that do
    not replace, one succeeds; without it all may, and the last one stays. list_objects: objects that are named by their
    digests can be listed with their ages and removed; without it the place removes those that no image needs itself.
    replication: `set_replication` works.
    """

    put: bool = True
    list: bool = True
    put_if_absent: bool = True
    list_objects: bool = True
    replication: bool = False


class RangeReader(Protocol):
    """An object that is open for reading by ranges, for many threads."""

    def read(self, offset: int, length: int) -> Buffer:
        """Exactly `length` bytes from `offset`, unchecked. Raises StoreErrors; Transient ones are worth another try."""

    def close(self) -> None:
        """Let go of it. Reads under way may fail. Never raises."""


class Repository(ABC):
    """A place where images lie. `url` is what the user gave, without secrets."""

    url: str
    capabilities: Capabilities

    @abstractmethod
    def read(self, path: bytes, most: int = 0) -> Buffer:
        """All of an object. Raises NotFound, and DamagedObject where it has more than `most` bytes (0: any number)."""

    @abstractmethod
    def stat(self, path: bytes) -> Status:
        """Length of an object in bytes, and when it was stored. Raises NotFound."""

    @abstractmethod
    def put(self, path: bytes, data: bytes, *, replace: bool = False) -> None:
        """Store an object, whole or not at all. Raises Exists where one is, unless it is to be replaced."""

    @abstractmethod
    def entries(self, folder: bytes) -> list[Status]:
        """The objects and folders right below `folder`, in no order. Raises NotFound where nothing was stored there
        yet, and Unsupported without the capability."""

    @abstractmethod
    def remove(self, path: bytes) -> None:
        """Remove an object. Raises NotFound, and Unsupported where nothing can be removed."""

    def set_replication(self, path: bytes, replicas: int) -> None:
        """Let an object have that many replicas, which the place makes or removes later.

        Raises NotFound, and Unsupported without the capability.
        """
        raise Unsupported(f"{self.url} lets nobody choose how many replicas an object has")

    @abstractmethod
    def open(self, path: bytes, length: int) -> RangeReader:
        """Open an object of `length` bytes to read ranges of it, each of which the caller checks.

        So no place need look at the object first, and NotFound may come from the reader.
        """

    def link(self, path: bytes, other: Repository) -> bool:
        """Take over an object that `other` has without its bytes being sent; False where that is not possible."""
        return False

    def attached(self) -> dict[str, int | None]:
        """The images that are attached to container images of this repository, by digest.

        None for the newest of a container image that is there. Else nanoseconds since 1970: when the next one was
        attached or, of the newest of a container image that is gone, when that one was.
        """
        return {}

    @abstractmethod
    def now_ns(self) -> int:
        """Nanoseconds since 1970 by the clock that gives objects their times."""

    def lock(self, path: bytes, owner: str, seconds: float) -> FileLock:
        """Take the leased lock of the document at `path`; see `stripefs.write.file_lock.acquire`.

        Raises Busy, and Unsupported where there are no locks.
        """
        raise Unsupported(f"{self.url} has no locks")

    @abstractmethod
    def close(self) -> None:
        """Release connections. Never raises."""
