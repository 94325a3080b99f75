"""Devices of the host that a container gets (`--device`)."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence

from imagefs.errors import RunError
from imagefs.run.spec import DeviceNode

__all__ = ["find"]


def find(paths: Sequence[str]) -> list[DeviceNode]:
    """The device at each of `paths`, at the same path inside; of a directory all devices below it. Raises RunError."""
    found: dict[str, DeviceNode] = {}
    for path in paths:
        path = os.path.abspath(path)
        nodes = list(_below(path) if os.path.isdir(path) else _at(path))
        if not nodes:
            raise RunError(f"--device {path}: there is no device")
        found |= {node.path: node for node in nodes}
    return list(found.values())


def _below(folder: str) -> Iterator[DeviceNode]:
    for parent, _, names in os.walk(folder):
        for name in sorted(names):
            yield from _at(os.path.join(parent, name), follow_symlinks=False)


def _at(path: str, *, follow_symlinks: bool = True) -> Iterator[DeviceNode]:
    try:
        status = os.stat(path, follow_symlinks=follow_symlinks)
    except OSError as error:
        raise RunError(f"--device {path}: {error.strerror}") from error
    kind = "c" if stat.S_ISCHR(status.st_mode) else "b" if stat.S_ISBLK(status.st_mode) else ""
    if kind:
        major, minor = os.major(status.st_rdev), os.minor(status.st_rdev)
        yield DeviceNode(path, kind, major, minor, stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid)
