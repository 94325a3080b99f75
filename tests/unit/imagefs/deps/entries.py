"""Trees in name only."""

from __future__ import annotations

import posixpath
import stat
from collections.abc import Iterable

from imagefs.deps.inventory import FileFacts

__all__ = ["entries_of"]


def entries_of(paths: Iterable[str], removed: Iterable[str] = ()) -> dict[str, FileFacts]:
    """Empty files with these paths, whiteouts, and the directories above them."""
    found = {"": _facts(stat.S_IFDIR | 0o755)}
    for mode, path in [*((stat.S_IFREG, path) for path in paths), *((stat.S_IFCHR, path) for path in removed)]:
        found[path] = _facts(mode | 0o644)
        while path := posixpath.dirname(path):
            found[path] = _facts(stat.S_IFDIR | 0o755)
    return found


def _facts(mode: int) -> FileFacts:
    return FileFacts(mode, 0, 0, 0, 1, 1, 0, 0, 0)
