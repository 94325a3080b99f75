"""Journal of a copy: the files copied so far, so that the same command resumes after it was interrupted.

A line for each file that was copied, and whether it was compared and got the looks of its source: its path, the version
of the source that was read, and the version that was there when the copy was done. Where both are there still, and no
more is asked for than was done, the file is not copied again: equal versions are equal bytes
(`stripefs.store.base.Identity`). So nothing depends on when a line reaches the disk, and one that is torn says nothing.

    {"format": 2, "whole": true}
    {"path": "/nvme/model", "source": "85…:17…:16387", "copy": "85…:17…:2049:13", "compared": true, "preserved": false}

It lies in the directory that is copied into where that is a local one, else in this user's cache folder, and goes when
all is copied.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from stripefs.copy.tree import Place
from stripefs.format.blocks import digest_of
from stripefs.format.reserved_names import copied_name

__all__ = ["CopyJournal", "JournalEntry"]

FORMAT = 2

_KEPT = 30 * 86400
"""Seconds after which nobody is expected to go on with what was broken off."""


class JournalEntry(NamedTuple):
    """The state of one copied file: versions as `Entry.version`."""

    source: str
    copy: str
    compared: bool
    preserved: bool


class CopyJournal:
    """The journal of the command that copies `sources` to `target`, a directory; `begin` makes it. For many threads.

    begun: True if there is one. whole: True if `target` is the copy of one directory, not one that takes copies; to be
    set before. before: entries of copied files, by path in the service.
    """

    def __init__(self, sources: Sequence[Place], target: Place, environ: Mapping[str, str], *, exact: bool) -> None:
        key = _key(sources, target, exact)
        self._ours = "" if target.local else _folder(environ)
        folder, name = (os.fsencode(self._ours), key.encode()) if self._ours else (target.path, copied_name(key))
        self.path = os.path.join(folder, name)
        self.begun = False
        self.whole = False
        self.before: dict[str, JournalEntry] = {}
        self._lock = threading.Lock()
        self._file = -1
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), open(self.path, "rb") as file:
            self._read(file.read().splitlines())

    def begin(self) -> None:
        """Note from here on what is copied. Raises OSError."""
        if self._ours:
            os.makedirs(self._ours, mode=0o700, exist_ok=True)
            _clear(self._ours)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.open(self.path, flags if self.begun else flags | os.O_TRUNC, 0o600)
        if not self.begun:
            self._append({"format": FORMAT, "whole": self.whole})

    def note(self, path: str, line: JournalEntry) -> None:
        """Note that a file was copied. Raises OSError."""
        self._append({"path": path, **line._asdict()})

    def end(self, *, all_done: bool) -> None:
        """Close the journal, and remove it where all was copied. Raises OSError."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            if all_done:
                with contextlib.suppress(FileNotFoundError):  # the same command, begun twice, was done first elsewhere
                    os.unlink(self.path)

    def _append(self, document: Mapping[str, object]) -> None:
        with self._lock:
            if self._file >= 0:  # the line break in front ends a line that a full disk has torn
                os.write(self._file, b"\n" * self.begun + json.dumps(document).encode() + b"\n")
                self.begun = True

    def _read(self, lines: Sequence[bytes]) -> None:
        first, *rest = [_document(line) for line in lines] or [{}]
        if first.get("format") != FORMAT:
            return
        self.begun, self.whole = True, first.get("whole") is True
        for each in rest:
            with contextlib.suppress(KeyError):
                done = each["compared"] is True, each["preserved"] is True
                self.before[str(each["path"])] = JournalEntry(str(each["source"]), str(each["copy"]), *done)


def _document(line: bytes) -> dict[str, object]:
    with contextlib.suppress(ValueError):
        found = json.loads(line)
        if isinstance(found, dict):
            return found
    return {}


def _key(sources: Sequence[Place], target: Place, exact: bool) -> str:
    """The same for the same command, 32 hex digits."""
    named = [*map(_text, sources), "to", _text(target), str(exact)]
    return digest_of("\0".join(named).encode("utf-8", "surrogateescape")).hex()


def _text(place: Place) -> str:
    service, path = place.key
    return f"{service} {os.fsdecode(path)}"


def _folder(environ: Mapping[str, str]) -> str:
    base = environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".cache")
    return os.path.join(base, "bootseer", "copies")


def _clear(folder: str) -> None:
    """Remove the files that nobody will continue; nothing else lies there."""
    long_ago = time.time() - _KEPT
    for entry in os.scandir(folder):
        with contextlib.suppress(FileNotFoundError):  # somebody else was quicker
            if entry.stat(follow_symlinks=False).st_mtime < long_ago:
                os.unlink(entry.path)
