"""Where `stripefs` starts.

The page of `stripefs --help` is written here from the table of commands without importing click or anything else
beyond what the bare interpreter has, because click alone costs as much as starting Python twice; every other
invocation goes on to `stripefs.cli.app`, which imports only the module of the command that was asked for.
"""

from __future__ import annotations

import os
import sys

__all__ = ["COMMANDS", "nobody_reads", "page", "run"]

COMMANDS = {
    "mount": "Show the files of SOURCE below MOUNTPOINT.",
    "umount": "Take a mount away and wait until it is gone.",
    "status": "Rates, limits, faults and settings of the mounts of this host.",
    "probe": "One stream against parallel reads, and the limit that binds.",
    "completion": "Print the completion script for bash, zsh or fish.",
}
"""Name and one line of each command; `stripefs.cli.NAME` holds its click command as `command`."""

_PAGE = """\
Usage: stripefs COMMAND [OPTIONS] [ARGUMENTS]

  Mount HDFS, S3 or a directory and read its big files from all data hosts at
  once. Mounts are read-only.

Commands:
{commands}

Options:
  --version   Print the version.
  -h, --help  Print this page; `stripefs COMMAND --help` prints that command's.

Example:
  stripefs mount hdfs://namenode:8020/checkpoints /mnt/checkpoints
"""


def page() -> str:
    """The text of `stripefs --help`."""
    width = max(map(len, COMMANDS))
    return _PAGE.format(commands="\n".join(f"  {name:{width}}  {line}" for name, line in COMMANDS.items()))


def nobody_reads() -> int:
    """The exit code when the reader of our output went away, which click's own is; nothing is flushed at exit then."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def run() -> int:
    """The console script: handle sys.argv and answer the exit code."""
    arguments = sys.argv[1:]
    if arguments in (["--help"], ["-h"]):
        try:
            sys.stdout.write(page())
            sys.stdout.flush()
        except BrokenPipeError:
            return nobody_reads()
        return 0
    if not arguments:
        sys.stderr.write(page())
        return 2
    from stripefs.cli.app import main

    return main(arguments)
