"""An inventory of a directory, and its changes: what is checked must be what is packed.

A tree is looked at before it is checked and once more when it has been packed. In between nobody who is known writes
to it, so equal facts mean equal bytes.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from typing import NamedTuple

from imagefs.errors import SnapshotError

__all__ = ["OPAQUE", "FileFacts", "Inventory", "changes", "take"]

OPAQUE = "trusted.overlay.opaque"
"""The attribute of a directory in an overlay's layer that hides what lower ones have in it."""


class FileFacts(NamedTuple):
    """Of lstat(2). changed_ns is 0 for a file with several names, whose time changes as others come and go: uv makes
    hardlinks from its cache."""

    mode: int
    uid: int
    gid: int
    size: int
    device: int
    inode: int
    rdev: int
    modified_ns: int
    changed_ns: int

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_whiteout(self) -> bool:
        """Tells whether an overlay hides what lower directories have there."""
        return stat.S_ISCHR(self.mode) and self.rdev == 0

    @property
    def is_link(self) -> bool:
        return stat.S_ISLNK(self.mode)


class Inventory(NamedTuple):
    """top: the directory. entries: by path below it, without a slash in front; the directory itself is "".

    Names that are no UTF-8 have surrogates, as everywhere in Python.
    """

    top: str
    entries: Mapping[str, FileFacts]

    def path(self, name: str) -> str:
        """The path of an entry."""
        return os.path.join(self.top, name)


def take(top: str) -> Inventory:
    """Everything below `top` on its file system; links are not followed. Raises SnapshotError."""
    try:
        entries = {"": _facts(os.stat(top))}
        stack = [("", top)]
        while stack:
            above, folder = stack.pop()
            with os.scandir(folder) as found:
                for entry in found:
                    facts = _facts(entry.stat(follow_symlinks=False))
                    entries[above + entry.name] = facts
                    if facts.is_directory and facts.device == entries[""].device:
                        stack.append((f"{above}{entry.name}/", entry.path))
    except OSError as error:
        raise SnapshotError(f"{error.filename or top} cannot be looked at: {error.strerror}") from error
    return Inventory(top, entries)


def changes(before: Inventory, after: Inventory) -> list[str]:
    """Paths that came, went or are no longer the same."""
    paths = before.entries.keys() | after.entries.keys()
    return sorted(path for path in paths if before.entries.get(path) != after.entries.get(path))


def _facts(found: os.stat_result) -> FileFacts:
    alone = found.st_nlink == 1 or stat.S_ISDIR(found.st_mode)
    return FileFacts(
        found.st_mode,
        found.st_uid,
        found.st_gid,
        found.st_size,
        found.st_dev,
        found.st_ino,
        found.st_rdev,
        found.st_mtime_ns,
        found.st_ctime_ns if alone else 0,
    )
