"""The Linux kernel's interfaces around a FUSE mount, called directly: mount(2), prctl(2), /dev/fuse, sysfs, fusectl.

Only the standard library, because the supervisor imports it. Nothing here touches a file on a FUSE mount: facts about
a mount come from /proc/self/mountinfo, never from stat(2), which would wait for the worker.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import select
import struct
from collections.abc import Iterator

from stripefs.errors import MountError
from stripefs.osutil import check
from stripefs.records import NamedTuple

__all__ = [
    "MNT_DETACH",
    "Init",
    "MountPoint",
    "abort",
    "connected",
    "find_mount",
    "mount",
    "mounts",
    "open_device",
    "parse_init",
    "parse_mountinfo",
    "read_init",
    "resend",
    "set_io_flusher",
    "tune",
    "unmount",
]

DEVICE = "/dev/fuse"
CONNECTIONS = "/sys/fs/fuse/connections"
BDI = "/sys/class/bdi"
MNT_DETACH = 2

CONTAINER_HINT = "in a container start it with --device /dev/fuse --cap-add SYS_ADMIN; on a host run modprobe fuse"

_PR_SET_IO_FLUSHER = 57

_INIT_SIZE = 1 << 21
"""The kernel wants a read buffer of at least 8 KiB and of the largest request; 2 MiB is beyond both."""

_NOTIFY_RESEND = struct.pack("<IiQ", 16, 7, 0)
"""fuse_out_header{len = 16, error = notify code 7, unique = 0} of include/uapi/linux/fuse.h."""

_INIT_IN = struct.Struct("<40xIIIII")
"""fuse_in_header, then fuse_init_in{major, minor, max_readahead, flags, flags2} as far as it matters here."""

_INIT_EXT = 1 << 30  # flags2 is there
_HAS_RESEND = 1 << (39 - 32)  # in flags2, since FUSE 7.40 of Linux 6.9

_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
"""System calls without a wrapper in Debian 12's libc; the numbers are the same on all architectures."""

_CLOEXEC = 1  # FSOPEN_CLOEXEC and FSMOUNT_CLOEXEC
_FSCONFIG_CMD_CREATE = 6

_libc = ctypes.CDLL(None, use_errno=True)


# Mounting
def open_device() -> int:
    """A new FUSE connection's descriptor. Raises MountError where there is none to be had."""
    try:
        return os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise MountError(f"{DEVICE} cannot be opened: {error.strerror}", hint=CONTAINER_HINT) from error


def mount(source: str, target: str, fstype: str, flags: int, data: str) -> None:
    """mount(2). Raises OSError."""
    check(_libc.mount(_bytes(source), _bytes(target), _bytes(fstype), ctypes.c_ulong(flags), _bytes(data)), target)


def unmount(target: str, flags: int = 0) -> None:
    """umount2(2). Raises OSError."""
    check(_libc.umount2(_bytes(target), flags), target)


class MountPoint(NamedTuple):
    """One line of mountinfo. `device` is "MAJOR:MINOR"."""

    path: str
    device: str
    fstype: str
    source: str
    options: str
    super_options: str

    @property
    def connection(self) -> str:
        """The name of a FUSE mount's connection below /sys/fs/fuse/connections."""
        major, minor = self.device.split(":")
        return str(int(major) << 20 | int(minor))


def mounts() -> list[MountPoint]:
    """All mounts that this process sees, oldest first."""
    with open("/proc/self/mountinfo", "rb") as table:
        return parse_mountinfo(table.read())


def parse_mountinfo(table: bytes) -> list[MountPoint]:
    found = []
    for line in os.fsdecode(table).split("\n")[:-1]:
        head, _, tail = line.partition(" - ")
        fields, (fstype, source, super_options) = head.split(" "), tail.split(" ", 2)
        found.append(MountPoint(_unescape(fields[4]), fields[2], fstype, _unescape(source), fields[5], super_options))
    return found


def find_mount(path: str) -> MountPoint | None:
    """The topmost mount at exactly `path` (absolute, links resolved)."""
    here = [mount for mount in mounts() if mount.path == path]
    return here[-1] if here else None


# The connection
class Init(NamedTuple):
    """The kernel's first message, kept so that every worker can be initialised with it.

    can_resend: the kernel knows FUSE_NOTIFY_RESEND.
    """

    message: bytes
    can_resend: bool


def read_init(device: int) -> Init:
    """Read FUSE_INIT off a new connection; waits for it."""
    return parse_init(os.read(device, _INIT_SIZE))


def parse_init(message: bytes) -> Init:
    _, _, _, flags, flags2 = _INIT_IN.unpack_from(message.ljust(_INIT_IN.size, b"\0"))
    return Init(message, bool(flags & _INIT_EXT and flags2 & _HAS_RESEND))


def connected(device: int) -> bool:
    """False once the file system was unmounted or its connection aborted."""
    poll = select.poll()
    poll.register(device, select.POLLERR)
    return not any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def resend(device: int) -> None:
    """Queue again whatever was handed to a worker that is gone."""
    os.write(device, _NOTIFY_RESEND)


def abort(connection: str) -> bool:
    """End a connection: all its calls fail, now and later. False where fusectl is not there or not ours."""
    try:
        with _fusectl() as control:
            _write(f"{control}/{connection}/abort", 1)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _fusectl() -> Iterator[str]:
    """The fusectl file system: where systemd mounts it, else one of our own that nobody else sees. Raises OSError."""
    if find_mount(CONNECTIONS) is not None:
        yield CONNECTIONS
        return
    with contextlib.ExitStack() as held:
        context = _syscall(_FSOPEN, b"fusectl", _CLOEXEC)
        held.callback(os.close, context)
        _syscall(_FSCONFIG, context, _FSCONFIG_CMD_CREATE, None, None, 0)
        root = _syscall(_FSMOUNT, context, _CLOEXEC, 0)
        held.callback(os.close, root)
        yield f"/proc/self/fd/{root}"


# Tuning
def tune(mount: MountPoint, read_ahead_kb: int, max_background: int) -> dict[str, dict[str, object]]:
    """Set what only sysfs can set.

    Name → {"wanted", "now" (None where unreadable), "limit" (what keeps it from being as wanted, or "")}.
    """
    report = {"read_ahead_kb": _set(f"{BDI}/{mount.device}/read_ahead_kb", read_ahead_kb)}
    background = {"max_background": max_background, "congestion_threshold": max_background * 3 // 4}
    try:
        with _fusectl() as control:
            for name, wanted in background.items():
                report[name] = _set(f"{control}/{mount.connection}/{name}", wanted)
    except OSError as error:
        for name, wanted in background.items():
            report[name] = {"wanted": wanted, "now": None, "limit": f"no fusectl: {error.strerror}"}
    return report


def _write(file: str, value: int) -> None:
    with open(file, "w") as opened:
        opened.write(str(value))


def _set(file: str, wanted: int) -> dict[str, object]:
    limit = ""
    try:
        _write(file, wanted)
    except OSError as error:
        limit = f"{file}: {error.strerror}"
    try:
        with open(file) as opened:
            now: int | None = int(opened.read())
    except (OSError, ValueError):
        now = None
    if not limit and now != wanted:
        limit = f"{file}: the kernel keeps {now}"
    return {"wanted": wanted, "now": now, "limit": "" if now == wanted else limit}


# This process
def set_io_flusher() -> bool:
    """Tell the kernel that we serve I/O, so that our allocations never wait for our own mount. Needs privilege."""
    return bool(_libc.prctl(_PR_SET_IO_FLUSHER, 1, 0, 0, 0) == 0)


def _bytes(text: str) -> bytes:
    raw = os.fsencode(text)
    if b"\0" in raw:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), text)
    return raw


def _syscall(number: int, *arguments: bytes | int | None) -> int:
    return check(_libc.syscall(number, *arguments), "fusectl")


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
