"""What is noted of a directory that is installed into, outside of it; and which directory that is.

Whoever puts another directory in its place has taken what was installed away. Numbers of devices change with a reboot,
and with each mount of an overlay, and the number of an inode is soon given to the next directory. But when a directory
came into being stays, and no two that stood at one path have that in common.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from imagefs.daemon import processes
from stripefs.appearing import appearing

__all__ = ["Mark", "User", "living", "load", "save", "which"]

User = tuple[int, int]
"""A process, and when it began."""

_AT_FDCWD, _BTIME = -100, 0x800  # STATX_BTIME of include/uapi/linux/stat.h

_statx = getattr(ctypes.CDLL(None, use_errno=True), "statx", None)  # not in every C library


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
    with appearing(path) as file:
        file.write(json.dumps(mark._asdict()).encode())


def living(users: Sequence[Sequence[int]]) -> list[User]:
    """Those that have not ended. Raises ValueError for what are no users."""
    return [(process, began) for process, began in users if began and processes.began(process) == began]


def which(path: str) -> str:
    """Which directory stands at `path`: when it came into being, where the file system knows that. Raises OSError."""
    there, more = os.stat(path), _Statx()
    if _statx is None or _statx(_AT_FDCWD, os.fsencode(path), 0, _BTIME, ctypes.byref(more)):
        more.mask = 0
    if more.mask & _BTIME and more.born.seconds:  # it may be 0 on a disk that was written as an image
        return f"born {more.born.seconds}.{more.born.nanoseconds:09}"
    return f"inode {there.st_dev} {there.st_ino}"


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_int64), ("nanoseconds", ctypes.c_uint32), ("spare", ctypes.c_int32))


class _Statx(ctypes.Structure):
    """struct statx of statx(2)."""

    _fields_ = (
        ("mask", ctypes.c_uint32),
        ("before", ctypes.c_uint8 * 60),
        ("accessed", _Time),
        ("born", _Time),
        ("rest", ctypes.c_uint8 * 160),
    )
