"""What a process that waits can hear besides its children: signals, and the end of another process."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator, Sequence

from stripefs.errors import MountError

__all__ = ["has_terminal", "pidfd", "signals"]


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
    """What becomes readable when this process ends, -1 for process 0. Raises MountError when it has ended."""
    if not process:
        return -1
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        raise MountError(f"process {process}, which wanted the mount, has ended") from None
    held.callback(os.close, descriptor)
    return descriptor


def has_terminal() -> bool:
    """Whether this process has a terminal, whose end SIGHUP then means."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
