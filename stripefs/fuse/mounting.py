"""Mounting and unmounting of a FUSE connection: as root by mount(2), as anyone else by fusermount3.

fusermount3 mounts for a plain user and hands the connection's descriptor over a socket. `users` lists the processes and
mounts that keep a mount busy.
"""

from __future__ import annotations

import array
import contextlib
import errno
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import stripefs
from stripefs.errors import ConfigError, MountError
from stripefs.fuse import kernel
from stripefs.fuse.control import find_mounts
from stripefs.fuse.ipc import MountSpec
from stripefs.fuse.kernel import CONTAINER_HINT

__all__ = [
    "FSTYPE",
    "check_mountpoint",
    "detach",
    "is_privileged",
    "mount_device",
    "mount_unprivileged",
    "unmount",
    "unmount_unprivileged",
    "unmount_unused",
    "users",
]

_PROGRAM = "fusermount3"

_HINTS = (
    ("user_allow_other", "add the line user_allow_other to /etc/fuse.conf, or mount with --no-allow-other"),
    ("not found", CONTAINER_HINT),
    ("No such file", CONTAINER_HINT),
    ("Operation not permitted", CONTAINER_HINT),
    ("failed to open", "your user must be allowed to open /dev/fuse; " + CONTAINER_HINT),
    ("no write access", "a plain user must own the mountpoint"),
    ("not owned", "a plain user must own the mountpoint"),
)


def mount_unprivileged(source: str, target: str, subtype: str, options: Sequence[str]) -> int:
    """Mount and answer the descriptor of the new connection. Raises MountError with what fusermount3 said."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    fsname = source.replace("\\", "\\\\").replace(",", "\\,")
    with ours, theirs:
        done = subprocess.run(
            [_fusermount(), "-o", ",".join([*options, f"fsname={fsname}", f"subtype={subtype}"]), "--", target],
            pass_fds=(theirs.fileno(),),
            env={**os.environ, "_FUSE_COMMFD": str(theirs.fileno()), "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
        )
        theirs.close()
        descriptors = array.array("i", [])
        if done.returncode == 0:
            _, ancillary, _, _ = ours.recvmsg(1, socket.CMSG_LEN(descriptors.itemsize))
            for _level, _type, data in ancillary:
                descriptors.frombytes(data[: descriptors.itemsize])
    if not descriptors:
        said = done.stderr.decode(errors="replace").strip().removeprefix(f"{_PROGRAM}: ").replace("\n", "; ")
        hint = next((hint for words, hint in _HINTS if words in said), "")
        raise MountError(f"{target} cannot be mounted: {said or 'fusermount3 gave no reason'}", hint=hint)
    os.set_inheritable(descriptors[0], False)
    return descriptors[0]


def unmount_unprivileged(target: str, *, lazy: bool = False) -> None:
    """Unmount what `mount` mounted. Raises OSError where it is busy, and MountError with what fusermount3 said."""
    done = subprocess.run(
        [_fusermount(), "-u", *(["-z"] if lazy else []), "--", target],
        env={**os.environ, "LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode and os.strerror(errno.EBUSY) in done.stderr:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), target)
    if done.returncode:
        raise MountError(f"{target} cannot be unmounted: {done.stderr.strip()}")


def _fusermount() -> str:
    program = shutil.which(_PROGRAM)
    if program is None:
        raise MountError(f"{_PROGRAM} is not installed", hint="install the package fuse3, or mount as root")
    return program


FSTYPE = "fuse.stripefs"

_FLAGS = {
    "ro": 1,
    "nosuid": 2,
    "nodev": 4,
    "noexec": 8,
    "sync": 16,
    "dirsync": 128,
    "noatime": 1024,
    "nodiratime": 2048,
    "relatime": 1 << 21,
    "strictatime": 1 << 24,
}
"""MS_* of include/uapi/linux/mount.h."""

_OFF = {"suid": "nosuid", "dev": "nodev", "exec": "noexec", "async": "sync"}
_OURS = frozenset(("nonempty", "rw", "defaults"))  # rw among the options says nothing: MountSettings.rw does
_ALWAYS = ("nosuid", "nodev")
_SECURITY = ("context=", "fscontext=", "defcontext=", "rootcontext=")


def is_privileged() -> bool:
    return os.geteuid() == 0


def check_mountpoint(spec: MountSpec) -> str:
    """The mountpoint as an absolute path without links. Raises MountError when it cannot serve as one."""
    path = spec.resolved
    if (found := kernel.find_mount(path)) is not None and found.fstype == spec.fstype:
        directory = Path(spec.directory) if spec.directory else None
        served = next((mount for mount in find_mounts(directory) if mount.mountpoint == path), None)
        if served is not None:
            raise MountError(
                f"{path} is busy: {spec.command} serves {served.source} there (pid {served.supervisor_pid})",
                hint=f"{spec.command} umount {path}, or choose another mountpoint",
            )
        raise MountError(f"{path} is busy: a {spec.command} mount that nobody here serves", hint=f"umount -l {path}")
    try:
        with os.scandir(path) as entries:
            empty = next(entries, None) is None
    except OSError as error:
        raise _unusable(path, error) from error
    if not empty and "nonempty" not in spec.mount.options:
        raise MountError(f"{path} is not empty", hint="the mount would hide its files; -o nonempty allows that")
    for ours in (sys.executable, sys.prefix, os.path.dirname(stripefs.__file__), spec.mount.log_file):
        if ours and Path(os.path.realpath(ours)).is_relative_to(path):
            raise MountError(f"{path} holds {ours}, which the mount itself needs", hint="choose another mountpoint")
    return path


def mount_device(spec: MountSpec, source: str) -> int:
    """Mount a new connection at `spec.mount.mountpoint` and answer its descriptor. Raises MountError."""
    mount = spec.mount
    names = [*(() if mount.rw else ("ro",)), *_ALWAYS, *mount.options]
    extra = [name for name in names if name.startswith(_SECURITY)]
    known = {*_FLAGS, *_OFF, *_OURS, *extra}
    for name in names:
        if name not in known:
            raise ConfigError(f"mount option {name!r} is not known")
    wanted = {name for name in names if name in _FLAGS}
    shared = ["default_permissions", *(["allow_other"] if mount.allow_other else [])]
    if not is_privileged():
        return mount_unprivileged(source, mount.mountpoint, spec.command, [*sorted(wanted), *shared, *extra])
    wanted -= {off for on, off in _OFF.items() if on in mount.options}
    device = kernel.open_device()
    identity = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
    try:
        kernel.mount(
            source,
            mount.mountpoint,
            spec.fstype,
            sum(_FLAGS[name] for name in wanted),
            ",".join((identity, *shared, *extra)),
        )
    except OSError as error:
        os.close(device)
        raise _refused(mount.mountpoint, error) from error
    return device


def detach(path: str) -> bool:
    """Unmount `path`; True when users had to be cut off because they keep files open there. Raises MountError."""
    if unmount_unused(path):
        return False
    if is_privileged():
        kernel.unmount(path, kernel.MNT_DETACH)
    else:
        unmount_unprivileged(path, lazy=True)
    return True


def unmount_unused(path: str) -> bool:
    """Unmount `path`; False when somebody keeps files open there, and it stays. Raises MountError."""
    if not is_privileged():
        try:
            unmount_unprivileged(path)
        except (MountError, OSError):
            return False
        return True
    try:
        kernel.unmount(path)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise MountError(f"{path} cannot be unmounted: {error.strerror}") from error
        return False
    return True


def _unusable(path: str, error: OSError) -> MountError:
    if error.errno == errno.ENOENT:
        return MountError(f"mountpoint {path} does not exist", hint=f"mkdir -p {path}")
    if error.errno == errno.ENOTDIR:
        return MountError(f"mountpoint {path} is not a directory")
    if error.errno == errno.ENOTCONN:
        return MountError(f"a file system that died is still mounted at {path}", hint=f"umount -l {path}")
    return MountError(f"mountpoint {path} cannot be used: {error.strerror}")


def _refused(path: str, error: OSError) -> MountError:
    hints = {errno.EPERM: kernel.CONTAINER_HINT, errno.ENODEV: "the kernel has no FUSE: modprobe fuse"}
    return MountError(f"{path} cannot be mounted: {error.strerror}", hint=hints.get(error.errno or 0, ""))


_NAMED = 5
"""So many users the message names."""

_PATIENCE, _PAUSE = 1.0, 0.02
"""Seconds that a mount may be busy, and between looks: a process that only looks at another's files in /proc keeps a
mount busy for a moment."""


def unmount(target: str, *, lazy: bool = False) -> None:
    """Unmount what is on top at `target`. Loop devices and memory that the mount held go with it.

    lazy: hide it now, and let it end when its last user does. Raises MountError, which names users where it is busy.
    """
    give_up = time.monotonic() + _PATIENCE
    while True:
        try:
            return _unmount(target, lazy)
        except OSError as error:
            if error.errno != errno.EBUSY:
                hint = {errno.EINVAL: "nothing is mounted there", errno.EPERM: "unmounting needs root"}
                raise MountError(
                    f"{target} cannot be unmounted: {error.strerror}", hint=hint.get(error.errno or 0, "")
                ) from error
            if time.monotonic() > give_up:
                raise _busy(target) from error
        time.sleep(_PAUSE)


def users(target: str) -> list[str]:
    """Mounts below `target` (a path without links), and processes that stand or keep files there, for people to read.

    Of processes that we may look at. Only names that the kernel knows already are compared; the mount is not touched.
    """
    below = target.rstrip("/") + "/"
    found = [f"mount {one.path}" for one in kernel.mounts() if one.path.startswith(below)]
    processes = [name for name in os.listdir("/proc") if name.isdigit() and _uses(f"/proc/{name}", target, below)]
    return found + [f"process {name} ({_command(name)})" for name in processes]


def _unmount(target: str, lazy: bool) -> None:
    """Raises OSError, and MountError with what fusermount3 said."""
    if os.geteuid() != 0 and (here := kernel.find_mount(target)) is not None and here.fstype.startswith("fuse."):
        unmount_unprivileged(target, lazy=lazy)
    else:
        kernel.unmount(target, kernel.MNT_DETACH if lazy else 0)


def _busy(target: str) -> MountError:
    found = users(os.path.realpath(target))
    if not found:
        return MountError(
            f"{target} is busy", hint=f"fuser -vm {shlex.quote(target)} names the processes that use it; or give --lazy"
        )
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return MountError(
        f"{target} is busy: {', '.join(found[:_NAMED])}{more}", hint="end what uses it first, or give --lazy"
    )


def _uses(process: str, target: str, below: str) -> bool:
    links = [f"{process}/{name}" for name in ("cwd", "root", "exe")]
    with contextlib.suppress(OSError):  # it ended, or is another user's
        links += [f"{process}/fd/{number}" for number in os.listdir(f"{process}/fd")]
    for link in links:
        with contextlib.suppress(OSError):
            path = os.readlink(link)
            if path == target or path.startswith(below):
                return True
    try:
        with open(f"{process}/maps", "rb") as file:
            return os.fsencode(f" {below}") in file.read()
    except OSError:
        return False


def _command(process: str) -> str:
    try:
        with open(f"/proc/{process}/comm", "rb") as file:
            return file.read().decode("utf-8", "replace").strip()
    except OSError:
        return "ended"
