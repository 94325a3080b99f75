"""A bar on standard error, on a terminal only."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from imagefs.progress import Progress
from stripefs.cli.output import rate
from stripefs.units import format_size

__all__ = ["Bar", "shown"]

_EVERY = 0.1  # seconds between two drawings
_WIDTH = 24


class Bar(Progress):
    """Draws the stage under way on one line of `out`; `clear` takes it away."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._lock = threading.Lock()
        self._name = ""
        self._total = self._done = 0
        self._began = self._drawn = time.monotonic()

    def stage(self, name: str, total: int = 0) -> None:
        with self._lock:
            self._name, self._total, self._done = name, total, 0
            self._began = time.monotonic()
            self._draw()

    def advance(self, count: int) -> None:
        with self._lock:
            self._done += count
            if time.monotonic() - self._drawn >= _EVERY:
                self._draw()

    def clear(self) -> None:
        with self._lock:
            self._out.write("\r\x1b[K")
            self._out.flush()

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        self._out.write(f"\r{self.line()}\x1b[K")
        self._out.flush()

    def line(self) -> str:
        """What stands there now: stage, share, bytes, speed."""
        parts = [f"{self._name:<10}"]
        if self._total:
            share = min(1.0, self._done / self._total)
            full = int(share * _WIDTH)
            parts.append(f"[{'=' * full}{' ' * (_WIDTH - full)}] {share:4.0%}")
        if self._done:
            parts.append(format_size(self._done) + (f" of {format_size(self._total)}" if self._total else ""))
            parts.append(rate(self._done / max(1e-9, self._drawn - self._began)))
        return "  ".join(parts)


@contextmanager
def shown(*, quiet: bool = False) -> Iterator[Progress]:
    """A bar while this lasts; nothing where standard error is no terminal, or by wish."""
    if quiet or not sys.stderr.isatty():
        yield Progress()
        return
    bar = Bar(sys.stderr)
    try:
        yield bar
    finally:
        bar.clear()
