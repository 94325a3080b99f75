"""Checks of a host beside its kernel: rights, OCI runtimes, and a place for the cache."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from imagefs.doctor.finding import Finding
from stripefs.fuse import kernel
from stripefs.units import format_size

__all__ = ["cache_findings", "file_system_of", "rights_findings", "runtime_findings"]

_LITTLE = 2 << 30
_TOO_LITTLE = 64 << 20
"""Bytes of room: the least `--cache-size` is 64 MiB; an image for training takes gigabytes."""

_IN_MEMORY = ("tmpfs", "ramfs")
_STACKED = ("overlay", "aufs", "fuse.fuse-overlayfs")
_REMOTE = ("nfs", "nfs4", "cifs", "smb3", "ceph", "9p", "lustre")


def rights_findings(device: str = kernel.DEVICE, cgroups: str = "/sys/fs/cgroup") -> list[Finding]:
    """Checks whether we are root, may open /dev/fuse, and may make cgroups."""
    return [_root(), _fuse_device(device), _cgroups(cgroups)]


def _root() -> Finding:
    if os.geteuid() == 0:
        return Finding("rights.root", "ok", "root")
    return Finding(
        "rights.root",
        "warn",
        f"user {os.geteuid()} and not root",
        "images are shown by the tree plane, at half its speed; no snapshotter, no leases, no `imagefs run`",
        "run it as root",
    )


def _fuse_device(device: str) -> Finding:
    try:
        os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return Finding(
            "rights.fuse",
            "fail",
            f"{device} cannot be opened: {error.strerror}",
            "neither images nor stripefs mounts can be served",
            kernel.CONTAINER_HINT,
        )
    return Finding("rights.fuse", "ok", f"{device} can be opened")


def _cgroups(folder: str) -> Finding:
    """Version 2 shows its controllers at the root; version 1 has a folder for each."""
    unified = os.path.join(folder, "cgroup.controllers")
    if os.path.exists(unified):
        controllers = set(Path(unified).read_text().split())
        version, place = "2", folder
    else:
        controllers = {name for name in ("cpu", "memory", "pids") if os.path.isdir(os.path.join(folder, name))}
        version, place = "1", os.path.join(folder, "memory")
    missing = sorted({"cpu", "memory", "pids"} - controllers)
    if missing:
        return Finding(
            "rights.cgroup",
            "warn",
            f"cgroup version {version} has no controller {', '.join(missing)}",
            "`imagefs run` refuses limits of these",
            "have the kernel or the container manager offer them",
        )
    if not os.access(place, os.W_OK):
        return Finding(
            "rights.cgroup",
            "warn",
            f"{place} cannot be written to",
            "`imagefs run` refuses limits",
            "mount it writable, or run as root of the host",
        )
    return Finding("rights.cgroup", "ok", f"cgroup version {version}, with cpu, memory and pids")


def runtime_findings(path: str | None = None) -> list[Finding]:
    """OCI runtimes and skopeo. path: to search, PATH unless given."""
    return [_oci(path), _skopeo(path)]


def _skopeo(path: str | None) -> Finding:
    if shutil.which("skopeo", path=path):
        return Finding("runtime.skopeo", "ok", "skopeo")
    return Finding(
        "runtime.skopeo",
        "warn",
        "skopeo is not on PATH",
        "no `imagefs build docker://…`, and a layer of a lazy image that another image shares cannot be fetched alone",
        "apt-get install skopeo",
    )


def _oci(path: str | None) -> Finding:
    found = [name for name in ("crun", "runc") if shutil.which(name, path=path)]
    if found:
        return Finding("runtime.oci", "ok", " and ".join(found))
    return Finding(
        "runtime.oci",
        "warn",
        "neither crun nor runc is on PATH",
        "`imagefs run` starts nothing, and containerd starts nothing by its default runtime",
        "apt-get install crun",
    )


def file_system_of(path: str, mounts: list[kernel.MountPoint]) -> str:
    """The type of the file system that `path` lies on (absolute, links resolved), by the mount table; "" for none."""
    above = [one for one in mounts if path == one.path or path.startswith(f"{one.path.rstrip('/')}/")]
    longest = max((len(one.path) for one in above), default=0)
    return next((one.fstype for one in reversed(above) if len(one.path) == longest), "")


def cache_findings(folder: str, wanted: int, mounts: list[kernel.MountPoint] | None = None) -> list[Finding]:
    """Checks whether the cache's folder can hold what is fetched.

    wanted: bytes of --cache-size, 0 for half of the free space.
    """
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        room = os.statvfs(folder)
    except OSError as error:
        return [_no_cache(folder, error.strerror or str(error))]
    if not os.access(folder, os.W_OK | os.X_OK):
        return [_no_cache(folder, "it cannot be written to")]
    return [_file_system(folder, mounts), _room(folder, room.f_bavail * room.f_frsize, wanted)]


def _no_cache(folder: str, why: str) -> Finding:
    return Finding(
        "cache.folder", "fail", f"{folder}: {why}", "the daemon does not start", "name another one: --cache DIR"
    )


def _file_system(folder: str, mounts: list[kernel.MountPoint] | None) -> Finding:
    kind = file_system_of(os.path.realpath(folder), kernel.mounts() if mounts is None else mounts)
    costs = {
        _IN_MEMORY: "what is kept takes memory, and is gone after a reboot",
        _STACKED: "EROFS takes no files there, so every device needs a loop device, and containers cannot write on it",
        _REMOTE: "every block that was fetched goes over the network again",
    }
    for kinds, cost in costs.items():
        if kind in kinds:
            return Finding(
                "cache.folder", "warn", f"{folder} is on {kind}", cost, "put it on a local disk: --cache DIR"
            )
    return Finding("cache.folder", "ok", f"{folder} is on {kind}")


def _room(folder: str, free: int, wanted: int) -> Finding:
    told = f"{format_size(free)} are free in {folder}"
    remedy = "make room, or put the cache on a larger disk: --cache DIR"
    if free < _TOO_LITTLE:
        return Finding("cache.room", "fail", told, "nothing that was fetched can be kept", remedy)
    if free < max(_LITTLE, wanted):
        return Finding("cache.room", "warn", told, "blocks are evicted early and fetched again", remedy)
    return Finding("cache.room", "ok", told)
