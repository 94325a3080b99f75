"""Process 1 of a container's namespace, where what serves its tree runs there too.

Usually the runtime is process 1 itself. But crun ends only once it has no children any more, and every server in the
namespace is, or becomes, a child of process 1. So one process stands before the runtime: it passes signals on, reaps,
and ends as the runtime does, and all servers with it.
"""

from __future__ import annotations

import os
import signal
from typing import NoReturn

__all__ = ["SI_KERNEL", "stay_behind"]

SI_KERNEL = 0x80
"""si_code of what a terminal sends to its foreground processes."""

_OWN = {signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}
"""Not to be caught, or about this process alone."""


def stay_behind(report: int, *, terminal: bool) -> None:
    """Go on in a child, and be its process 1 here. `report` is for the child alone. Raises OSError.

    terminal: the child sits in the same foreground group, and gets what a terminal sends by itself.
    """
    passed = signal.valid_signals() - _OWN
    before = signal.pthread_sigmask(signal.SIG_BLOCK, passed)
    child = os.fork()
    if child:
        os.close(report)
        _stand_before(child, passed, terminal)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _stand_before(child: int, passed: set[signal.Signals], terminal: bool) -> NoReturn:
    while True:
        received = signal.sigwaitinfo(passed)
        if received.si_signo == signal.SIGCHLD:
            _reap(child)
        elif not (terminal and received.si_code == SI_KERNEL):
            os.kill(child, received.si_signo)


def _reap(child: int) -> None:
    """Whoever ended; with `child` this process ends too."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)
