"""EROFS mounts of the kernel over a local metadata image and the devices with the data, by files or loop devices.

Since Linux 6.12 the kernel takes files as they are (`file`); before, and where it refuses them because they lie on an
overlay, a loop device stands before each of them (`loop`). Devices may be files of a FUSE mount whose every answer
waits for a worker, so nothing here looks at them: the kernel opens them, and nobody reads before the mount is used.

A loop device is read-only and clears itself when the last user is gone (LO_FLAGS_AUTOCLEAR): the mount that holds it,
or this process when it ends before there is a mount. So nothing needs to detach them, and a crash leaves none.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
from collections.abc import Iterator, Sequence

from stripefs.errors import MountError
from stripefs.fuse import kernel
from stripefs.records import NamedTuple

TYPE_CHECKING = False  # as in typing, which would be loaded for it
if TYPE_CHECKING:
    from typing import Literal

    Backing = Literal["file", "loop"]

__all__ = ["READ_AHEAD_KIB", "ErofsMount", "attached", "backing_file", "lazy_read_ahead", "mount", "mounted"]

_CONTROL = "/dev/loop-control"
_GET_FREE, _CONFIGURE = 0x4C82, 0x4C0A
"""LOOP_CTL_GET_FREE and LOOP_CONFIGURE (since Linux 5.8) of include/uapi/linux/loop.h."""

_READ_ONLY, _AUTOCLEAR = 1, 4
_CONFIG = struct.Struct("=II5Q4I64s64s32s2Q64x")
"""loop_config: descriptor, block size, then loop_info64, whose flags are the last of its four words of 32 bits."""

_ATTEMPTS = 1000
"""Others who look for a free device at the same time may be given the same one; each of them takes one at most."""


@contextlib.contextmanager
def attached(files: Sequence[str]) -> Iterator[list[str]]:
    """A loop device for each of `files`, such as /dev/loop3. After the block they last as long as a mount holds them.

    Opens the files, but reads nothing of them. Raises MountError.
    """
    with contextlib.ExitStack() as held:
        devices = []
        for file in files:
            path, descriptor = _attach(file)
            held.callback(os.close, descriptor)
            devices.append(path)
        yield devices


def backing_file(device: str) -> str:
    """The file below /dev/loopN, "" when that is none, or serves no file any more."""
    folder, _, name = device.rpartition("/")
    if folder != "/dev" or not name.startswith("loop"):
        return ""
    try:
        with open(f"/sys/block/{name}/loop/backing_file", "rb") as file:
            return os.fsdecode(file.read().removesuffix(b"\n"))
    except OSError:
        return ""


def _attach(file: str) -> tuple[str, int]:
    """A device over `file` and the descriptor that keeps it until it is mounted."""
    try:
        backing = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise MountError(f"{file} cannot be opened: {error.strerror}") from error
    try:
        control = os.open(_CONTROL, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        os.close(backing)
        hint = "modprobe loop; in a container make /dev/loop-control and /dev/loop* known to it"
        raise MountError(f"{_CONTROL} cannot be opened: {error.strerror}", hint=hint) from error
    try:
        for _ in range(_ATTEMPTS):
            path = f"/dev/loop{fcntl.ioctl(control, _GET_FREE)}"
            if (descriptor := _configure(path, backing, file)) is not None:
                return path, descriptor
    except OSError as error:
        hint = "the container does not know this device" if error.errno == errno.ENOENT else ""
        raise MountError(
            f"no loop device for {file}: {error.filename or _CONTROL}: {error.strerror}", hint=hint
        ) from error
    finally:
        os.close(control)
        os.close(backing)
    raise MountError(f"no loop device for {file}: others took each one that was free", hint="try again")


def _configure(path: str, backing: int, file: str) -> int | None:
    """The descriptor of the device, None when somebody else took it meanwhile. Raises OSError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:  # removed meanwhile
            return None
        raise
    name = os.fsencode(file)[:63]  # losetup shows it where there is no sysfs
    config = _CONFIG.pack(backing, 0, *[0] * 8, _READ_ONLY | _AUTOCLEAR, name, b"", b"", 0, 0)
    try:
        fcntl.ioctl(descriptor, _CONFIGURE, config)
    except OSError as error:
        os.close(descriptor)
        if error.errno == errno.EBUSY:
            return None
        raise OSError(error.errno, error.strerror, path) from error
    return descriptor


_MS_RDONLY, _MS_NOSUID, _MS_NODEV = 1, 2, 4
_NO_FILES = (errno.ENOTBLK, errno.EINVAL, errno.EOPNOTSUPP)
"""Errors of the kernel when it cannot mount files: it is too old or built without, or they lie on an overlay."""

_HINTS = {
    errno.ENOTBLK: "file-backed EROFS needs Linux 6.12 and CONFIG_EROFS_FS_BACKED_BY_FILE: --erofs-backing loop",
    errno.EINVAL: "dmesg says more; where the file lies on an overlay: --erofs-backing loop",
    errno.ENODEV: "the kernel has no EROFS: modprobe erofs, or --plane tree",
    errno.EPERM: "mounting needs root: --plane tree does without",
}


class ErofsMount(NamedTuple):
    """One EROFS mount: its mountpoint, the metadata image it was mounted from, and what was put before the files.

    metadata: "" for a loop device whose file is not known any more, and the device for any other block device.
    """

    path: str
    metadata: str
    backing: Backing


def mount(
    metadata: str,
    devices: Sequence[str],
    target: str,
    backing: Literal["auto", "file", "loop"] = "auto",
    *,
    confined: bool = False,
) -> Backing:
    """Mount the image at `target`, read-only. Answers what was put before the files. confined: with nosuid and nodev.

    `auto` takes loop devices where the kernel refuses files. The system call and not mount(8), which may quietly do
    so anywhere. Raises MountError.
    """
    metadata, devices = os.path.abspath(metadata), [os.path.abspath(device) for device in devices]
    flags = _MS_RDONLY | (_MS_NOSUID | _MS_NODEV if confined else 0)
    if backing != "loop":
        try:
            _mount(metadata, devices, target, flags)
        except OSError as error:
            if backing == "file" or error.errno not in _NO_FILES:
                raise _refused(metadata, target, error) from error
        else:
            return "file"
    with attached([metadata, *devices]) as (first, *others):
        try:
            _mount(first, others, target, flags)
        except OSError as error:
            raise _refused(metadata, target, error) from error
    return "loop"


def mounted() -> list[ErofsMount]:
    """All EROFS mounts that this process sees, oldest first; of other programs too. Touches none of them."""
    found = []
    for one in kernel.mounts():
        if one.fstype != "erofs":
            continue
        is_loop = one.source.startswith("/dev/loop")
        metadata = backing_file(one.source) if is_loop else one.source
        found.append(ErofsMount(one.path, metadata, "loop" if is_loop else "file"))
    return found


READ_AHEAD_KIB = 16
"""The read-ahead of lazy images. Around each page of a mapped file that is touched the kernel reads as much, 128 KiB
by default: imports of numpy, scipy and pandas then read 61 MB, with this 44, and with 4 KiB 38."""


@contextlib.contextmanager
def lazy_read_ahead() -> Iterator[None]:
    """Let the file systems that the block mounts from files read ahead `READ_AHEAD_KIB`, where sysfs can be written.

    Meant for devices on the daemon's mount: the kernel reads ahead on that as well, so sequential reads take as few
    requests as before. A mount from files has no name in sysfs that leads to it, so one of EROFS that another process
    makes at the same time is set as well.
    """
    before = _file_systems()
    yield
    for name in _file_systems() - before:
        # Where it has just gone, or sysfs is read-only, all works, with more bytes.
        with contextlib.suppress(OSError), open(f"{kernel.BDI}/{name}/read_ahead_kb", "w") as file:
            file.write(str(READ_AHEAD_KIB))


def _file_systems() -> set[str]:
    """The EROFS mounts from files of this machine, as sysfs names what they read ahead; none without sysfs."""
    try:
        return {name for name in os.listdir(kernel.BDI) if name.startswith("erofs-")}
    except OSError:
        return set()


def _mount(source: str, devices: Sequence[str], target: str, flags: int) -> None:
    """Raises OSError."""
    with contextlib.ExitStack() as held:
        options = []
        for device in devices:
            if "," in device:  # would end the option; the kernel has no way to escape it
                descriptor = os.open(device, os.O_PATH | os.O_CLOEXEC)
                held.callback(os.close, descriptor)
                device = f"/proc/self/fd/{descriptor}"
            options.append(f"device={device}")
        kernel.mount(source, target, "erofs", flags, ",".join(options))


def _refused(metadata: str, target: str, error: OSError) -> MountError:
    hint = _HINTS.get(error.errno or 0, "")
    return MountError(f"{target}: EROFS refused {metadata}: {os.strerror(error.errno or 0)}", hint=hint)
