"""The process that opened a file for writing: it still holds the file, has closed it, or is killed by a signal.

The kernel sends FLUSH for every descriptor that is closed: also for the copies that a fork, a subprocess, dup2 or a
shell's redirection made, and also while a killed process is taken apart. None of these may publish half a file. The
state of the process that opened the file tells them apart:

- one of its threads is being ended by a signal (/proc/PID/stat: exiting, and a signal in exit_code): `KILLED`
- it has a descriptor to write the file (flags and an inode number in /proc/PID/fdinfo; the descriptor whose closing
  made the kernel ask is out of that table by then): `HOLDS`
- it is of a PID namespace that this process does not see, so nothing is known of it: `UNSEEN`
- anything else, also where we may not look: `GONE`

Process numbers are used again. So a writer is held by a pidfd, where the kernel has those, and what /proc says of the
number counts only if the pidfd's process is not gone by then. Elsewhere the time at which it started tells.
"""

from __future__ import annotations

import contextlib
import enum
import os
import signal
from collections.abc import Set
from dataclasses import dataclass, field

__all__ = ["WriterProcess", "WriterState", "find_writer", "sees_all_processes", "writer_state"]

_INITIAL_NAMESPACE = "pid:[4026531836]"
"""PROC_PID_INIT_INO of include/linux/proc_ns.h: the namespace of which all others are a part."""

_EXITING = 0x4
"""PF_EXITING of include/linux/sched.h, in the flags of /proc/PID/stat."""

_STATE, _FLAGS, _STARTED, _EXIT_CODE = 0, 6, 19, 49
"""Fields of /proc/PID/stat behind the command's name: the 3rd, 9th, 22nd and 52nd of proc(5)."""


class WriterState(enum.Enum):
    HOLDS = "holds"
    KILLED = "killed"
    GONE = "gone"
    UNSEEN = "unseen"


class PidFd:
    """A descriptor of a process, closed with the last reference to this object. Raises OSError."""

    def __init__(self, process: int) -> None:
        self._number = -1
        self._number = os.pidfd_open(process)

    def __del__(self) -> None:
        if self._number >= 0:
            os.close(self._number)

    @property
    def reaped(self) -> bool:
        """True if the process was reaped, so that its number may be that of another one."""
        with contextlib.suppress(PermissionError):  # it is there, and somebody else's
            try:
                signal.pidfd_send_signal(self._number, 0)
            except ProcessLookupError:
                return True
        return False


@dataclass(frozen=True, slots=True)
class WriterProcess:
    """A process: its number, 0 where it is not known here, and its start in clock ticks since the machine's."""

    pid: int
    started: int
    pidfd: PidFd | None = field(default=None, compare=False)


def sees_all_processes() -> bool:
    """True if writers of every PID namespace of this machine are seen here."""
    try:
        own = os.readlink("/proc/self") == str(os.getpid())
        return own and os.readlink("/proc/self/ns/pid") == _INITIAL_NAMESPACE
    except OSError:
        return False


def find_writer(thread: int) -> WriterProcess:
    """The process of `thread`, a number as requests of the kernel carry it; 0 for one of another PID namespace.

    The thread waits in open(2) meanwhile, so its number is not another one's.
    """
    try:
        if not thread or os.readlink("/proc/self") != str(os.getpid()):  # a /proc of another namespace
            return WriterProcess(0, 0)
        with open(f"/proc/{thread}/status", "rb") as file:
            process = next(int(line[5:]) for line in file if line.startswith(b"Tgid:"))
        started = int(_stat(process)[_STARTED])
    except (OSError, StopIteration, ValueError, IndexError):
        return WriterProcess(0, 0)
    try:
        return WriterProcess(process, started, PidFd(process))
    except OSError:  # a kernel or a sandbox without them, or no descriptor is left
        return WriterProcess(process, started)


def writer_state(writer: WriterProcess, inodes: Set[int]) -> WriterState:
    """The relation of `writer` to the file that it writes now, which has shown these inode numbers.

    Reads /proc, so call it in a thread.
    """
    if not writer.pid:
        return WriterState.UNSEEN
    try:
        found = _live_state(writer, inodes)
    except (OSError, ValueError, IndexError):
        return WriterState.GONE
    return WriterState.GONE if writer.pidfd is not None and writer.pidfd.reaped else found


def _live_state(writer: WriterProcess, inodes: Set[int]) -> WriterState:
    fields = _stat(writer.pid)
    if int(fields[_STARTED]) != writer.started:
        return WriterState.GONE
    if fields[_STATE] in (b"Z", b"X") or int(fields[_FLAGS]) & _EXITING:
        return WriterState.KILLED if int(fields[_EXIT_CODE]) & 0x7F else WriterState.GONE
    return WriterState.HOLDS if _may_write(f"/proc/{writer.pid}/fdinfo", inodes) else WriterState.GONE


def _stat(process: int) -> list[bytes]:
    """The fields behind the command's name, which may hold anything, blanks and brackets included."""
    with open(f"/proc/{process}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()


def _may_write(folder: str, inodes: Set[int]) -> bool:
    """True if a descriptor may write one of these. Only fdinfo is read: a stat through fd would ask our own mount."""
    for name in os.listdir(folder):
        try:
            with open(f"{folder}/{name}", "rb") as file:
                facts = dict(line.split(b":", 1) for line in file.read().splitlines() if b":" in line)
            if int(facts[b"ino"]) in inodes and int(facts[b"flags"], 8) & os.O_ACCMODE != os.O_RDONLY:
                return True
        except (OSError, KeyError):  # closed since; kernels before 5.14 name no inode
            continue
    return False
