"""Waiting for what other processes and threads bring about. No test asserts how long anything takes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

__all__ = ["PATIENCE", "child_of", "eventually", "gone", "processes"]

PATIENCE = 60.0
"""Seconds after which a wait is a hang: far more than anything takes, since machines of tests are busy and shared."""

_T = TypeVar("_T")


def eventually(look: Callable[[], _T], what: str, patience: float = PATIENCE) -> _T:
    """The first true answer of `look`. Raises AssertionError when there is none in time."""
    end = time.monotonic() + patience
    while not (found := look()):
        assert time.monotonic() < end, f"waited in vain for: {what}"
        time.sleep(0.02)
    return found


def child_of(pid: int) -> int:
    """The only child of a process, once it has one."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return int(eventually(lambda: path.read_text().split(), "the program in the namespace")[0])


def gone(pid: int) -> bool:
    """True if that process has ended, reaped or not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in "ZX"


def processes(file: str = "cmdline") -> Iterator[tuple[int, list[bytes]]]:
    """Every other process, with the words of its command line, or of its `environ`."""
    for entry in Path("/proc").glob("[0-9]*"):
        if int(entry.name) != os.getpid():
            try:
                words = (entry / file).read_bytes().split(b"\0")
            except OSError:
                continue  # it ended while we looked
            yield int(entry.name), words
