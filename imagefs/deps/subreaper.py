"""Runs an installer and all that it starts: a program of its own, so that whatever daemonises becomes its child.

    python -I -S subreaper.py REPORT PARENT COMMAND…

REPORT is a descriptor, or the path of a file, to which it writes one line of JSON when the command runs, `{}`, and
another in the end: `status`, as a shell would say it, and `survivors`, pid and command line of processes that still ran
when the command had long ended, and were ended. PARENT is the process that started it: signals that come from it are
passed on to the command. A terminal sends its own to the command itself, and so does whoever signals the whole group,
which all are in. In a container this is process 1, all of whose signals come from outside, and PARENT is 0;
the interpreter may be any CPython from 3.7 on there.

When PARENT dies everything is killed, so that nobody goes on writing into a directory that nobody looks after. When
this process is killed, the command is too.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import NoReturn

__all__ = ["FORWARDED", "main"]

FORWARDED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)

_PARENT_DIED = signal.SIGRTMAX
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # include/uapi/linux/prctl.h

_GRACE = 2.0
"""Seconds that processes get to end by themselves when the command has ended, and again when they were asked to."""
_STUCK = 10.0
"""Seconds after which those that a kill does not end are left: they wait in the kernel."""
_PAUSE = 0.02

_libc = ctypes.CDLL(None, use_errno=True)


def main(report: int, parent: int, command: list[str]) -> int:
    """The program; its exit status, which says nothing about the command. Raises OSError before the command runs.

    report: a descriptor.
    """
    os.set_inheritable(report, False)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a process that ignores it gets no exit status of children
    waited = {*FORWARDED, signal.SIGCHLD, _PARENT_DIED}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    if parent:  # without one, all ends with this process
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        _prctl(_PR_SET_PDEATHSIG, _PARENT_DIED)
    if os.getppid() != parent:
        return 1
    child = os.fork()
    if child == 0:
        _exec(command, os.getppid(), before)
    _tell(report, {})
    status = None
    while status is None:
        number, sender = _next(waited)
        if number == _PARENT_DIED:
            _end(signal.SIGKILL, _STUCK)
            return 1
        if number == signal.SIGCHLD:
            status = _reap(child)
        elif sender == parent:
            os.kill(child, number)
    _tell(report, {"status": status if status >= 0 else 128 - status, "survivors": _end_survivors()})
    return 0


def _next(waited: set[signal.Signals]) -> tuple[int, int]:
    """Wait for one of these signals; it, and who sent it."""
    received = signal.sigwaitinfo(waited)
    return received.si_signo, received.si_pid


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")


def _tell(report: int, what: dict[str, object]) -> None:
    with contextlib.suppress(BrokenPipeError):  # the parent is dying, of which a signal will tell
        os.write(report, json.dumps(what).encode() + b"\n")


def _exec(command: list[str], reaper: int, mask: set[int | signal.Signals]) -> NoReturn:
    status = 126
    try:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and that would be inherited
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if os.getppid() == reaper:
            os.execvp(command[0], command)  # noqa: S606
    except OSError as error:
        status = 127 if error.errno == errno.ENOENT else 126
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        sys.stderr.flush()
    finally:
        os._exit(status)


def _reap(child: int) -> int | None:
    """Take note of whoever ended; how `child` did, as a negative number by a signal, or None."""
    found = None
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return found
            if pid == child:
                found = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    except ChildProcessError:
        return found


def _end_survivors() -> list[tuple[int, str]]:
    """End the processes that have not ended after a while. Answers them: process id and command line."""
    if _all_ended(_GRACE):
        return []
    found = [(pid, _command_line(pid)) for pid in _descendants()]
    if not _end(signal.SIGTERM, _GRACE):
        _end(signal.SIGKILL, _STUCK)
    return found


def _end(number: signal.Signals, patience: float) -> bool:
    """Signal all there is below this process; whether they were gone in time."""
    deadline = time.monotonic() + patience
    while True:
        for pid in _descendants():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        if number != signal.SIGKILL:
            return _all_ended(patience)
        if _all_ended(_PAUSE):
            return True
        if time.monotonic() > deadline:
            return False


def _all_ended(patience: float) -> bool:
    """Tells whether there is no child any more, at the latest after so many seconds: orphans are children of this
    process."""
    deadline = time.monotonic() + patience
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE)


def _descendants() -> list[int]:
    """Every process below this one that has not ended, parents before their children."""
    below: dict[int, list[int]] = {}
    for pid, parent in _processes():
        below.setdefault(parent, []).append(pid)
    found = [os.getpid()]
    for pid in found:
        found += below.get(pid, [])
    return found[1:]


def _processes() -> Iterator[tuple[int, int]]:
    """Pid and parent of every process that has not ended."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    state, parent = file.read().rpartition(b")")[2].split()[:2]
            except OSError:
                continue  # it has ended
            if state not in (b"Z", b"X"):
                yield int(name), int(parent)


def _command_line(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read(1000).rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _opened(report: str) -> int:
    return int(report) if report.isdigit() else os.open(report, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)


if __name__ == "__main__":
    sys.exit(main(_opened(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
