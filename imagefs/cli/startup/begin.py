"""`imagefs startup mark`, read without click: a job's script may call it often."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stripefs import startup_events

__all__ = ["plain_startup"]


def plain_startup(arguments: Sequence[str]) -> Callable[[], int] | None:
    """What `imagefs startup` with these arguments does, None where click is to read them."""
    if not arguments or any(word in ("-h", "--help") for word in arguments):
        return None
    if arguments[0] == "mark":
        return lambda: startup_events.main(arguments, "imagefs startup")
    return None
