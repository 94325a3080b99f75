"""Folders in memory, for tests that are about no disk: an fsync costs 0.02 ms there, and 8 ms on a disk.

Tests of one run call fsync tens of thousands of times.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

__all__ = ["MEMORY", "MemoryFolders", "in_memory"]

MEMORY = Path("/dev/shm")
_NAME = "bootseer-test-"
_ROOM = 4 << 30
"""Bytes that have to be free there and in memory: tests of a run take less than half of it."""


def in_memory(name: str) -> Path | None:
    """The path of a folder in memory; None where there is little room, as in a container with a /dev/shm of 64 MiB."""
    try:
        there = os.statvfs(MEMORY)
        free = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    except OSError:
        return None
    room = min(there.f_bavail * there.f_frsize, int(free[1]) << 10 if free else 0)
    return MEMORY / name if room >= _ROOM else None


class MemoryFolders:
    """Folders of tests, in memory and one at a time, where there is room.

    A test may have changed what removes a folder, so that the next one removes it. The folder of one that failed is
    copied to where pytest keeps such, which `keep` makes.
    """

    def __init__(self, keep: Callable[[str], Path]) -> None:
        self._keep = keep
        self._top = in_memory(f"{_NAME}{os.getpid()}")
        self._last: Path | None = None
        self._failed = 0
        for left in MEMORY.glob(f"{_NAME}*"):  # by runs that were killed
            if not Path("/proc", left.name.removeprefix(_NAME)).exists():
                shutil.rmtree(left, ignore_errors=True)

    def fresh(self, name: str, failed: int) -> Path:
        """The folder of the next test. failed: how many have failed so far."""
        self.remove(failed)
        short = re.sub(r"\W", "_", name)[:30]
        if self._top is None:
            return self._keep(short)
        self._top.mkdir(mode=0o700, exist_ok=True)
        self._last, self._failed = Path(tempfile.mkdtemp(prefix=f"{short}-", dir=self._top)), failed
        return self._last

    def remove(self, failed: int) -> None:
        """Remove that of the last test."""
        if self._last is None:
            return
        if failed > self._failed:
            with contextlib.suppress(OSError):  # of sockets, for one, there is no copy
                shutil.copytree(self._last, self._keep(self._last.name), symlinks=True, dirs_exist_ok=True)
        shutil.rmtree(self._last)
        self._last = None

    def close(self, failed: int) -> None:
        self.remove(failed)
        if self._top is not None:
            shutil.rmtree(self._top, ignore_errors=True)  # a process that is ending may write still
