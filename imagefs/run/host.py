"""The parts of this host that a container gets: devices, directories, capabilities, cgroup limits, standard streams.

The filter of its system calls is found here as well. The standard streams are those of the caller, and the caller's
again when the container has ended.

runc and crun say of some cgroup controllers that they are missing, in words of their own, and crun runs a container
without a limit of memory where version 1 has no such hierarchy. So limits are checked before they start.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Iterator, Sequence

from imagefs.errors import RunError
from imagefs.reference import Platform
from imagefs.run.options import Bind, ResourceLimits
from imagefs.run.privileges import KNOWN, Profile
from imagefs.run.spec import DeviceNode
from stripefs.fuse import kernel
from stripefs.fuse.kernel import MountPoint

__all__ = [
    "capabilities",
    "check_limits",
    "controllers",
    "devices",
    "find_bind",
    "hierarchies",
    "owners_kept",
    "seccomp_profile",
    "terminal_kept",
    "wants_terminal",
]

_TOP = "/sys/fs/cgroup"


def check_limits(limits: ResourceLimits) -> None:
    """Raises RunError for a limit that nothing here enforces."""
    needed = {"memory": limits.memory, "cpu": limits.cpus, "pids": limits.processes}
    flags = {"memory": "--memory", "cpu": "--cpus", "pids": "--pids-limit"}
    wanted = [name for name, limit in needed.items() if limit]
    if not wanted:
        return
    found = controllers(kernel.mounts())
    for name in wanted:
        if name not in found:
            raise RunError(
                f"{flags[name]} cannot be kept: the cgroups of this machine have no controller {name}",
                hint=f"mount it below {_TOP}, or leave the limit out",
            )


def controllers(mounts: Sequence[MountPoint]) -> set[str]:
    """Controllers by which OCI runtimes can limit: by version 2 where it is mounted at the top, else by the hierarchies
    of version 1.

    Where version 2 lies beside version 1 they do not use it. Raises RunError where its controllers cannot be read.
    """
    top = next((mount for mount in reversed(mounts) if mount.path == _TOP), None)
    if top is not None and top.fstype == "cgroup2":
        try:
            with open(f"{_TOP}/cgroup.controllers", encoding="ascii") as file:
                return set(file.read().split())
        except OSError as error:
            raise RunError(f"{_TOP}/cgroup.controllers: {error.strerror}") from error
    hierarchies = [mount for mount in mounts if mount.fstype == "cgroup"]
    return {word for mount in hierarchies for word in mount.super_options.split(",")}


def hierarchies(mounts: Sequence[MountPoint]) -> list[str]:
    """The directories at which version 1 is mounted; runtimes name those of a container alike."""
    return [mount.path for mount in mounts if mount.fstype == "cgroup" and mount.path.startswith(f"{_TOP}/")]


_OWN_PROFILE = os.path.join(os.path.dirname(__file__), "seccomp.json")


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
    """The capabilities that processes started from here can have: the bounding set of this one. Raises OSError."""
    with open("/proc/self/status") as file:
        status = file.read()
    bits = int(status.partition("\nCapBnd:")[2].split(maxsplit=1)[0], 16)
    return [name for number, name in enumerate(KNOWN) if bits >> number & 1]


def seccomp_profile(wanted: str) -> Profile | None:
    """`wanted` is "default", "unconfined" (None), or the path of a profile in Docker's form. Raises RunError."""
    if wanted == "unconfined":
        return None
    path = _OWN_PROFILE if wanted == "default" else wanted
    source = f"--seccomp {wanted}"
    try:
        with open(path, "rb") as file:
            document = json.loads(file.read())
    except OSError as error:
        raise RunError(f"{source}: {error.strerror}", hint="FILE, default or unconfined") from error
    except (ValueError, RecursionError) as error:
        raise RunError(f"{source} is no JSON: {error}") from error
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    kernel = (int(release[1]), int(release[2])) if release else (0, 0)
    return Profile(document, source, Platform.current().architecture, kernel)


def find_bind(bind: Bind) -> Bind:
    """A bind with the whole path of its source, and whether that is a directory. Raises RunError."""
    source = os.path.abspath(bind.source)
    if not os.path.exists(source):
        raise RunError(f"--bind {bind.source}:{bind.target}: {source} does not exist")
    return bind._replace(source=source, directory=os.path.isdir(source))


def wants_terminal(wanted: bool | None) -> bool:
    """Tells whether the container gets a terminal. wanted: None where the caller did not say. Raises RunError."""
    here = os.isatty(0)
    if wanted and not here:
        raise RunError("the container cannot have a terminal: standard input is none")
    return here and os.isatty(1) if wanted is None else wanted


@contextlib.contextmanager
def terminal_kept(used: bool) -> Iterator[None]:
    """Give the terminal back as it was: a runtime that is killed leaves it raw."""
    if not used:
        yield
        return
    import termios

    before = termios.tcgetattr(0)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


@contextlib.contextmanager
def owners_kept() -> Iterator[None]:
    """Give the files that standard input, output and error are back to their owners: crun makes them the container's,
    whose user can then open /dev/stdout anew."""
    before = {}
    for stream in (0, 1, 2):
        with contextlib.suppress(OSError):  # it is closed
            before[stream] = os.fstat(stream)
    try:
        yield
    finally:
        for stream, status in before.items():
            now = os.fstat(stream)
            if stat.S_ISREG(now.st_mode) and (now.st_uid, now.st_gid) != (status.st_uid, status.st_gid):
                os.fchown(stream, status.st_uid, status.st_gid)


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
