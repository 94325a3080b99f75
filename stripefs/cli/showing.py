"""What commands that take their time show of it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["status_line"]

_EVERY = 0.1  # seconds between two drawings
_WIDTH = 78


@contextmanager
def status_line() -> Iterator[Callable[[str], None]]:
    """Takes what is being done, a line on standard error where a person may be looking, and wipes it in the end."""
    if not sys.stderr.isatty():
        yield lambda _line: None
        return
    drawn = float("-inf")

    def show(line: str) -> None:
        nonlocal drawn
        if time.monotonic() - drawn >= _EVERY:
            drawn = time.monotonic()
            sys.stderr.write(f"\r{line[:_WIDTH]}\x1b[K")
            sys.stderr.flush()

    try:
        yield show
    finally:
        sys.stderr.write("\r\x1b[K")
