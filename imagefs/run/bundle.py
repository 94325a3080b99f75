"""The bundle of one run, a folder for its runtime, and the removal of what crashed runs left.

    RUNTIME/runs/.lock       held while a run's folder is made, and while one is found to be left over
    RUNTIME/runs/ID/lock     held by the run and the runtime as long as they live
                    scratch  a path: what the container may write to, removed with the rest
                    cgroup   a path: the container's cgroup, in every hierarchy
                    config.json, rootfs/, state/, log, pid    for the runtime
                    layers/  what the root is made of, where that is more than the image
                    marker/  where the command says that it has started
                    volumes/ what is memory in the container and begins as the image has it

The mounts of a container are in its own namespace and end with it. The file systems that a job is given besides, such
as its checkpoint, have a folder of their own here and are mounted below its layers/, where the host sees them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time

from stripefs.errors import MountError
from stripefs.fuse import kernel
from stripefs.osutil import flocked, remove_tree, try_flock

__all__ = ["RunFolder", "sweep"]

_DYING = 2.0
"""Seconds that the last processes of a killed container may need to leave its cgroup."""


class RunFolder:
    """A new folder for a run. path: the folder. name: the container's. lock: the descriptor that says it is alive."""

    def __init__(self, runtime_dir: str, scratch_dir: str = "", cgroup_parent: str = "/") -> None:
        """`scratch` is a new place below `scratch_dir`, "" without, and `cgroup` one below `cgroup_parent`.

        The code that needs them makes them. Raises OSError.
        """
        self.name = f"imagefs-{os.urandom(6).hex()}"
        runs = os.path.join(os.path.abspath(runtime_dir), "runs")
        os.makedirs(runs, 0o700, exist_ok=True)
        self.path = os.path.join(runs, self.name)
        self.rootfs, self.volumes, self.marker = (
            os.path.join(self.path, one) for one in ("rootfs", "volumes", "marker")
        )
        self.scratch = os.path.join(os.path.abspath(scratch_dir), self.name) if scratch_dir else ""
        self.cgroup = os.path.join("/", cgroup_parent, self.name)
        with _registry(runs):
            os.mkdir(self.path, 0o700)
            self.lock = os.open(os.path.join(self.path, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self.lock, fcntl.LOCK_EX)
        self._record("scratch", self.scratch)
        self._record("cgroup", self.cgroup)

    def layer(self, number: int) -> str:
        """The mountpoint of one of several trees that the root is made of."""
        return os.path.join(self.path, "layers", str(number))

    def started(self) -> bool:
        """Tells whether the runtime started the container's command."""
        return os.path.exists(os.path.join(self.path, "pid"))

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_details: object) -> None:
        _remove(self.path, self.scratch, self.cgroup)
        os.close(self.lock)

    def _record(self, name: str, text: str) -> None:
        with open(os.path.join(self.path, name), "wb") as file:
            file.write(os.fsencode(text))


def sweep(runtime_dir: str) -> list[str]:
    """Remove what runs left that were killed: their folders, what they wrote, and their cgroups. Answers their names.

    Files that cannot be removed now are logged and left for the next time. Raises OSError where `runtime_dir` cannot be
    used.
    """
    runs = os.path.join(os.path.abspath(runtime_dir), "runs")
    if not os.path.isdir(runs):
        return []
    dead = {}
    with _registry(runs):
        for name in os.listdir(runs):
            if not name.startswith("."):
                lock = _lock_of_the_dead(os.path.join(runs, name))
                if lock is not None:
                    dead[name] = lock
    removed = []
    for name, lock in sorted(dead.items()):
        path = os.path.join(runs, name)
        if _remove(path, _recorded(path, "scratch"), _recorded(path, "cgroup")):
            removed.append(name)
        os.close(lock)
    return removed


def _registry(runs: str) -> contextlib.AbstractContextManager[int]:
    return flocked(os.path.join(runs, ".lock"))


def _lock_of_the_dead(path: str) -> int | None:
    """The lock of a run that is over, taken; None where it lives."""
    descriptor = os.open(os.path.join(path, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if try_flock(descriptor):
        return descriptor
    os.close(descriptor)
    return None


def _remove(path: str, scratch: str, cgroup: str) -> bool:
    """Tells whether all could be removed. The folder goes last: while it is there, the next sweep knows what else to
    do."""
    try:
        _remove_cgroup(cgroup)
        _remove_tree(scratch)
        if os.path.isdir(path):
            with _registry(os.path.dirname(path)):
                _unmount_below(path)
                for mountpoint in _mountpoints(path):
                    os.rmdir(mountpoint)  # fails where something is mounted there; then all stays
                _remove_tree(path)
    except (OSError, MountError) as error:
        import logging  # not needed before a container starts

        logging.getLogger(__name__).warning("%s was not removed: %s", path, error)
        return False
    return True


def _unmount_below(path: str) -> None:
    """Hide the mounts below `path` of a job that is over; they end with their last user. Raises MountError."""
    below = os.path.realpath(path) + "/"
    for mount in reversed(kernel.mounts()):
        if mount.path.startswith(below):
            from stripefs.fuse.mounting import unmount  # seldom needed

            unmount(mount.path, lazy=True)


def _mountpoints(path: str) -> list[str]:
    layers = os.path.join(path, "layers")
    found = [os.path.join(path, "rootfs")]
    if os.path.isdir(layers):
        found += [os.path.join(layers, name) for name in os.listdir(layers)]
    return [one for one in found if os.path.isdir(one)]


def _recorded(path: str, name: str) -> str:
    """ "" where nothing was recorded, or the run was killed before all of it was written."""
    try:
        with open(os.path.join(path, name), "rb") as file:
            found = os.fsdecode(file.read())
    except FileNotFoundError:
        return ""
    return found if os.path.basename(found) == os.path.basename(path) else ""


def _remove_tree(path: str) -> None:
    if os.path.lexists(path):
        if os.geteuid() != 0:  # an overlay's own directories are closed to their owner
            for folder, names, _ in os.walk(path):
                for name in names:
                    if not os.path.islink(f"{folder}/{name}"):
                        os.chmod(f"{folder}/{name}", 0o700)
        remove_tree(path)


def _remove_cgroup(path: str) -> None:
    """Remove the cgroup from every hierarchy, with those that the container made in it. Raises OSError."""
    deadline = time.monotonic() + _DYING
    for mount in kernel.mounts():
        if path and mount.fstype in ("cgroup", "cgroup2"):
            top = os.path.join(mount.path, path.lstrip("/"))
            for folder, _, _ in os.walk(top, topdown=False):
                _remove_empty_cgroup(folder, deadline)


def _remove_empty_cgroup(folder: str, deadline: float) -> None:
    while True:
        try:
            os.rmdir(folder)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return
