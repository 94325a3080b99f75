"""The one step by which a version becomes visible at its name: a rename onto it, or a join behind what is there.

All calls block. A step may be run again where its answer was lost, and can tell whether it has had its effect.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from stripefs.errors import Exists, NotFound, StaleVersion
from stripefs.store.base import Status, Store
from stripefs.write.file_lock import is_same_file

__all__ = ["JoinStep", "RenameStep", "Step"]


@dataclass(frozen=True, slots=True)
class Step(ABC):
    """`source` is the hidden file that is renamed or joined; `path` the file that it becomes, or comes behind."""

    source: bytes
    path: bytes

    knows_itself: ClassVar[bool]
    """True if `is_done` cannot take another writer's version for this one."""

    @abstractmethod
    def run(self, store: Store) -> None: ...

    @abstractmethod
    def is_done(self, store: Store) -> bool:
        """True if the version is at the name. Raises NotFound where nothing is."""

    def has_source(self, store: Store) -> bool:
        """True if the source is there: then it has not been taken away by a writer that took over."""
        try:
            store.stat(self.source)
        except NotFound:
            return False
        return True


@dataclass(frozen=True, slots=True)
class RenameStep(Step):
    """staged: of the source. alone: there is no file at `path` that may be replaced."""

    staged: Status
    alone: bool

    knows_itself: ClassVar[bool] = True

    def run(self, store: Store) -> None:
        try:
            store.rename(self.source, self.path, replace=not self.alone)
        except Exists as error:
            raise StaleVersion(f"{self.path!r} was made by somebody else while it was being written") from error

    def is_done(self, store: Store) -> bool:
        return is_same_file(store.stat(self.path), self.staged)


@dataclass(frozen=True, slots=True)
class JoinStep(Step):
    """before: of the file at `path`, which has `length` bytes afterwards."""

    before: Status
    length: int

    knows_itself: ClassVar[bool] = False

    def run(self, store: Store) -> None:
        store.concat(self.path, [self.source])

    def is_done(self, store: Store) -> bool:
        now = store.stat(self.path)
        return (now.file_id, now.length) == (self.before.file_id, self.length)
