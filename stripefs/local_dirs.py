"""Checks of local directories that files are kept in: none may lie on a mount of stripefs or imagefs.

A worker that touched a file on the mount it serves would wait for itself, and two mounts that keep files on each other
would wait for one another. So a path is walked one name at a time, links by hand, and each step is held against the
mount table *before* the file system there is asked anything.

`option` is how messages name the setting that the directory came from.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping

from stripefs.errors import ConfigError

__all__ = ["open_local_dir", "resolve_local_dir", "user_runtime"]

_OURS = ("fuse.stripefs", "fuse.imagefs")
_LINKS = 40  # as many as the kernel follows


def user_runtime(environ: Mapping[str, str], uid: int) -> str | None:
    """$XDG_RUNTIME_DIR where it counts: for users, and for the root of a user namespace, to whom /run belongs no more
    than to the user who made it. None where it is not set."""
    base = environ.get("XDG_RUNTIME_DIR") or None
    return base if uid != 0 or _in_user_namespace() else None


def _in_user_namespace() -> bool:
    """False in the first one, which maps all numbers to themselves."""
    try:
        with open("/proc/self/uid_map") as table:
            return table.read().split() != ["0", "0", "4294967295"]
    except FileNotFoundError:
        return False  # a kernel without them


def resolve_local_dir(option: str, directory: str, mountpoint: str) -> str:
    """`directory`, which may be missing still, without links; it is not touched.

    Raises ConfigError where it cannot be walked, or is on a mount of ours or on the one at `mountpoint` ("" for none).
    """
    place = _resolve(option, directory, _mounts(), missing=True)
    if mountpoint:
        # Where the mount will be, or is: its own last component is not asked anything then.
        above, name = os.path.split(os.path.abspath(mountpoint))
        served = os.path.join(_resolve(option, above, _mounts()), name)
        if os.path.commonpath((place, served)) == os.path.normpath(served):
            raise ConfigError(f"{option} {directory} is on the mount itself", hint="name a directory on a local disk")
    return place


def open_local_dir(option: str, directory: str, mountpoint: str) -> int:
    """A descriptor of `directory`, which must exist and be writable; else as `resolve_local_dir`. The caller closes
    it."""
    place = resolve_local_dir(option, directory, mountpoint)
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise _unusable(option, directory, error) from error
    if not os.access(f"/proc/self/fd/{descriptor}", os.W_OK | os.X_OK):
        os.close(descriptor)
        raise _unusable(option, directory, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
    return descriptor


def _unusable(option: str, directory: str, error: OSError) -> ConfigError:
    return ConfigError(
        f"{option} {directory} cannot be used: {error.strerror}", hint="name a directory that exists and is yours"
    )


def _resolve(option: str, path: str, mounts: dict[str, str], *, missing: bool = False) -> str:
    """`path` without links; with `missing` its last names need not be there."""
    done, rest, links = "/", [name for name in os.path.abspath(path).split("/") if name], 0
    while rest:
        name = rest.pop(0)
        if name == "..":
            done = os.path.dirname(done)
            continue
        step = os.path.join(done, name)
        if mounts.get(step) in _OURS:
            raise ConfigError(
                f"{option} {path} is on a mount of {mounts[step].removeprefix('fuse.')}, {step}",
                hint="name a directory on a local disk",
            )
        try:
            target = os.readlink(step)
        except OSError as error:
            if error.errno == errno.ENOENT and missing and ".." not in rest:
                return os.path.join(step, *rest)
            if error.errno != errno.EINVAL:  # which says that it is no link
                raise _unusable(option, path, error) from error
            done = step
            continue
        links += 1
        if links > _LINKS:
            raise _unusable(option, path, OSError(errno.ELOOP, os.strerror(errno.ELOOP)))
        rest = [name for name in target.split("/") if name not in ("", ".")] + rest
        done = "/" if target.startswith("/") else done
    return done


def _mounts() -> dict[str, str]:
    """Mountpoint -> file system type; of several at one place the last, which is on top."""
    found = {}
    with open("/proc/self/mountinfo", errors="surrogateescape") as table:
        lines = table.read().splitlines()
    for line in lines:
        before, _, after = line.partition(" - ")
        place = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), before.split(" ")[4])
        found[place] = after.split(" ")[0]
    return found
