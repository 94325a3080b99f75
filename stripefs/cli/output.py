"""Output of commands for people: rates, durations, tables, and the status line of commands that take their time."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

__all__ = ["columns", "duration", "rate", "status_line", "table"]


def rate(value: float) -> str:
    """Bytes a second with a decimal unit, as disks and networks are sold: `222 MB/s`."""
    for unit in ("B/s", "kB/s", "MB/s", "GB/s"):
        if abs(value) < 1000 or unit == "GB/s":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if value >= 100 or value == int(value) else f"{value:.1f} {unit}"


def duration(seconds: float) -> str:
    """Seconds in the two units that matter: `2 d 3 h`, `4 min 5 s`, `12 s`."""
    whole = int(seconds)
    for name, size, smaller, smaller_size in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size} {name} {whole % size // smaller_size} {smaller}"
    return f"{whole} s"


def table(rows: Iterable[tuple[str, str]]) -> str:
    """Names and values in two columns; a name that repeats is shown once, a row without a value is dropped."""
    kept = [(name, value) for name, value in rows if value]
    width = max((len(name) for name, _ in kept), default=0)
    lines, last = [], ""
    for name, value in kept:
        lines.append(f"{'' if name == last else name:{width}}  {value}")
        last = name
    return "\n".join(lines)


def columns(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with heads; the first column to the left, the others to the right."""
    cells = [list(heads), *map(list, rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(heads))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    )


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
