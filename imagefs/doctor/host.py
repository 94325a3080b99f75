"""Checks of a host: rights, OCI runtimes, a place for the cache, and features of the kernel.

The kernel's features follow from its version where we are not root, and are tried where we are, by a program in a
mount namespace that ends with it:

    python -P -m imagefs.doctor.host FOLDER

It prints one JSON object: for each of the trials "ok" or the reason why not. FOLDER is the cache's: whether EROFS takes
files depends on the file system that they lie on. It leaves nothing behind.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from imagefs.build.content import lay_out, scan
from imagefs.doctor import CheckResult, CheckState
from imagefs.format.erofs import BLOCK, DeviceSlot, write
from imagefs.plane import erofs
from imagefs.run.namespace import private_mounts
from stripefs.errors import StripefsError
from stripefs.fuse import kernel
from stripefs.units import format_size

__all__ = [
    "TRIALS",
    "cache_findings",
    "file_system_of",
    "judge_kernel",
    "kernel_findings",
    "release",
    "rights_findings",
    "run_trials",
    "runtime_findings",
]

_LITTLE = 2 << 30
_TOO_LITTLE = 64 << 20
"""Bytes of room: the least `--cache-size` is 64 MiB; an image for training takes gigabytes."""

_IN_MEMORY = ("tmpfs", "ramfs")
_STACKED = ("overlay", "aufs", "fuse.fuse-overlayfs")
_REMOTE = ("nfs", "nfs4", "cifs", "smb3", "ceph", "9p", "lustre")

TRIALS = ("erofs-file", "erofs-loop", "overlay", "fuse", "fuse-resend")
"""By name, what is tried: EROFS with two devices from files and from loop devices, an overlay on top whose upper
directory lies in the folder, a FUSE connection, and its FUSE_NOTIFY_RESEND."""

_CONTENT = bytes(range(256)) * 512  # 128 KiB, so it lies in a device and not in the metadata


def rights_findings(device: str = kernel.DEVICE, cgroups: str = "/sys/fs/cgroup") -> list[CheckResult]:
    """Checks whether we are root, may open /dev/fuse, and may make cgroups."""
    return [_root(), _fuse_device(device), _cgroups(cgroups)]


def _root() -> CheckResult:
    if os.geteuid() == 0:
        return CheckResult("rights.root", "ok", "root")
    return CheckResult(
        "rights.root",
        "warn",
        f"user {os.geteuid()} and not root",
        "images are shown by the tree plane, which starts programs more slowly; no snapshotter and no leases; "
        "`imagefs run` has no limits, no --userns and no --deps",
        "run it as root",
    )


def _fuse_device(device: str) -> CheckResult:
    try:
        os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return CheckResult(
            "rights.fuse",
            "fail",
            f"{device} cannot be opened: {error.strerror}",
            "neither images nor stripefs mounts can be served",
            kernel.CONTAINER_HINT,
        )
    return CheckResult("rights.fuse", "ok", f"{device} can be opened")


def _cgroups(folder: str) -> CheckResult:
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
        return CheckResult(
            "rights.cgroup",
            "warn",
            f"cgroup version {version} has no controller {', '.join(missing)}",
            "`imagefs run` refuses limits of these",
            "have the kernel or the container manager offer them",
        )
    if not os.access(place, os.W_OK):
        return CheckResult(
            "rights.cgroup",
            "warn",
            f"{place} cannot be written to",
            "`imagefs run` refuses limits",
            "mount it writable, or run as root of the host",
        )
    return CheckResult("rights.cgroup", "ok", f"cgroup version {version}, with cpu, memory and pids")


_PROGRAMS = (
    ("runtime.oci", ("crun", "runc"), "neither crun nor runc is",
     "`imagefs run` starts nothing, and containerd starts nothing by its default runtime"),
    ("runtime.skopeo", ("skopeo",), "skopeo is not",
     "no `imagefs build docker://…`, and a layer of a lazy image that another image shares cannot be fetched alone"),
)  # fmt: skip


def runtime_findings(path: str | None = None) -> list[CheckResult]:
    """OCI runtimes and skopeo. path: to search, PATH unless given."""
    findings = []
    for check, programs, missing, cost in _PROGRAMS:
        found = [name for name in programs if shutil.which(name, path=path)]
        findings.append(
            CheckResult(check, "ok", " and ".join(found))
            if found
            else CheckResult(check, "warn", f"{missing} on PATH", cost, f"apt-get install {programs[0]}")
        )
    return findings


def file_system_of(path: str, mounts: list[kernel.MountPoint]) -> str:
    """The type of the file system that `path` lies on (absolute, links resolved), by the mount table; "" for none."""
    above = [one for one in mounts if path == one.path or path.startswith(f"{one.path.rstrip('/')}/")]
    longest = max((len(one.path) for one in above), default=0)
    return next((one.fstype for one in reversed(above) if len(one.path) == longest), "")


def cache_findings(folder: str, wanted: int, mounts: list[kernel.MountPoint] | None = None) -> list[CheckResult]:
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


def _no_cache(folder: str, why: str) -> CheckResult:
    return CheckResult(
        "cache.folder", "fail", f"{folder}: {why}", "the daemon does not start", "name another one: --cache DIR"
    )


def _file_system(folder: str, mounts: list[kernel.MountPoint] | None) -> CheckResult:
    kind = file_system_of(os.path.realpath(folder), kernel.mounts() if mounts is None else mounts)
    costs = {
        _IN_MEMORY: "what is kept takes memory, and is gone after a reboot",
        _STACKED: "EROFS takes no files there, so every device needs a loop device, and containers cannot write on it",
        _REMOTE: "every block that was fetched goes over the network again",
    }
    for kinds, cost in costs.items():
        if kind in kinds:
            return CheckResult(
                "cache.folder", "warn", f"{folder} is on {kind}", cost, "put it on a local disk: --cache DIR"
            )
    return CheckResult("cache.folder", "ok", f"{folder} is on {kind}")


def _room(folder: str, free: int, wanted: int) -> CheckResult:
    told = f"{format_size(free)} are free in {folder}"
    remedy = "make room, or put the cache on a larger disk: --cache DIR"
    if free < _TOO_LITTLE:
        return CheckResult("cache.room", "fail", told, "nothing that was fetched can be kept", remedy)
    if free < max(_LITTLE, wanted):
        return CheckResult("cache.room", "warn", told, "blocks are evicted early and fetched again", remedy)
    return CheckResult("cache.room", "ok", told)


_TRIED_WITHIN = 60.0
"""Seconds for all trials, which take a tenth of one."""

_SINCE = {"erofs-file": (6, 12), "erofs-loop": (5, 16), "overlay": (5, 16), "fuse": (4, 20), "fuse-resend": (6, 9)}
"""By trial, the Linux that brought it. EROFS takes several devices since 5.16."""

_FOUND = {
    "erofs-file": "EROFS from files, with several devices",
    "erofs-loop": "EROFS from loop devices",
    "overlay": "an overlay on EROFS, with its upper directory in the cache",
    "fuse": "FUSE",
    "fuse-resend": "FUSE_NOTIFY_RESEND",
}
_COSTS: dict[str, tuple[CheckState, str, str]] = {
    "erofs-file": (
        "warn",
        "every device of an image needs a loop device, which takes memory and caches its bytes twice",
        "take Linux 6.12 or later; where the cache lies on an overlay, move it to ext4 or xfs (--cache)",
    ),
    "erofs-loop": (
        "fail",
        "the kernel can mount no image: the tree plane only, no leases, no snapshotter",
        "modprobe erofs loop, or take a kernel with both",
    ),
    "overlay": (
        "fail",
        "no container and no `imagefs mount --rw` can write",
        "modprobe overlay, and have the cache on ext4 or xfs (--cache)",
    ),
    "fuse": ("fail", "neither images nor stripefs mounts can be served", "modprobe fuse"),
    "fuse-resend": (
        "warn",
        "a worker that is killed or replaced fails the calls under way and the files that are open",
        "take Linux 6.9 or later",
    ),
}


def kernel_findings(folder: str) -> list[CheckResult]:
    """Findings about the kernel. folder: of the cache, which is made where it is missing, and tried on by root."""
    version = release(os.uname().release)
    if os.geteuid() != 0:
        return judge_kernel(version, {})
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        done = subprocess.run(
            [sys.executable, "-P", "-m", "imagefs.doctor.host", folder],
            capture_output=True,
            text=True,
            timeout=_TRIED_WITHIN,
        )
        tried = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        trouble = CheckResult(
            "kernel.trial", "warn", f"nothing could be tried: {error}", "what follows is a guess by version"
        )
        return [trouble, *judge_kernel(version, {})]
    return judge_kernel(version, tried)


def release(text: str) -> tuple[int, int]:
    """Major and minor of what uname(2) calls the release; (0, 0) where it says something else."""
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def judge_kernel(version: tuple[int, int], tried: Mapping[str, str]) -> list[CheckResult]:
    """A finding for each trial: by its outcome ("ok" or why not), or by the kernel's version where it was not tried."""
    findings = []
    for name in TRIALS:
        if name == "erofs-loop" and tried.get("erofs-file") == "ok":
            continue  # nothing needs it
        since = "{}.{}".format(*_SINCE[name])
        outcome = tried.get(name) or ("ok" if version >= _SINCE[name] else f"not in Linux {version[0]}.{version[1]}")
        how = "works" if name in tried else f"in Linux since {since}, as root could try"
        if outcome == "ok":
            findings.append(CheckResult(f"kernel.{name}", "ok", f"{_FOUND[name]}: {how}"))
        else:
            state, cost, remedy = _COSTS[name]
            findings.append(CheckResult(f"kernel.{name}", state, f"{_FOUND[name]}: {outcome}", cost, remedy))
    return findings


def run_trials(folder: str) -> dict[str, str]:
    """By trial, "ok" or why not. Call it in a mount namespace of its own."""
    results: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="doctor-", dir=folder) as made:
        place = Path(made)
        metadata, devices = _image(place)
        for backing in ("file", "loop"):
            target = place / f"erofs-{backing}"
            target.mkdir()
            results[f"erofs-{backing}"] = _outcome(lambda b=backing, t=target: _try_erofs(metadata, devices, t, b))  # type: ignore[misc]
        lower = next((place / name for name in ("erofs-file", "erofs-loop") if results[name] == "ok"), None)
        results["overlay"] = _outcome(lambda: _try_overlay(lower, place)) if lower is not None else "no EROFS to lie on"
        results |= _try_fuse(place)
        for mounted in reversed(kernel.mounts()):
            if mounted.path.startswith(f"{os.path.realpath(made)}/"):
                kernel.unmount(mounted.path, kernel.MNT_DETACH)
    return results


def _image(folder: Path) -> tuple[str, list[str]]:
    """The metadata and the two devices of an image with one file."""
    source = folder / "source"
    source.mkdir()
    (source / "file").write_bytes(_CONTENT)
    root, contents = scan(str(source))
    (segment,) = lay_out(root, contents)
    cold, hot, metadata = folder / "cold", folder / "hot", folder / "meta.erofs"
    cold.write_bytes(bytes(segment.at) + _CONTENT)
    hot.write_bytes(bytes(BLOCK))
    with metadata.open("wb") as out:
        write(root, [DeviceSlot(b"cold", cold.stat().st_size // BLOCK), DeviceSlot(b"hot", 1)], out)
    return str(metadata), [str(cold), str(hot)]


def _try_erofs(metadata: str, devices: list[str], target: Path, backing: erofs.Backing) -> str:
    erofs.mount(metadata, devices, str(target), backing)
    return "ok" if (target / "file").read_bytes() == _CONTENT else "the kernel read other bytes than were written"


def _try_overlay(lower: Path, folder: Path) -> str:
    upper, work, merged = (folder / name for name in ("upper", "work", "merged"))
    for directory in (upper, work, merged):
        directory.mkdir()
    kernel.mount("overlay", str(merged), "overlay", 0, f"lowerdir={lower},upperdir={upper},workdir={work}")
    with (merged / "file").open("ab") as file:
        file.write(b"more")
    return (
        "ok"
        if (upper / "file").stat().st_size == len(_CONTENT) + 4
        else "what was written is not in the upper directory"
    )


def _try_fuse(folder: Path) -> dict[str, str]:
    """A connection that nobody serves: the kernel's first message tells what it can do."""
    target = folder / "fuse"
    target.mkdir()
    try:
        device = kernel.open_device()
        options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
        kernel.mount("doctor", str(target), "fuse.doctor", 0, options)
        init = kernel.read_init(device)
        os.close(device)  # ends the connection
    except (OSError, StripefsError) as error:
        return {"fuse": str(error), "fuse-resend": "no FUSE"}
    return {"fuse": "ok", "fuse-resend": "ok" if init.can_resend else "the kernel does not offer it"}


def _outcome(trial: Callable[[], str]) -> str:
    try:
        return trial()
    except (OSError, StripefsError) as error:
        return str(error)


if __name__ == "__main__":
    private_mounts()
    print(json.dumps(run_trials(sys.argv[1])))  # noqa: T201  how it answers
