"""What is noted of a directory that is installed into, outside of it; and which directory that is.

Whoever puts another directory in its place has taken what was installed away. Numbers of devices change with a reboot,
and with each mount of an overlay, and the number of an inode is soon given to the next directory. So a directory gets
an extended attribute with a random value; where the file system has no such attributes its device and inode count.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from imagefs.daemon import processes
from stripefs.osutil import atomic_file

__all__ = ["ATTRIBUTE", "Mark", "User", "label", "living", "load", "save", "which"]

User = tuple[int, int]
"""A process, and when it began."""

ATTRIBUTE = "user.imagefs.target"
"""Tells a directory from another one that is put in its place."""


class Mark(NamedTuple):
    """path: of the directory. directory: which one that is. key: what was installed there. finished: whether all of it
    is there, and known. users: who uses it."""

    path: str
    directory: str
    key: str
    finished: bool
    users: Sequence[User]


def load(path: Path) -> Mark | None:
    """The mark in a file; None where there is none, or one that makes no sense."""
    try:
        told = json.loads(path.read_text())
        users = [(int(process), int(began)) for process, began in told["users"]]
        mark = Mark(told["path"], told["directory"], told["key"], told["finished"] is True, users)
        return mark if all(isinstance(one, str) for one in mark[:3]) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def save(path: Path, mark: Mark) -> None:
    """Raises OSError."""
    with atomic_file(path) as file:
        file.write(json.dumps(mark._asdict()).encode())


def living(users: Sequence[Sequence[int]]) -> list[User]:
    """Those that have not ended. Raises ValueError for what are no users."""
    return [(process, began) for process, began in users if began and processes.began(process) == began]


def which(path: str) -> str:
    """Which directory stands at `path`. Raises OSError."""
    there = os.stat(path)
    with contextlib.suppress(OSError):  # it has none, or the file system knows of none
        return f"label {os.getxattr(path, ATTRIBUTE).decode(errors='replace')}"
    return f"inode {there.st_dev} {there.st_ino}"


def label(path: str) -> str:
    """Give the directory at `path` a label that no other one has, as far as its file system can; `which` it is then.
    Raises OSError."""
    with contextlib.suppress(OSError):
        os.setxattr(path, ATTRIBUTE, secrets.token_hex(16).encode())
    return which(path)
