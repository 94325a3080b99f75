"""Reserved names, which a mount hides: parts being written, locks, records, and the pool of striped parts.

    .NAME.stripefs-VERSION-K         files of an upload to NAME, beside it: parts, and files that will be renamed onto
                                     NAME or onto its lock
    .NAME.stripefs-VERSION-draft     the file that `stripefs recover` puts together
    .NAME.stripefs-VERSION-5000000000 and above
                                     the same parts and drafts, moved here by a writer that took over from theirs
    .NAME.stripefs-VERSION-record    record of an fsync, for `stripefs recover`
    .NAME.stripefs-VERSION-record-N  the same, number N: the highest counts, with the ones that it says it continues
    .NAME.stripefs-lock              lock of the writer of NAME
    .NAME.stripefs-copy              the bytes that `stripefs cp` has of NAME so far, in a local directory
    ..stripefs-copied-KEY            journal of the files that `stripefs cp` has copied into a local directory
    /.stripefs/VERSION/K             part K of a striped version, in the pool at the store's root
    /.stripefs/VERSION/list-DIGEST   the part list of a version that has too many for its manifest

VERSION is 16 hexadecimal digits, K is decimal without leading zeros. None of these names is listed or can be looked
up, made or renamed to through a mount. The rule is wider than the names in use, so that an older program hides what a
newer one makes: a name is hidden if it is `.stripefs`, or begins with a dot and holds `.stripefs-` after that.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

import xxhash

__all__ = [
    "LAYOUT_NAME",
    "MARK",
    "NAME_MAX",
    "POOL",
    "POOL_NAME",
    "VERSION",
    "ReservedName",
    "aside_name",
    "copied_name",
    "copy_name",
    "draft_name",
    "is_hidden",
    "is_hidden_path",
    "is_version",
    "list_path",
    "lock_name",
    "new_version",
    "parse_reserved",
    "part_name",
    "pool_part",
    "record_name",
    "stem",
    "version_folder",
]

POOL_NAME = b".stripefs"
"""The folder of parts at the root of a store."""

POOL = b"/" + POOL_NAME
"""The pool as a path of its store."""

MARK = b".stripefs-"
"""The mark in every hidden name beside a file, after the file's name."""

LAYOUT_NAME = b"." + MARK + b"layout"
"""The layout that the directory it lies in asks for."""

NAME_MAX = 255
"""Bytes of a name on all file systems we know."""

LONGEST_SUFFIX = 48
"""Bytes kept free behind a file's name: the longest suffix, of a record, has 10 + 16 + 8 + 10."""

VERSION = re.compile(r"[0-9a-f]{16}")

_ASIDE = 5_000_000_000
_DRAFT_ASIDE = 9_999_999_999
"""Writers count their parts from 0 and never come near either."""

_HIDDEN = re.compile(
    rb"\.(?P<stem>.+)\.stripefs-(?:(?P<lock>lock)|(?P<version>[0-9a-f]{16})-(?P<what>record|draft|0|[1-9][0-9]{0,9})"
    rb"(?:(?<=record)-(?P<record>[1-9][0-9]{0,9}))?)",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class ReservedName:
    """A hidden name in parts. kind is "part", "draft", "record" or "lock"; version "" and number -1 where it has none.

    The first record has number 0. `stem` is what `stem(NAME)` answers for the file it belongs to.
    """

    kind: str
    stem: bytes
    version: str = ""
    number: int = -1


def new_version() -> str:
    """A version that no other writer has: 64 random bits as 16 hexadecimal digits."""
    return secrets.token_hex(8)


def is_version(text: str) -> bool:
    return VERSION.fullmatch(text) is not None


def is_hidden(name: bytes) -> bool:
    """True if a mount keeps a name (one component of a path) to itself."""
    return name == POOL_NAME or (name.startswith(b".") and MARK in name[1:])


def is_hidden_path(path: bytes) -> bool:
    """True if a path of the store is hidden or lies below something that is."""
    return any(map(is_hidden, path.split(b"/")))


def stem(name: bytes) -> bytes:
    """The form of NAME in hidden names: itself, or its digest where there would be no room behind it."""
    return name if 1 + len(name) + LONGEST_SUFFIX <= NAME_MAX else b"~" + xxhash.xxh3_128_hexdigest(name).encode()


def part_name(name: bytes, version: str, number: int) -> bytes:
    """Part `number` of the file `name` (a component, not a path) that is being written as `version`."""
    return _beside(name, f"{version}-{number}")


def draft_name(name: bytes, version: str) -> bytes:
    """The file that is assembled of the parts of `version`, to be renamed onto `name`."""
    return _beside(name, f"{version}-draft")


def record_name(name: bytes, version: str, number: int = 0) -> bytes:
    """Record `number` of those that fsync leaves of `version`."""
    return _beside(name, f"{version}-record-{number}" if number else f"{version}-record")


def aside_name(name: bytes) -> bytes:
    """The new name of a part or draft with the hidden name `name` when another writer takes over; b"" for anything
    else."""
    found = parse_reserved(name)
    if found is None or found.kind not in ("part", "draft") or found.number >= _ASIDE:
        return b""
    number = _DRAFT_ASIDE if found.kind == "draft" else _ASIDE + found.number
    return b".%b%b%b-%d" % (found.stem, MARK, found.version.encode(), number)


def lock_name(name: bytes) -> bytes:
    """The lock of the writer of `name`."""
    return _beside(name, "lock")


def copy_name(name: bytes) -> bytes:
    """The partial copy that is to be renamed onto `name`."""
    return _beside(name, "copy")


def copied_name(key: str) -> bytes:
    """The list of what was copied into the directory it lies in, by the command that `key` stands for."""
    return b"." + MARK + b"copied-" + key.encode()


def _beside(name: bytes, suffix: str) -> bytes:
    return b"." + stem(name) + MARK + suffix.encode()


def parse_reserved(name: bytes) -> ReservedName | None:
    """A hidden name beside a file, in parts; None for one that this program does not make."""
    match = _HIDDEN.fullmatch(name)
    if match is None:
        return None
    if match["lock"]:
        return ReservedName("lock", match["stem"])
    version, what = match["version"].decode(), match["what"].decode()
    if what.isdigit():
        return ReservedName("part", match["stem"], version, int(what))
    return ReservedName(what, match["stem"], version, int(match["record"] or 0) if what == "record" else -1)


def version_folder(version: str, pool: bytes = POOL) -> bytes:
    """The folder of a striped version's parts, as a path of the store."""
    return pool + b"/" + version.encode()


def pool_part(version: str, number: int, pool: bytes = POOL) -> bytes:
    """Part `number` of a striped version, as a path of the store."""
    return version_folder(version, pool) + b"/%d" % number


def list_path(version: str, digest: bytes, pool: bytes = POOL) -> bytes:
    """The part list with this digest (16 bytes) of a striped version, as a path of the store."""
    return version_folder(version, pool) + b"/list-" + digest.hex().encode()
