"""The parts of this host that a container gets: devices, directories, capabilities, the filter of its system calls,
and the standard streams of the caller, which are the caller's again when the container has ended."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from imagefs.errors import RunError
from imagefs.reference import Platform
from imagefs.run.options import Bind
from imagefs.run.privileges import KNOWN
from imagefs.run.seccomp import Profile
from imagefs.run.spec import DeviceNode

__all__ = [
    "capabilities",
    "devices",
    "find_bind",
    "owners_kept",
    "seccomp_profile",
    "terminal_kept",
    "wants_terminal",
]

_OWN_PROFILE = Path(__file__).with_name("seccomp.json")


def devices(paths: Sequence[str]) -> list[DeviceNode]:
    """The device at each of `paths`, at the same path inside; of a directory all devices below it. Raises RunError."""
    found: dict[str, DeviceNode] = {}
    for path in paths:
        path = os.path.abspath(path)
        nodes = list(_below(path) if os.path.isdir(path) else _at(path))
        if not nodes:
            raise RunError(f"--device {path}: there is no device")
        found |= {node.path: node for node in nodes}
    return list(found.values())


def capabilities() -> list[str]:
    """Those that processes started from here can have: the bounding set of this one. Raises OSError."""
    status = Path("/proc/self/status").read_text()
    bits = int(status.partition("\nCapBnd:")[2].split(maxsplit=1)[0], 16)
    return [name for number, name in enumerate(KNOWN) if bits >> number & 1]


def seccomp_profile(wanted: str) -> Profile | None:
    """`wanted` is "default", "unconfined" (None), or the path of a profile in Docker's form. Raises RunError."""
    if wanted == "unconfined":
        return None
    path = _OWN_PROFILE if wanted == "default" else Path(wanted)
    source = f"--seccomp {wanted}"
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise RunError(f"{source}: {error.strerror}", hint="FILE, default or unconfined") from error
    except (ValueError, RecursionError) as error:
        raise RunError(f"{source} is no JSON: {error}") from error
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    kernel = (int(release[1]), int(release[2])) if release else (0, 0)
    return Profile(document, source, Platform.here().architecture, kernel)


def find_bind(bind: Bind) -> Bind:
    """A bind with the whole path of its source, and whether that is a directory. Raises RunError."""
    source = os.path.abspath(bind.source)
    if not os.path.exists(source):
        raise RunError(f"--bind {bind.source}:{bind.target}: {source} does not exist")
    return bind._replace(source=source, directory=os.path.isdir(source))


def wants_terminal(wanted: bool | None) -> bool:
    """Tells whether the container gets a terminal. wanted: None where the caller did not say. Raises RunError."""
    here = os.isatty(0)
    if wanted and not here:
        raise RunError("the container cannot have a terminal: standard input is none")
    return here and os.isatty(1) if wanted is None else wanted


@contextlib.contextmanager
def terminal_kept(used: bool) -> Iterator[None]:
    """Give the terminal back as it was: a runtime that is killed leaves it raw."""
    if not used:
        yield
        return
    import termios

    before = termios.tcgetattr(0)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


@contextlib.contextmanager
def owners_kept() -> Iterator[None]:
    """Give the files that standard input, output and error are back to their owners: crun makes them the container's,
    whose user can then open /dev/stdout anew."""
    before = {}
    for stream in (0, 1, 2):
        with contextlib.suppress(OSError):  # it is closed
            before[stream] = os.fstat(stream)
    try:
        yield
    finally:
        for stream, status in before.items():
            now = os.fstat(stream)
            if stat.S_ISREG(now.st_mode) and (now.st_uid, now.st_gid) != (status.st_uid, status.st_gid):
                os.fchown(stream, status.st_uid, status.st_gid)


def _below(folder: str) -> Iterator[DeviceNode]:
    for parent, _, names in os.walk(folder):
        for name in sorted(names):
            yield from _at(os.path.join(parent, name), follow_symlinks=False)


def _at(path: str, *, follow_symlinks: bool = True) -> Iterator[DeviceNode]:
    try:
        status = os.stat(path, follow_symlinks=follow_symlinks)
    except OSError as error:
        raise RunError(f"--device {path}: {error.strerror}") from error
    kind = "c" if stat.S_ISCHR(status.st_mode) else "b" if stat.S_ISBLK(status.st_mode) else ""
    if kind:
        major, minor = os.major(status.st_rdev), os.minor(status.st_rdev)
        yield DeviceNode(path, kind, major, minor, stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid)
