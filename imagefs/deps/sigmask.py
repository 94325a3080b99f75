"""The signal mask of threads beside a main thread that waits for a container or an installer."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

__all__ = ["signals_for_main"]

_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}
"""About the thread that made them."""


@contextlib.contextmanager
def signals_for_main() -> Iterator[None]:
    """Threads that begin in the block, by our hand or that of a store's client, take no signals: the main thread may be
    about to wait for them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
