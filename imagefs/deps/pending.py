"""Publications that this host has begun and not ended: CACHE/deps/pending/NAME.json, the document of each.

Whoever publishes holds a lock on its document, which it has from the start that began it, and removes the document when
there is an answer. So where one lies there and nobody holds it, its publisher was killed, or could not reach the store,
and a later start at the same target may have it tried again.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from imagefs.deps import notes

__all__ = ["Left", "begin", "end", "left"]


class Left(NamedTuple):
    """What was to be published, as JSON values, and a descriptor with the lock; to be closed."""

    job: dict[str, Any]
    descriptor: int


def begin(cache: str, name: str, job: dict[str, Any]) -> int:
    """Note what is to be published; a descriptor with the lock, for the process that does. Raises OSError."""
    path = _path(cache, name)
    notes.keep(path, json.dumps(job))
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def left(cache: str, name: str) -> Left | None:
    """What nobody publishes any more. Raises OSError."""
    try:
        descriptor = os.open(_path(cache, name), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with contextlib.ExitStack() as undo:
        undo.callback(os.close, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        if not os.fstat(descriptor).st_nlink:
            return None  # it has just ended
        with open(descriptor, closefd=False) as file:
            try:
                job = dict(json.load(file))
            except (ValueError, TypeError):  # as a power cut leaves it
                end(cache, name)
                return None
        undo.pop_all()
        return Left(job, descriptor)


def end(cache: str, name: str) -> None:
    """There is an answer. Raises OSError."""
    _path(cache, name).unlink(missing_ok=True)


def _path(cache: str, name: str) -> Path:
    return Path(cache, "deps/pending", f"{name}.json")
