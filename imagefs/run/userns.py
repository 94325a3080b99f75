"""User namespaces of containers (`--userns`): the root of a container is an unprivileged user of the host.

The ids 0 to 65535 of the container are as many ids of the host, from the one that `--userns` names. The layers of the
image are shown by idmapped mounts, so that files of its root belong to the container's, and nothing is copied or
changed; an overlay above them has its written files by ids of the host. The runtime then makes the namespace itself.

From inside of the namespace a runtime can reach only what that user of the host can, and the folder of a run is for
root alone. So all that is mounted in the container is moved, in the private mount namespace of the run, to a file
system in memory. It lies at a directory that everybody may pass and that the run does not need, whose own content is
hidden from this run.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import signal
import stat
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from imagefs.errors import RunError
from imagefs.plane import mountapi
from imagefs.run.options import IDS
from stripefs.fuse import kernel

__all__ = ["keep_locked", "move_mounts", "namespace", "own_first_id", "show_mapped"]

_CLONE_NEWUSER = 0x10000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8

_FIRST_FREE, _LAST_FREE = 0x00080000, 0x6FFF0000
"""The ids that systemd leaves to containers, a range of 65536 each (its document on users, groups, UIDs and GIDs)."""

_PLACES = ("/mnt", "/media", "/srv", "/opt", "/home", "/tmp")  # noqa: S108
"""Directories of every host. The first is taken that the run needs nothing of."""

_LOCKED = {1: "ro", 2: "nosuid", 4: "nodev", 8: "noexec", 1024: "noatime", 2048: "nodiratime", 4096: "relatime"}
"""Flags of statvfs(3) that a mount in a user namespace keeps from where it comes, and how runtimes name them."""

_libc = ctypes.CDLL(None, use_errno=True)


def own_first_id() -> int:
    """The first of as many ids of the host as a namespace has, most likely of no other container."""
    choices = (_LAST_FREE - _FIRST_FREE) // IDS + 1
    return _FIRST_FREE + int.from_bytes(os.urandom(8), "little") % choices * IDS


@contextlib.contextmanager
def namespace(first: int) -> Iterator[int]:
    """A descriptor of a user namespace with these ids, for mounts; -1 where `first` is 0. Raises RunError, OSError."""
    if not first:
        yield -1
        return
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # it holds the namespace until that is open
        os.write(writer, b"1" if _libc.unshare(_CLONE_NEWUSER) == 0 else b"0")
        signal.pause()
        os._exit(0)
    try:
        if os.read(reader, 1) != b"1":
            raise RunError("this machine allows no user namespaces", hint="sysctl user.max_user_namespaces")
        for kind in ("uid_map", "gid_map"):
            with open(f"/proc/{child}/{kind}", "wb", buffering=0) as file:
                file.write(f"0 {first} {IDS}".encode())
        descriptor = os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(reader)
        os.close(writer)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def show_mapped(path: str, namespace: int) -> None:
    """Put an idmapped mount in the place of the one at `path`. Raises RunError where its file system has none."""
    mapped = mountapi.clone(path)
    try:
        _map(mapped, namespace, f"the image is shown by {_fstype(path)}", "--plane erofs, the kernel's own")
        kernel.unmount(path, kernel.MNT_DETACH)
        mountapi.show(mapped, path)
    finally:
        os.close(mapped)


def move_mounts(document: dict[str, Any], namespace: int, mapped: Sequence[str], needed: Sequence[str]) -> str:
    """Let a config.json mount from places that the container's root can reach; the directory where they are.

    mapped: targets of binds whose owners are the container's. needed: paths that must stay reachable. Raises RunError,
    OSError.
    """
    place = _place(needed)
    with contextlib.ExitStack() as held:
        sources = [(document["root"]["path"], mountapi.clone(document["root"]["path"], recursive=True))]
        binds = [mount for mount in document["mounts"] if mount["type"] == "bind"]
        sources += [(mount["source"], mountapi.clone(mount["source"], recursive=True)) for mount in binds]
        for _, descriptor in sources:
            held.callback(os.close, descriptor)
        for mount, (source, descriptor) in zip(binds, sources[1:], strict=True):
            if mount["destination"] in mapped:
                _map(descriptor, namespace, f"--bind {source} with idmap is on {_fstype(source)}", "leave idmap out")
        kernel.mount("imagefs", place, "tmpfs", _MS_NOSUID, "mode=711")
        shown = []
        for number, (_, descriptor) in enumerate(sources):
            shown.append(f"{place}/{number}")
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                os.mkdir(shown[-1])
            else:
                os.close(os.open(shown[-1], os.O_CREAT | os.O_EXCL | os.O_CLOEXEC))
            mountapi.show(descriptor, shown[-1])
    document["root"]["path"] = shown[0]
    for mount, source in zip(binds, shown[1:], strict=True):
        mount["source"] = source
        keep_locked(mount)
    if not any(kind["type"] == "network" for kind in document["linux"]["namespaces"]):
        _show_sysfs(document, f"{place}/sys")
    _take_own_null(f"{place}/null")
    return place


def _take_own_null(path: str) -> None:
    """Let standard input, output and error be a /dev/null of this run's where they are the host's.

    crun (until August 2025) makes them the container's, whose user could then close the host's to all others.
    """
    number = os.stat("/dev/null").st_rdev
    os.mknod(path, stat.S_IFCHR | 0o600, number)
    for stream in (0, 1, 2):
        with contextlib.suppress(OSError):  # it is closed
            status = os.fstat(stream)
            if stat.S_ISCHR(status.st_mode) and status.st_rdev == number:
                descriptor = os.open(path, fcntl.fcntl(stream, fcntl.F_GETFL) & os.O_ACCMODE | os.O_CLOEXEC)
                os.dup2(descriptor, stream)
                os.close(descriptor)


def _show_sysfs(document: dict[str, Any], path: str) -> None:
    """Only the owner of a network namespace may mount /sys, and here that is the host's."""
    for mount in document["mounts"]:
        if mount["type"] == "sysfs":
            os.mkdir(path)
            kernel.mount("sysfs", path, "sysfs", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, "")
            mount |= {"type": "bind", "source": path, "options": ["rbind", *mount["options"]]}
            keep_locked(mount)


def keep_locked(mount: dict[str, Any]) -> None:
    """Give a bind of a config.json the flags of its source, which no user namespace may take away. Raises OSError."""
    flags = os.statvfs(mount["source"]).f_flag
    locked = [name for bit, name in _LOCKED.items() if flags & bit]
    mount["options"] = [one for one in mount["options"] if one not in locked and (one, "ro" in locked) != ("rw", True)]
    mount["options"] += locked


def _place(needed: Sequence[str]) -> str:
    kept = [os.path.realpath(path) for path in (*needed, sys.prefix, sys.base_prefix, __file__)]
    for place in _PLACES:
        passable = os.path.isdir(place) and os.path.realpath(place) == place and os.stat(place).st_mode & 1
        if passable and not any(f"{path}/".startswith(f"{place}/") for path in kept):
            return place
    raise RunError(f"--userns needs one of {', '.join(_PLACES)} as an empty place for mounts", hint="mkdir -m 755 /mnt")


def _map(descriptor: int, namespace: int, subject: str, hint: str) -> None:
    try:
        mountapi.set_idmap(descriptor, namespace)
    except OSError as error:
        if error.errno == errno.ENOSYS:
            raise RunError("--userns needs idmapped mounts, of Linux 5.19 or later") from error
        if error.errno != errno.EINVAL:
            raise
        raise RunError(f"{subject}, which can be shown to no user namespace", hint=hint) from error


def _fstype(path: str) -> str:
    return max(
        (
            one
            for one in reversed(kernel.mounts())
            if f"{os.path.realpath(path)}/".startswith(f"{one.path.rstrip('/')}/")
        ),
        key=lambda one: len(one.path),
    ).fstype
