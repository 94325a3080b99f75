"""Output of commands for people: rates, durations, tables, the status line of long commands, errors and exit codes.

An error becomes a line on standard error and an exit code here alone, and SIGTERM becomes an exception.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from stripefs.errors import StripefsError

__all__ = [
    "INTERRUPTED",
    "broken_pipe_code",
    "columns",
    "duration",
    "ended_by_sigterm",
    "guarded",
    "line",
    "rate",
    "status_line",
    "table",
    "tell",
    "wants_debug",
]


INTERRUPTED = 130  # a shell's exit code for a process that SIGINT ended


def line(what: str, hint: str = "", *, program: str = "stripefs") -> str:
    """The text of one line for standard error, whatever newlines the parts hold."""
    return " ".join(f"{program}: {what}; {hint}".split() if hint else f"{program}: {what}".split())


def tell(what: str, hint: str = "", *, program: str = "stripefs") -> None:
    """Write one line to standard error. That nobody can read it, or that the disk of a log is full, is no reason to
    fail; so it is written past the stream, which would fail once more when the program ends."""
    text = line(what, hint, program=program) + "\n"
    with contextlib.suppress(OSError):
        try:
            descriptor = sys.stderr.fileno()
        except io.UnsupportedOperation:  # somebody in this process takes it
            sys.stderr.write(text)
        else:
            os.write(descriptor, text.encode(errors="backslashreplace"))


def wants_debug(arguments: Sequence[str], program: str = "stripefs") -> bool:
    """True if the level debug was asked for, known even where parsing failed."""
    text = " ".join(arguments).replace("_", "-")
    asked = "log-level=debug" in text or "--log-level debug" in text
    return asked or os.environ.get(f"{program.upper()}_LOG_LEVEL", "").lower() == "debug"


def broken_pipe_code() -> int:
    """The exit code when the reader of our output went away, which click's own is; nothing is flushed at exit then."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def exit_code(error: BaseException) -> int:
    """Exit code of a command for an error: its own code, 130 for an interrupt, 1 for a bug."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    return error.exit_code if isinstance(error, StripefsError) else 1


def guarded(
    body: Callable[[], int],
    *,
    debug: bool,
    code_of: Callable[[BaseException], int] = exit_code,
    program: str = "stripefs",
) -> int:
    """The exit code of `body`, or that of the error that ended it (by `code_of`) after telling the user about it."""
    try:
        code = body()
        sys.stdout.flush()
    except BrokenPipeError:
        return broken_pipe_code()
    except KeyboardInterrupt as error:
        tell("interrupted", program=program)
        return code_of(error)
    except Exception as error:  # noqa: BLE001 the border of the command: a user never sees a traceback unasked
        if debug:
            import traceback

            traceback.print_exception(error)
        return code_of(_report(error, program, debug=debug))
    return code


def _report(error: Exception, program: str, *, debug: bool) -> BaseException:
    """The error that matters (the only one of a group), after it was told."""
    cause: BaseException = error
    while isinstance(cause, BaseExceptionGroup) and len(cause.exceptions) == 1:
        cause = cause.exceptions[0]
    if isinstance(cause, ImportError):
        from stripefs.extras import missing

        cause = missing(cause) or cause
    if isinstance(cause, StripefsError) and cause.reported:
        return cause
    if isinstance(cause, StripefsError):
        tell(cause.message, cause.hint, program=program)
    else:
        hint = "" if debug else f"run it again with {program.upper()}_LOG_LEVEL=debug and report what it prints"
        tell(f"internal error: {type(cause).__name__}: {cause}", hint, program=program)
    return cause


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends what happens inside as Ctrl-C does, so that it takes away what it has put somewhere."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


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
