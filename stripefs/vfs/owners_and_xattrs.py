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


class _Ids:
    """The numbers of users, or of groups. fixed: that of all of them where it is >= 0. own: that of who mounted.

    find_number, find_name: look up a name, and a number, on this host; they raise KeyError.
    """

    def __init__(
        self, what: str, fixed: int, own: int, find_number: Callable[[str], int], find_name: Callable[[int], str]
    ) -> None:
        self._what = what
        self._fixed = fixed
        self._own = own
        self._find_number = find_number
        self._find_name = find_name
        self._numbers = {"": own}

    def learn(self, name: str) -> None:
        if self._fixed >= 0 or name in self._numbers:
            return
        try:
            self._numbers[name] = self._find_number(name)
        except (KeyError, ValueError, UnicodeEncodeError):
            number = int(name) if name.isascii() and name.isdigit() else _LARGEST_ID + 1
            self._numbers[name] = number if number <= _LARGEST_ID else self._own

    def number(self, name: str) -> int:
        return self._fixed if self._fixed >= 0 else self._numbers.get(name, self._own)

    def name(self, number: int, now: str, like: str) -> str | None:
        if self.number(now) == number:
            return None
        if self._fixed >= 0:
            raise NotPermitted(f"this mount shows one {self._what} as that of everything")
        try:
            return str(number) if like.isdigit() else self._find_name(number)
        except KeyError:
            return str(number)


class IdMap:
    """The mapping of one mount. Answers are kept: a name changes its number only in the next worker.

    uid(name), gid(name): the number of a name that `learn` has seen; that of who mounted for others. owner(uid, now,
    like): the name in the store of the user with this number here; None where `now` is that user's already. `like` is
    some owner in the store, which tells whether names are kept there or numbers. Raises NotPermitted where the mount
    shows one user as the owner of everything. Blocks as `learn` does. group(gid, now, like): the same for groups.
    """

    def __init__(self, uid: int = -1, gid: int = -1) -> None:
        users = _Ids("user", uid, os.getuid(), lambda n: pwd.getpwnam(n).pw_uid, lambda n: pwd.getpwuid(n).pw_name)
        groups = _Ids("group", gid, os.getgid(), lambda n: grp.getgrnam(n).gr_gid, lambda n: grp.getgrgid(n).gr_name)
        self._users, self._groups = users, groups
        self.uid, self.gid = users.number, groups.number
        self.owner, self.group = users.name, groups.name

    def learn(self, statuses: Iterable[Status]) -> None:
        """Look up the names in `statuses`. NSS may ask a network service, so call this in a thread."""
        for status in statuses:
            self._users.learn(status.owner)
            self._groups.learn(status.group)


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
