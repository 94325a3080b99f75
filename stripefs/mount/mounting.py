"""Putting a FUSE connection at a mountpoint and taking it away, as root by mount(2), as anyone else by fusermount3."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import stripefs
from stripefs.errors import ConfigError, MountError
from stripefs.mount import kernel, unprivileged
from stripefs.mount.control import find_mounts
from stripefs.mount.job import Job

__all__ = ["FSTYPE", "check_mountpoint", "detach", "is_privileged", "mount_device", "unmount_unused"]

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


def check_mountpoint(job: Job) -> str:
    """The mountpoint as an absolute path without links. Raises MountError when it cannot serve as one."""
    path = job.resolved
    if (found := kernel.find_mount(path)) is not None and found.fstype == job.fstype:
        directory = Path(job.directory) if job.directory else None
        served = next((mount for mount in find_mounts(directory) if mount.mountpoint == path), None)
        if served is not None:
            raise MountError(
                f"{path} is busy: {job.command} serves {served.source} there (pid {served.supervisor_pid})",
                hint=f"{job.command} umount {path}, or choose another mountpoint",
            )
        raise MountError(f"{path} is busy: a {job.command} mount that nobody here serves", hint=f"umount -l {path}")
    try:
        with os.scandir(path) as entries:
            empty = next(entries, None) is None
    except OSError as error:
        raise _unusable(path, error) from error
    if not empty and "nonempty" not in job.mount.options:
        raise MountError(f"{path} is not empty", hint="the mount would hide its files; -o nonempty allows that")
    for ours in (sys.executable, sys.prefix, os.path.dirname(stripefs.__file__), job.mount.log_file):
        if ours and Path(os.path.realpath(ours)).is_relative_to(path):
            raise MountError(f"{path} holds {ours}, which the mount itself needs", hint="choose another mountpoint")
    return path


def mount_device(job: Job, source: str) -> int:
    """Mount a new connection at `job.mount.mountpoint` and answer its descriptor. Raises MountError."""
    mount = job.mount
    names = [*(() if mount.rw else ("ro",)), *_ALWAYS, *mount.options]
    extra = [name for name in names if name.startswith(_SECURITY)]
    known = {*_FLAGS, *_OFF, *_OURS, *extra}
    for name in names:
        if name not in known:
            raise ConfigError(f"mount option {name!r} is not known")
    wanted = {name for name in names if name in _FLAGS}
    shared = ["default_permissions", *(["allow_other"] if mount.allow_other else [])]
    if not is_privileged():
        return unprivileged.mount(source, mount.mountpoint, job.command, [*sorted(wanted), *shared, *extra])
    wanted -= {off for on, off in _OFF.items() if on in mount.options}
    device = kernel.open_device()
    identity = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
    try:
        kernel.mount(
            source,
            mount.mountpoint,
            job.fstype,
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
        unprivileged.unmount(path, lazy=True)
    return True


def unmount_unused(path: str) -> bool:
    """Unmount `path`; False when somebody keeps files open there, and it stays. Raises MountError."""
    if not is_privileged():
        try:
            unprivileged.unmount(path)
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
