"""What of this host a container gets: devices (`--device`), capabilities, and the filter of its system calls."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from imagefs.errors import RunError
from imagefs.platform import Platform
from imagefs.run.privileges import KNOWN
from imagefs.run.seccomp import Profile
from imagefs.run.spec import DeviceNode

__all__ = ["capabilities", "devices", "seccomp_profile"]

_OWN_PROFILE = Path(__file__).with_name("seccomp.json")


def devices(paths: Sequence[str]) -> list[DeviceNode]:
    """The device at each of `paths`, at the same path inside; of a directory all devices below it. Raises RunError."""
    found: dict[str, DeviceNode] = {}
    for path in paths:
        path = os.path.abspath(path)
        nodes = list(_below(path) if os.path.isdir(path) else _at(path))
        if not nodes:
            raise RunError(f"--device {path}: there is no device")
        found |= {node.path: node for node in nodes}
    return list(found.values())


def capabilities() -> list[str]:
    """Those that processes started from here can have: the bounding set of this one. Raises OSError."""
    status = Path("/proc/self/status").read_text()
    bits = int(status.partition("\nCapBnd:")[2].split(maxsplit=1)[0], 16)
    return [name for number, name in enumerate(KNOWN) if bits >> number & 1]


def seccomp_profile(wanted: str) -> Profile | None:
    """`wanted` is "default", "unconfined" (None), or the path of a profile in Docker's form. Raises RunError."""
    if wanted == "unconfined":
        return None
    path = _OWN_PROFILE if wanted == "default" else Path(wanted)
    source = f"--seccomp {wanted}"
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise RunError(f"{source}: {error.strerror}", hint="FILE, default or unconfined") from error
    except (ValueError, RecursionError) as error:
        raise RunError(f"{source} is no JSON: {error}") from error
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    kernel = (int(release[1]), int(release[2])) if release else (0, 0)
    return Profile(document, source, Platform.here().architecture, kernel)


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
