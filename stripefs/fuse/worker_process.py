"""The supervisor's view of its workers: their processes and channels, crash loops, and the signals it waits for.

`CrashLoop` tells from the last deaths of workers that the next one will fare no better, or that there is no hurry to
start it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from stripefs.errors import MountError
from stripefs.fuse import ipc

__all__ = ["CrashLoop", "WorkerProcess", "exit_name", "has_terminal", "pidfd", "signals"]

_log = logging.getLogger(__name__)


class WorkerProcess:
    """A worker and our end of its channel. `pidfd` becomes readable when it ends; reap it then.

    connected: it has not closed its end of the channel yet.
    """

    def __init__(self, program: str, mountpoint: str) -> None:
        """`program` is the module to run."""
        self.channel, theirs = ipc.pair()
        # -P: the directory we run in is no source of code. The worker never uses the mountpoint; ps shows it.
        command = [sys.executable, "-P", "-m", program, str(theirs.fileno()), str(os.getpid())]
        with theirs:
            self._process = subprocess.Popen(
                [*command, mountpoint], pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, cwd="/"
            )
        self.pidfd = os.pidfd_open(self._process.pid)
        self.connected = True

    def send(self, message: dict[str, Any], descriptors: list[int] | None = None) -> None:
        with contextlib.suppress(OSError):  # it died: the loop will see that
            ipc.send(self.channel, message, descriptors or ())

    def message(self) -> dict[str, Any] | None:
        """The next message; None when the worker closed its end."""
        try:
            return ipc.receive(self.channel)[0]
        except EOFError:
            self.connected = False
            return None

    def kill(self) -> None:
        self._process.kill()

    def wait_or_kill(self, within: float) -> None:
        """Wait for its end, and enforce it after `within` seconds."""
        try:
            self._process.wait(within)
        except subprocess.TimeoutExpired:
            _log.warning("the worker did not leave within %.0f s and is killed", within)
            self._process.kill()
        self.reap()

    def reap(self) -> int:
        """Its exit status, negative for a signal; waits for it."""
        status = self._process.wait()
        os.close(self.pidfd)
        self.channel.close()
        return status


def exit_name(status: int) -> str:
    """The end of a process, for messages, by its exit status as `reap` answers it."""
    return signal.Signals(-status).name if status < 0 else f"exit status {status}"


_DEATHS = 3
_DEATHS_WITHIN = 60.0

_MANY = 10
_MANY_WITHIN = 10.0


class CrashLoop:
    """The last deaths: when each was, in seconds, and how many requests had been answered until then."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, int]] = []

    def record(self, now: float, answered: int) -> None:
        self._seen = [*self._seen[1 - _MANY :], (now, answered)]

    def clear(self) -> None:
        """A death that was wanted says nothing, and neither do those before it."""
        self._seen.clear()

    @property
    def diagnosis(self) -> str:
        """`3 workers died within 5 s without answering anything` where that is so, else nothing."""
        last = self._seen[-_DEATHS:]
        if len(last) < _DEATHS or last[-1][1] != last[0][1] or last[-1][0] - last[0][0] >= _DEATHS_WITHIN:
            return ""
        return f"{_DEATHS} workers died within {last[-1][0] - last[0][0]:.0f} s without answering anything"

    @property
    def rapid(self) -> bool:
        """True if they die of the same request each time, as it seems, which must not take the whole machine."""
        return len(self._seen) == _MANY and self._seen[-1][0] - self._seen[0][0] < _MANY_WITHIN


@contextlib.contextmanager
def signals(handled: Sequence[int]) -> Iterator[socket.socket]:
    """A socket from which the numbers of those signals that arrive can be read. On the main thread only."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        handlers = [signal.signal(number, lambda *_: None) for number in handled]
        try:
            yield ours
        finally:
            for number, handler in zip(handled, handlers, strict=True):
                signal.signal(number, handler)
            signal.set_wakeup_fd(before)


def pidfd(process: int, held: contextlib.ExitStack) -> int:
    """A descriptor that becomes readable when this process ends, -1 for process 0. Raises MountError when it has
    ended."""
    if not process:
        return -1
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        raise MountError(f"process {process}, which wanted the mount, has ended") from None
    held.callback(os.close, descriptor)
    return descriptor


def has_terminal() -> bool:
    """True if this process has a terminal, whose end SIGHUP then means."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
