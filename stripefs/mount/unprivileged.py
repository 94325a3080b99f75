"""Mounting as a plain user: fusermount3 mounts for us and hands the connection's descriptor over a socket."""

from __future__ import annotations

import array
import errno
import os
import shutil
import socket
import subprocess
from collections.abc import Sequence

from stripefs.errors import MountError
from stripefs.mount.kernel import CONTAINER_HINT

__all__ = ["mount", "unmount"]

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


def mount(source: str, target: str, subtype: str, options: Sequence[str]) -> int:
    """Mount and answer the descriptor of the new connection. Raises MountError with what fusermount3 said."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    fsname = source.replace("\\", "\\\\").replace(",", "\\,")
    with ours, theirs:
        done = subprocess.run(
            [_program(), "-o", ",".join([*options, f"fsname={fsname}", f"subtype={subtype}"]), "--", target],
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


def unmount(target: str, *, lazy: bool = False) -> None:
    """Unmount what `mount` mounted. Raises OSError where it is busy, and MountError with what fusermount3 said."""
    done = subprocess.run(
        [_program(), "-u", *(["-z"] if lazy else []), "--", target],
        env={**os.environ, "LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode and os.strerror(errno.EBUSY) in done.stderr:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), target)
    if done.returncode:
        raise MountError(f"{target} cannot be unmounted: {done.stderr.strip()}")


def _program() -> str:
    program = shutil.which(_PROGRAM)
    if program is None:
        raise MountError(f"{_PROGRAM} is not installed", hint="install the package fuse3, or mount as root")
    return program
