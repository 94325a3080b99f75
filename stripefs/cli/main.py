"""Entry point of `stripefs`: its commands and its page (see `stripefs.cli.program`)."""

from __future__ import annotations

import os

from stripefs.cli.program import Program

__all__ = ["COMMANDS", "PROGRAM", "page", "run"]

COMMANDS = {
    "mount": "Show the files of SOURCE below MOUNTPOINT.",
    "umount": "Take a mount away and wait until it is gone.",
    "status": "Rates, limits, faults and settings of the mounts of this host.",
    "probe": "One stream against parallel reads, and the limit that binds.",
    "info": "Layout, parts and data hosts of a file.",
    "recover": "A file from what fsync made durable before its writer died.",
    "cp": "Copy files and directories between stores and this host.",
    "ls": "List directories.",
    "cat": "Write files to standard output.",
    "rm": "Remove files and directories.",
    "du": "Show the room that files take.",
    "gc": "Remove leftovers of writers that died.",
    "warm": "Bring files into the cache on local disk before they are wanted.",
    "cache": "List, check, remove and pin files in the cache on local disk.",
    "completion": "Print the completion script for bash, zsh or fish.",
}
"""Name and one line of each command."""

_FAMILIES = {
    "cache": ("cache", "warm"),
    "files": ("ls", "cat", "rm", "du"),
    "gc": ("gc", "recover"),
    "mount": ("mount", "umount"),
}
"""By module of `stripefs.cli`, the commands that it holds, each as NAME_command."""

_PAGE = """\
Usage: stripefs COMMAND [OPTIONS] [ARGUMENTS]

  Mount HDFS, S3 or a directory; read and write its big files at all data hosts
  at once. Mounts are read-only unless --rw is given.

Commands:
{commands}

Options:
  --version   Print the version.
  -h, --help  Print this page; `stripefs COMMAND --help` prints that command's.

Example:
  stripefs mount hdfs://namenode:8020/checkpoints /mnt/checkpoints
"""


def _hint(word: str) -> str:
    from stripefs.config import nearest

    is_source = "://" in word or os.path.isdir(word)
    return f"did you mean stripefs mount {word} …?" if is_source else nearest(word, COMMANDS)


PROGRAM = Program("stripefs", "stripefs.cli", COMMANDS, _PAGE, _hint, families=_FAMILIES)


def page() -> str:
    """The text of `stripefs --help`."""
    return PROGRAM.page()


def run() -> int:
    """The console script: handle sys.argv and answer the exit code."""
    return PROGRAM.run()
