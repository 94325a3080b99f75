"""A store whose clock is not that of this host."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import ClassVar

from stripefs.store.base import Identity, Status, Store
from stripefs.store.wrapper import Parser, WrappedStore

__all__ = ["Shifted"]


class Shifted(WrappedStore):
    """All times of files are `seconds` later than the host's; with None the store knows none."""

    NAME = "shifted"
    PARAMETERS: ClassVar[dict[str, Parser]] = {}

    def __init__(self, inner: Store, seconds: float | None) -> None:
        super().__init__(inner)
        self.seconds = seconds

    def _shift(self, status: Status) -> Status:
        then = 0 if self.seconds is None else status.mtime_ns + int(self.seconds * 1e9)
        return dataclasses.replace(status, mtime_ns=then)

    def stat(self, path: bytes) -> Status:
        return self._shift(super().stat(path))

    def compare_and_rename(self, source: bytes, target: bytes, seen: Identity) -> None:
        Store.compare_and_rename(self, source, target, seen)  # by the times that are shown

    def compare_and_remove(self, path: bytes, seen: Identity) -> None:
        Store.compare_and_remove(self, path, seen)

    def scandir(self, path: bytes, after: bytes = b"") -> Iterator[Sequence[Status]]:
        for batch in super().scandir(path, after):
            yield [self._shift(status) for status in batch]
