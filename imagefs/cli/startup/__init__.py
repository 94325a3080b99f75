"""`imagefs startup …`: where starts of jobs spend their time. The module of a command is loaded when it is asked for.

`mark` and `trace` are read without click: the one is called often, the other delays what it runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stripefs import startup_events
from stripefs.cli.fastpath import Flag, read
from stripefs.cli.output import tell
from stripefs.errors import ConfigError

__all__ = ["COMMANDS", "TRACE", "plain_startup", "run_trace"]

COMMANDS = {
    "mark": "Write that a stage begins, ends, or that something happened.",
    "trace": "Run a command and write its stages as events.",
    "collect": "Copy the events of this node to the collector folder.",
    "import": "Turn data of other tools into events.",
    "report": "Show where starts lost time, on which node, and what would help.",
    "export": "Write a start for Perfetto, OpenTelemetry, or as a picture.",
}
"""Name and one line of each command."""

_FAMILIES = {
    "collect": ("collect",),
    "events": ("mark", "trace", "import", "export"),
    "report": ("report",),
}
"""By module of this package, the commands that it holds, each as NAME_command."""

_PAGE = """\
Usage: imagefs startup COMMAND [OPTIONS] [ARGUMENTS]

  Where the start of a training job spends its time: events of image,
  dependencies, checkpoint and the job itself, and reports made of them.

Commands:
{commands}

Options:
  -h, --help  Print this page; `imagefs startup COMMAND --help` prints that command's.
"""


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
            return lambda: run_trace(values, line[1])
    return None


def run_trace(values: Mapping[str, Any], command: Sequence[str]) -> int:
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


def __getattr__(name: str) -> object:
    """`command`, the click group."""
    if name != "command":
        raise AttributeError(name)
    from imagefs.config import IMAGEFS
    from stripefs.cli.commands import group
    from stripefs.cli.program import Program

    program = Program(
        "startup", __name__, COMMANDS, _PAGE, lambda word: IMAGEFS.nearest(word, COMMANDS), families=_FAMILIES
    )
    return group(program, "Show where the start of a job spends its time.")
