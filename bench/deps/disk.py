"""What variants of one installation take: in a store of snapshots, as their distinct files, and installed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.changed import lz4_of_new

__all__ = ["Taken", "Tally", "size"]


@dataclass(frozen=True, slots=True)
class Taken:
    """Bytes of all variants so far: in the store, of their distinct files as LZ4 makes them, and where installed."""

    stored: int
    unique: int
    installed: int


class Tally:
    """Of the variants in one store."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._known: set[bytes] = set()
        self._unique = 0
        self._installed = 0

    def add(self, installed: Path) -> Taken:
        """One more was published, of what is installed there."""
        self._unique += lz4_of_new(self._known, installed)
        self._installed += size(installed)
        return Taken(size(self._store), self._unique, self._installed)


def size(root: Path) -> int:
    """Bytes of all regular files below `root`, those with several names once."""
    files = (path.lstat() for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    return sum({file.st_ino: file.st_size for file in files}.values())
