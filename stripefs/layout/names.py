"""The hidden names of what is being written: all begin with a dot and hold `.stripefs-`, none is shown in a mount.

In the directory of a file NAME, of which VERSION (16 hex digits, drawn at random) is being written:

    .NAME.stripefs-lock               who writes NAME now
    .NAME.stripefs-lock-VERSION       a lock on its way to be taken over
    .NAME.stripefs-VERSION-K          part K of it, or all of it
    .NAME.stripefs-VERSION-manifest   the manifest of a striped file before it is renamed onto NAME
    .NAME.stripefs-VERSION-record     what `fsync` made durable, for recovery

Parts of striped files lie in the pool, `/.stripefs/VERSION/K` of the store. Names are at most 255 bytes in most stores:
a NAME of more than 200 bytes stands shortened to 160 and the xxh3-64 of the whole, so it cannot be read back from
the hidden name; records and locks hold it in full.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

import xxhash

__all__ = [
    "POOL",
    "POOL_NAME",
    "Hidden",
    "hidden",
    "is_hidden",
    "join",
    "lock_path",
    "manifest_path",
    "new_version",
    "parse",
    "part_path",
    "pool_directory",
    "pool_path",
    "record_path",
    "split",
]

POOL_NAME = b".stripefs"
POOL = b"/" + POOL_NAME
"""The pool, from the root of the store."""

_LONGEST = 200
_KEPT = 160
_PATTERN = re.compile(
    rb"\A\.(.+)\.stripefs-(?:(lock)(?:-([0-9a-f]{16}))?|([0-9a-f]{16})-(manifest|record|[0-9]{1,9}))\Z", re.S
)


@dataclass(frozen=True, slots=True)
class Hidden:
    """A hidden name taken apart. `kind` is lock, part, manifest or record; version "" for a lock that is held.

    `name` is NAME as it stands in the hidden name, which is shortened where NAME is long. part is -1 for other kinds.
    """

    name: bytes
    kind: str
    version: str = ""
    part: int = -1


def new_version() -> str:
    """16 hex digits that nobody has drawn before, and nobody can guess."""
    return secrets.token_hex(8)


def split(path: bytes) -> tuple[bytes, bytes]:
    """The directory and the last component of an absolute path."""
    folder, _, name = path.rpartition(b"/")
    return folder or b"/", name


def join(folder: bytes, name: bytes) -> bytes:
    return (b"" if folder == b"/" else folder) + b"/" + name


def hidden(name: bytes, suffix: str) -> bytes:
    """`.NAME.stripefs-SUFFIX`."""
    if len(name) > _LONGEST:
        name = name[:_KEPT] + b"~" + xxhash.xxh3_64_hexdigest(name).encode()
    return b".%b.stripefs-%b" % (name, suffix.encode())


def _beside(path: bytes, suffix: str) -> bytes:
    folder, name = split(path)
    return join(folder, hidden(name, suffix))


def lock_path(path: bytes, version: str = "") -> bytes:
    """The lock of the file at `path`; with `version`, where that writer puts one that it takes over."""
    return _beside(path, f"lock-{version}" if version else "lock")


def part_path(path: bytes, version: str, part: int) -> bytes:
    return _beside(path, f"{version}-{part}")


def manifest_path(path: bytes, version: str) -> bytes:
    return _beside(path, f"{version}-manifest")


def record_path(path: bytes, version: str) -> bytes:
    return _beside(path, f"{version}-record")


def pool_directory(version: str) -> bytes:
    return join(POOL, version.encode())


def pool_path(version: str, part: int) -> bytes:
    """Part `part` of a striped version, from the root of the store."""
    return join(pool_directory(version), str(part).encode())


def parse(name: bytes) -> Hidden | None:
    """A hidden name (one component) taken apart, None for a name that is none of ours."""
    match = _PATTERN.match(name)
    if match is None:
        return None
    shown, lock, taken, version, kind = match.groups()
    if lock:
        return Hidden(shown, "lock", (taken or b"").decode())
    if kind.isdigit():
        return Hidden(shown, "part", version.decode(), int(kind))
    return Hidden(shown, kind.decode(), version.decode())


def is_hidden(name: bytes) -> bool:
    """Whether a mount neither shows nor lets make this name (one component). The pool is hidden in the root only."""
    return parse(name) is not None
