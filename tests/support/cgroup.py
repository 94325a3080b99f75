"""Cgroups of tests, of version 1 or 2, with a limit of memory."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.waiting import eventually

__all__ = ["MemoryCgroup"]

_TOP = Path("/sys/fs/cgroup")


class MemoryCgroup:
    """A cgroup of its own with memory of `limit` bytes, page cache included; gone when closed."""

    def __init__(self, limit: int) -> None:
        self._first = (_TOP / "memory/cgroup.procs").exists()
        if not self._first and "memory" not in (_TOP / "cgroup.subtree_control").read_text().split():
            (_TOP / "cgroup.subtree_control").write_text("+memory")
        self.folder = (_TOP / "memory" if self._first else _TOP) / f"bootseer-test-{os.getpid()}"
        self.folder.mkdir()
        (self.folder / ("memory.limit_in_bytes" if self._first else "memory.max")).write_text(str(limit))

    @property
    def wrapper(self) -> tuple[str, ...]:
        """A command that runs the one behind it inside."""
        return ("sh", "-c", f'echo $$ > {self.folder}/cgroup.procs && exec "$@"', "sh")

    def members(self) -> list[int]:
        return [int(pid) for pid in (self.folder / "cgroup.procs").read_text().split()]

    def killed(self) -> int:
        """Processes that the kernel killed here for want of memory."""
        text = (self.folder / ("memory.oom_control" if self._first else "memory.events")).read_text()
        return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill "))

    def close(self) -> None:
        eventually(lambda: not self.members(), "the end of the processes in the cgroup")
        self.folder.rmdir()
