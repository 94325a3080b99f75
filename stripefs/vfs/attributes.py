"""Attributes that the store has, as programs on this host see them: owners as numbers, and extended attributes.

**Owners.** A name of a user or group in the store that this host knows (passwd, group and whatever NSS adds) maps to
its number, decimal text to that number, anything else to the user and group that mounted. `uid` and `gid` >= 0 override
all names.

**Extended attributes** tell what the store knows of a file. They are read by name, and listed by no call:

user.stripefs.block_size   bytes, decimal; the unit in which the store spreads the file over hosts
user.stripefs.layout       of a directory, where it was set: the layout of files that are written in it and below
user.stripefs.locations    JSON: [{"offset": bytes, "length": bytes, "hosts": [names]}, …] block by block; where the
                           value would pass 64 KiB (the kernel's limit) the last item is {"more": blocks left out}
user.stripefs.replication  decimal
user.stripefs.source       the URL of the file
user.stripefs.version      "length:mtime_ns:file_id", equal for equal bytes
"""

from __future__ import annotations

import grp
import json
import os
import pwd
from collections.abc import Callable, Iterable, Sequence
from urllib.parse import quote_from_bytes

from stripefs.errors import NotPermitted
from stripefs.store.base import Block, Status

__all__ = [
    "XATTRS_OF_FILES",
    "XATTRS_OF_OTHERS",
    "XATTR_LOCATIONS",
    "XATTR_NAMESPACE",
    "XATTR_PREFIX",
    "IdMap",
    "xattr_locations",
    "xattr_value",
]

_LARGEST_ID = (1 << 32) - 2
"""2^32 - 1 means "unchanged" to chown and is no user."""

XATTR_NAMESPACE = b"user."
"""No other name is kept here: no access control lists, labels or capabilities."""

XATTR_PREFIX = b"user.stripefs."
XATTR_LOCATIONS = XATTR_PREFIX + b"locations"
XATTRS_OF_FILES = tuple(
    XATTR_PREFIX + name for name in (b"block_size", b"locations", b"replication", b"source", b"version")
)
XATTRS_OF_OTHERS = (XATTR_PREFIX + b"source",)

_XATTR_LIMIT = 64 << 10
"""XATTR_SIZE_MAX of the kernel."""


class IdMap:
    """The mapping of one mount. Answers are kept: a name changes its number only in the next worker."""

    def __init__(self, uid: int = -1, gid: int = -1) -> None:
        self._uid = uid
        self._gid = gid
        self._own_uid = os.getuid()
        self._own_gid = os.getgid()
        self._uids: dict[str, int] = {"": self._own_uid}
        self._gids: dict[str, int] = {"": self._own_gid}

    def learn(self, statuses: Iterable[Status]) -> None:
        """Look up the names in `statuses`. NSS may ask a network service, so call this in a thread."""
        for status in statuses:
            if self._uid < 0 and status.owner not in self._uids:
                self._uids[status.owner] = self._find_uid(status.owner)
            if self._gid < 0 and status.group not in self._gids:
                self._gids[status.group] = self._find_gid(status.group)

    def uid(self, name: str) -> int:
        """The number of a name that `learn` has seen; the mounting user's for others."""
        return self._uid if self._uid >= 0 else self._uids.get(name, self._own_uid)

    def gid(self, name: str) -> int:
        return self._gid if self._gid >= 0 else self._gids.get(name, self._own_gid)

    def owner(self, uid: int, now: str, like: str) -> str | None:
        """The name in the store of the user with this number here; None where `now` is that user's already.

        `like` is some owner in the store, which tells whether names are kept there or numbers. Raises NotPermitted
        where the mount shows one user as the owner of everything. Blocks as `learn` does.
        """
        if self.uid(now) == uid:
            return None
        if self._uid >= 0:
            raise NotPermitted("this mount shows one user as the owner of everything")
        return str(uid) if like.isdigit() else _name(pwd.getpwuid, uid)

    def group(self, gid: int, now: str, like: str) -> str | None:
        """The same for groups."""
        if self.gid(now) == gid:
            return None
        if self._gid >= 0:
            raise NotPermitted("this mount shows one group as that of everything")
        return str(gid) if like.isdigit() else _name(grp.getgrgid, gid)

    def _find_uid(self, name: str) -> int:
        try:
            return pwd.getpwnam(name).pw_uid
        except (KeyError, ValueError, UnicodeEncodeError):
            return _number(name, self._own_uid)

    def _find_gid(self, name: str) -> int:
        try:
            return grp.getgrnam(name).gr_gid
        except (KeyError, ValueError, UnicodeEncodeError):
            return _number(name, self._own_gid)


def _name(find: Callable[[int], Sequence[object]], number: int) -> str:
    try:
        return str(find(number)[0])
    except KeyError:
        return str(number)


def _number(text: str, default: int) -> int:
    return int(text) if text.isascii() and text.isdigit() and int(text) <= _LARGEST_ID else default


def xattr_value(name: bytes, url: str, path: bytes, status: Status) -> bytes | None:
    """The value of any attribute but `XATTR_LOCATIONS`; None where there is no such attribute."""
    match name.removeprefix(XATTR_PREFIX):
        case b"block_size":
            return str(status.block_size).encode()
        case b"replication":
            return str(status.replication).encode()
        case b"source":
            base, question, parameters = url.partition("?")
            return (base.rstrip("/") + quote_from_bytes(path) + question + parameters).encode()
        case b"version":
            return f"{status.length}:{status.mtime_ns}:{status.file_id}".encode()
    return None


def xattr_locations(blocks: Sequence[Block]) -> bytes:
    """The value of `XATTR_LOCATIONS`, at most 64 KiB."""
    items = [
        json.dumps({"offset": block.offset, "length": block.length, "hosts": block.hosts}, separators=(",", ":"))
        for block in blocks
    ]
    remaining = _XATTR_LIMIT - len('[{"more":18446744073709551615}]')
    kept = 0
    for item in items:
        remaining -= len(item) + 1
        if remaining < 0:
            break
        kept += 1
    if kept < len(items):
        items[kept:] = [json.dumps({"more": len(items) - kept}, separators=(",", ":"))]
    return f"[{','.join(items)}]".encode()
