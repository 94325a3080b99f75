"""Whether this machine's cgroups can hold a container to its limits.

runc and crun say of some controllers that they are missing, in words of their own, and crun runs a container without a
limit of memory where version 1 has no such hierarchy. So we look before they start.
"""

from __future__ import annotations

from collections.abc import Sequence

from imagefs.errors import RunError
from imagefs.run.options import Limits
from stripefs.fuse import kernel
from stripefs.fuse.kernel import MountPoint

__all__ = ["check", "controllers", "hierarchies"]

_TOP = "/sys/fs/cgroup"


def check(limits: Limits) -> None:
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
    """What OCI runtimes can limit: by version 2 where it is mounted at the top, else by the hierarchies of version 1.

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
