"""The file that a reader opens next, by the number in its name. Pure.

Large checkpoints are saved in numbered parts (`model-00002-of-00008.safetensors`, `pytorch_model-3.bin`), and most
loaders read these one after the other. `FileSeries` predicts the next one only with evidence: the part before this one
was read to its end, or the name says that this is the first of several (`-00001-of-00008`). A rank that reads its own
part alone gives none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["FileSeries"]

REMEMBERED = 256
"""Files that were read to their end, the latest: an evidence is asked for within a window of the reader."""

_NUMBER = re.compile(rb"\d+")
_TOTAL = re.compile(rb"-of-(\d+)")


class FileSeries:
    """Remembers what was read, by path. Paths of different stores must not meet in one."""

    def __init__(self) -> None:
        self._read: dict[bytes, None] = {}
        self._unread: dict[bytes, None] = {}

    def read(self, path: bytes) -> None:
        """Most of this file has been read."""
        _remember(self._read, path)

    def next(self, path: bytes) -> bytes | None:
        """The file that the reader of this one most likely reads next; None without evidence."""
        for successor, predecessors, first in _numberings(path):
            if successor not in self._unread and (first or any(one in self._read for one in predecessors)):
                return successor
        return None

    def missed(self, path: bytes) -> None:
        """The file that was foretold was not opened. It is not foretold again."""
        _remember(self._unread, path)


def _remember(paths: dict[bytes, None], path: bytes) -> None:
    paths.pop(path, None)
    paths[path] = None
    if len(paths) > REMEMBERED:
        del paths[next(iter(paths))]


def _numberings(path: bytes) -> Iterator[tuple[bytes, tuple[bytes, ...], bool]]:
    """For each number in the file's name, the last first: the path with the next one, those with the one before, and
    whether the name says that it is the first of several."""
    begin = path.rfind(b"/") + 1
    for found in reversed(list(_NUMBER.finditer(path, begin))):
        text, number = found[0], int(found[0])
        if path[: found.start()].endswith(b"-of-"):
            continue
        total = _TOTAL.match(path, found.end())
        if total is not None and number >= int(total[1]):
            continue
        before, after = path[: found.start()], path[found.end() :]
        width = len(text)
        past = {b"%d" % (number - 1), (b"%d" % (number - 1)).rjust(width, b"0")} if number else set()
        successor = before + (b"%d" % (number + 1)).rjust(width, b"0") + after
        yield successor, tuple(before + one + after for one in past), total is not None and number == 1
