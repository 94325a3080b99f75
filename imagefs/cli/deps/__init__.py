"""`imagefs deps …`: dependency snapshots. The module of a command is loaded when it is asked for."""

from __future__ import annotations

__all__ = ["COMMANDS"]

COMMANDS = {
    "run": "Install by any command, or mount what it installs.",
    "pip": "Install by pip.",
    "uv": "Install by uv.",
    "venv": "Make a virtual environment.",
    "key": "Show the key of an installation and its components.",
    "diff": "Show the differences of two keys or two snapshots.",
    "ls": "The dependency snapshots in a store.",
    "inspect": "Show the key of a snapshot and its image.",
    "lock": "Print the distributions of a snapshot as a requirements file.",
    "verify": "Read a snapshot and check every byte.",
    "rm": "Take snapshots out of a store.",
    "gc": "Remove snapshots that were unused for long.",
}
"""Name and one line of each command."""

_FAMILIES = {
    "install": ("run", "pip", "uv", "venv", "key"),
    "snapshots": ("diff", "ls", "inspect", "lock", "verify", "rm", "gc"),
}
"""By module of this package, the commands that it holds, each as NAME_command."""

_PAGE = """\
Usage: imagefs deps COMMAND [OPTIONS] [ARGUMENTS]

  Install the packages of a job's start once: captured, checked, kept in a
  store, and mounted at the same path on later starts and other nodes.

Commands:
{commands}

Options:
  -h, --help  Print this page; `imagefs deps COMMAND --help` prints that command's.
"""


def __getattr__(name: str) -> object:
    """`command`, the click group: those that `fastpath` reads need none of what it takes."""
    if name != "command":
        raise AttributeError(name)
    from imagefs.config import IMAGEFS
    from stripefs.cli.commands import group
    from stripefs.cli.program import Program

    program = Program(
        "deps", __name__, COMMANDS, _PAGE, lambda word: IMAGEFS.nearest(word, COMMANDS), families=_FAMILIES
    )
    return group(program, "Install the packages of a job's start once, and mount them everywhere.")
