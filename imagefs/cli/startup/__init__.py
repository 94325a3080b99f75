"""`imagefs startup …`: where starts of jobs spend their time. Each command is a module of its own."""

from __future__ import annotations

__all__ = ["COMMANDS"]

COMMANDS = {
    "mark": "Write that a stage begins, ends, or that something happened.",
    "trace": "Run a command and write its stages as events.",
    "collect": "Copy the events of this node to the collector folder.",
    "import": "Turn data of other tools into events.",
    "report": "Show where starts lost time, on which node, and what would help.",
    "export": "Write a start for Perfetto, OpenTelemetry, or as a picture.",
}
"""Name and one line of each command; `imagefs.cli.startup.NAME` holds its click command as `command`."""

_PAGE = """\
Usage: imagefs startup COMMAND [OPTIONS] [ARGUMENTS]

  Where the start of a training job spends its time: events of image,
  dependencies, checkpoint and the job itself, and reports made of them.

Commands:
{commands}

Options:
  -h, --help  Print this page; `imagefs startup COMMAND --help` prints that command's.
"""


def __getattr__(name: str) -> object:
    """`command`, the click group: `mark` and `trace` need none of what it takes."""
    if name != "command":
        raise AttributeError(name)
    from imagefs.config import nearest
    from stripefs.cli.lazy import group
    from stripefs.cli.program import Program

    command = group(Program("startup", __name__, COMMANDS, _PAGE), lambda word: nearest(word, COMMANDS))
    command.help = "Show where the start of a job spends its time."
    return command
