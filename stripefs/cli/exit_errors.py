"""Exit errors: the one place where an error becomes a line on standard error and an exit code, and SIGTERM an
exception."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from stripefs.errors import StripefsError

__all__ = ["INTERRUPTED", "ended_by_sigterm", "guarded", "line", "nobody_reads", "tell", "wants_debug"]

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


def nobody_reads() -> int:
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
        return nobody_reads()
    except KeyboardInterrupt as error:
        tell("interrupted", program=program)
        return code_of(error)
    except Exception as error:  # noqa: BLE001 the border of the command: a user never sees a traceback unasked
        if debug:
            import traceback

            traceback.print_exception(error)
        return code_of(_told(error, program, debug=debug))
    return code


def _told(error: Exception, program: str, *, debug: bool) -> BaseException:
    """The error that matters (the only one of a group), after it was told."""
    cause: BaseException = error
    while isinstance(cause, BaseExceptionGroup) and len(cause.exceptions) == 1:
        cause = cause.exceptions[0]
    if isinstance(cause, ImportError):
        from stripefs.extras import missing

        cause = missing(cause) or cause
    if isinstance(cause, StripefsError) and cause.told:
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
