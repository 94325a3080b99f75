"""`imagefs startup mark` and `trace`, read without click: the one is called often, the other delays what it runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stripefs import startup_events
from stripefs.cli.border import tell
from stripefs.cli.plain import Flag, read
from stripefs.errors import ConfigError

__all__ = ["TRACE", "plain_startup", "trace"]

TRACE = (
    Flag("events", "events", "The spool folder.  [$BOOTSEER_EVENTS]", metavar="DIR"),
    Flag("imports", "imports", "Time the imports of Python interpreters.  [on]", "either", default=True),
    Flag("unused", "unused", "Tell which packages are imported and not used.", "switch"),
    Flag("ready-file", "ready_file", "The start is over when this file appears.", metavar="FILE"),
)


def plain_startup(arguments: Sequence[str]) -> Callable[[], int] | None:
    """The body of `imagefs startup` with these arguments; None where click is to read them."""
    if arguments[:1] == ["mark"] and not any(word in ("-h", "--help") for word in arguments):
        return lambda: startup_events.main(arguments, "imagefs startup")
    if arguments[:1] == ["trace"] and "--" in arguments:
        line = read(arguments[1:], TRACE)
        if line is not None and line[1]:
            values = {flag.field: flag.unset for flag in TRACE} | line[0]
            return lambda: trace(values, line[1])
    return None


def trace(values: Mapping[str, Any], command: Sequence[str]) -> int:
    """Run a command with these values of `TRACE`; its exit status."""
    from imagefs.startup.tracer import run_traced

    folder = values["events"] or os.environ.get(startup_events.ENV_FOLDER, "")
    if not folder:
        raise ConfigError("no spool folder is named", hint="give --events DIR, or set BOOTSEER_EVENTS")
    return run_traced(
        command,
        folder,
        imports=values["imports"],
        unused=values["unused"],
        ready_file=values["ready_file"] and os.path.abspath(values["ready_file"]),
        tell=lambda text: tell(text, program="imagefs startup trace"),
    )
