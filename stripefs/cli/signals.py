"""What signals mean to a command."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["ended_by_sigterm"]


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends what happens inside as Ctrl-C does, so that it takes away what it has put somewhere."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
