"""CPU time and memory of a process and all below it, read from /proc.

A process that ends and is waited for hands its CPU time to its parent, so the sum over the living, with what they
inherited, stays right across a worker that is replaced.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

__all__ = [
    "PeakMemory",
    "cpu_seconds",
    "cpu_times",
    "kill",
    "kill_tree",
    "machine_cpu_seconds",
    "matching",
    "own_cpu_seconds",
    "pss",
    "tree",
]

_TICK = os.sysconf("SC_CLK_TCK")


def tree(root: int) -> list[int]:
    """`root` and its living descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, queue = [], [root]
    while queue:
        pid = queue.pop()
        found.append(pid)
        queue += children.get(pid, [])
    return found


def cpu_seconds(root: int) -> float:
    """User and system time that the tree below `root` has used so far, in steps of a clock tick (10 ms)."""
    return sum(cpu_times(root))


def cpu_times(root: int) -> tuple[float, float]:
    """User time, and system time, of `cpu_seconds`."""
    ticks = [[int(field) for field in _stat(pid)[11:15]] for pid in tree(root)]
    own = [one for one in ticks if one]  # of a process that has just ended there is nothing left
    return sum(one[0] + one[2] for one in own) / _TICK, sum(one[1] + one[3] for one in own) / _TICK


def own_cpu_seconds() -> float:
    """User and system time of this process and of those it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def machine_cpu_seconds() -> float:
    """Seconds that all processors of this machine were neither idle nor waiting for a disk, since it was started."""
    user, nice, system, _idle, _disk, *others = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9])
    return (user + nice + system + sum(others)) / _TICK


def pss(pids: list[int]) -> int:
    """Bytes: the proportional set size of all of them, so that pages they share count once. 0 for those gone."""
    total = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return total * 1024


def kill(*pids: int) -> None:
    """End these processes by SIGKILL, those that are still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def kill_tree(root: int) -> None:
    """End `root`, 0 for none, and its descendants by SIGKILL."""
    kill(*(tree(root) if root else ()))


def matching(file: str, wanted: Callable[[list[bytes]], bool]) -> list[int]:
    """Processes whose /proc/PID/`file`, a list of strings as `environ` and `cmdline` are, is `wanted`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if wanted((entry / file).read_bytes().split(b"\0")):
                    found.append(int(entry.name))
    return found


class PeakMemory:
    """Samples the tree below `root` while the `with` block runs; `peak` is the most it held, in bytes."""

    def __init__(self, root: int, period: float = 0.5) -> None:
        self.peak = 0
        self._root = root
        self._period = period
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="peak-memory", daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while True:
            self.peak = max(self.peak, pss(tree(self._root)))
            if self._stop.wait(self._period):
                return


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; [] where the process is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return text.rpartition(")")[2].split()
