"""Cgroups of tests, of version 1 or 2, with one limit each."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.waiting import eventually

__all__ = ["DiskCgroup", "MemoryCgroup"]

_TOP = Path("/sys/fs/cgroup")


class _Cgroup:
    """A cgroup of its own; gone when closed. one and two: the controller's name in either version."""

    def __init__(self, one: str, two: str) -> None:
        self._first = (_TOP / one / "cgroup.procs").exists()
        if not self._first and two not in (_TOP / "cgroup.subtree_control").read_text().split():
            (_TOP / "cgroup.subtree_control").write_text(f"+{two}")
        self.folder = (_TOP / one if self._first else _TOP) / f"bootseer-test-{os.getpid()}"
        self.folder.mkdir()

    def _write(self, one: tuple[str, str], two: tuple[str, str]) -> None:
        file, value = one if self._first else two
        (self.folder / file).write_text(value)

    @property
    def wrapper(self) -> tuple[str, ...]:
        """A command that runs the one behind it inside."""
        return ("sh", "-c", f'echo $$ > {self.folder}/cgroup.procs && exec "$@"', "sh")

    def members(self) -> list[int]:
        return [int(pid) for pid in (self.folder / "cgroup.procs").read_text().split()]

    def close(self) -> None:
        eventually(lambda: not self.members(), "the end of the processes in the cgroup")
        self.folder.rmdir()


class MemoryCgroup(_Cgroup):
    """Memory of `limit` bytes, page cache included."""

    def __init__(self, limit: int) -> None:
        super().__init__("memory", "memory")
        self._write(("memory.limit_in_bytes", str(limit)), ("memory.max", str(limit)))

    def killed(self) -> int:
        """Processes that the kernel killed here for want of memory."""
        text = (self.folder / ("memory.oom_control" if self._first else "memory.events")).read_text()
        return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill "))


class DiskCgroup(_Cgroup):
    """Reads of `rate` bytes a second at most from the block device MAJOR:MINOR."""

    def __init__(self, device: str, rate: int) -> None:
        super().__init__("blkio", "io")
        self._write(("blkio.throttle.read_bps_device", f"{device} {rate}"), ("io.max", f"{device} rbps={rate}"))
