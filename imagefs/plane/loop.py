"""Loop devices over files, read-only, for kernels whose EROFS cannot mount a file.

A device clears itself when the last user is gone (LO_FLAGS_AUTOCLEAR): the mount that holds it, or this process when it
ends before there is a mount. So nothing needs to detach them, and a crash leaves none.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
from collections.abc import Iterator, Sequence

from stripefs.errors import MountError

__all__ = ["attached", "backing_file"]

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
    name = os.fsencode(file)[:63]  # what losetup shows where sysfs is not there
    config = _CONFIG.pack(backing, 0, *[0] * 8, _READ_ONLY | _AUTOCLEAR, name, b"", b"", 0, 0)
    try:
        fcntl.ioctl(descriptor, _CONFIGURE, config)
    except OSError as error:
        os.close(descriptor)
        if error.errno == errno.EBUSY:
            return None
        raise OSError(error.errno, error.strerror, path) from error
    return descriptor
