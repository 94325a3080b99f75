"""Attributes of the mounted tree: owners as numbers, extended attributes, for how long the kernel may cache attributes,
and the operations that change them.

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

**Time-out** (`AttributeTimeout`): the time for which the kernel may cache attributes and names, and statuses of
directories that are younger than it. The kernel forgets the attributes of a directory with each change of its names,
and asks before the next one. So the statuses of directories stay known here for the same time: a program that makes
many files costs the store one question for each time-out, not one for each file. Times are those of trio's clock, in
seconds.

**Operations** (`AttributeOps`) change permissions, owners, times, and the layout of a directory.
"""

from __future__ import annotations

import dataclasses
import grp
import json
import os
import pwd
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import quote_from_bytes

import trio

from stripefs.errors import NoAttribute, NotFound, NotPermitted, Unsupported, denial_as_eperm
from stripefs.store.base import Attributes, Block, Kind, Status
from stripefs.vfs.inodes import ROOT, identity_of

if TYPE_CHECKING:
    from stripefs.vfs.tree import NodeAttributes, Tree
    from stripefs.vfs.write_handle import WriteHandles  # a read-only worker starts without it
    from stripefs.write.directory_layout import DirectoryLayouts

__all__ = [
    "XATTRS_OF_FILES",
    "XATTRS_OF_OTHERS",
    "XATTR_LOCATIONS",
    "XATTR_NAMESPACE",
    "XATTR_PREFIX",
    "AttributeOps",
    "AttributeTimeout",
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


_MOST_DIRECTORIES = 1000


class AttributeTimeout:
    """seconds: for which an answer of the store counts, unless this mount has made a change since it was asked."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._changed_at = -1.0  # the time of the last change through this mount
        self._directories: dict[bytes, tuple[Status, float]] = {}

    def left(self, seen: float) -> float:
        """For how many more seconds the kernel may cache the answer to a question that was asked at the time `seen`."""
        if seen <= self._changed_at:
            return 0.0
        return max(0.0, self.seconds - (trio.current_time() - seen))

    def learn(self, path: bytes, status: Status, seen: float) -> None:
        """Keep the status of a directory, as the store answered it to a question of the time `seen`."""
        if seen > self._changed_at:
            if len(self._directories) >= _MOST_DIRECTORIES:
                self._directories.clear()
            self._directories[path] = status, seen

    def directory(self, path: bytes) -> tuple[Status, float] | None:
        """The status of a directory, and for how many more seconds it counts; None where it has to be asked for."""
        status, seen = self._directories.get(path, (None, 0.0))
        left = self.seconds - (trio.current_time() - seen)
        return None if status is None or left <= 0 else (status, left)

    def changed(self, path: bytes, folder: bytes) -> None:
        """Note that this mount has changed, or may have changed, the file at `path` in the directory `folder`."""
        self._changed_at = trio.current_time()
        if path in self._directories:
            self._directories.clear()  # and what is below it
        if (known := self._directories.get(folder)) is not None:
            self._directories[folder] = replace(known[0], mtime_ns=time.time_ns()), known[1]


_LAYOUT = XATTR_PREFIX + b"layout"


class AttributeOps:
    """Changes attributes of what is published in `tree`; `handles` are told, since what they publish looks the same."""

    def __init__(self, tree: Tree, handles: WriteHandles, layouts: DirectoryLayouts) -> None:
        self._tree = tree
        self._handles = handles
        self._layouts = layouts

    async def set(self, node_id: int, wanted: Attributes) -> NodeAttributes:
        """Change attributes of what is at the node's path. Raises StaleVersion as `Tree.getattr` does."""
        tree = self._tree
        node = tree.node(node_id)
        path = tree.state.path(node_id)
        await tree.current_status(node)
        status = await self.set_at(path, wanted)
        file = self._handles.at(path)
        if file is not None:  # it has a node of its own
            file.set_attributes(dataclasses.replace(wanted, mtime_ns=None, atime_ns=None), file.status)
            file.path_identity = status.identity
        if node_id != ROOT:
            identity = identity_of(status)
            if identity != node.identity:
                tree.state.rekey(node_id, node.parent, node.name, identity)
        if node.status is not None:  # fstat's answer while it is open
            node.status = dataclasses.replace(status, length=node.status.length)
        tree.state.commit()
        return tree.attributes(node_id, status)

    async def set_at(self, path: bytes, wanted: Attributes) -> Status:
        """Change attributes of what is at `path`; its status then.

        Raises NotPermitted where the store refuses: chmod(2), chown(2) and utimes(2) have only EPERM for that.
        """
        tree = self._tree
        if wanted != Attributes():
            with denial_as_eperm():
                try:
                    await tree.calls.change(f"set attributes of {path!r}", (), tree.store.set_attributes, path, wanted)
                finally:
                    tree.changed(path)
        return await tree.stat(path)

    async def with_owners(self, wanted: Attributes, uid: int | None, gid: int | None, status: Status) -> Attributes:
        """`wanted` with the names of the new owners, in the way in which the store has them."""
        if uid is None and gid is None:
            return wanted
        owners = self._tree.owners
        like = status if status.owner else await self._tree.stat(b"/")

        def names() -> tuple[str | None, str | None]:
            owner = None if uid is None else owners.owner(uid, status.owner, like.owner)
            group = None if gid is None else owners.group(gid, status.group, like.group)
            owners.learn([dataclasses.replace(status, owner=owner or "", group=group or "")])  # to be shown
            return owner, group

        owner, group = await self._tree.calls.call("look up owners", names)
        return dataclasses.replace(wanted, owner=owner, group=group)

    # Extended attributes

    async def getxattr(self, node_id: int, name: bytes) -> bytes | None:
        """As `Tree.getxattr`, and the layout of a directory."""
        if name != _LAYOUT:
            return await self._tree.getxattr(node_id, name)
        if self._tree.node(node_id).kind is not Kind.DIRECTORY:
            return None
        return (await self._layouts.of(self._tree.state.path(node_id))).encode() or None

    async def setxattr(self, node_id: int, name: bytes, value: bytes) -> None:
        """Only a directory's layout can be set. Raises Unsupported."""
        await self._layouts.set(self._with_layout(node_id, name), value)

    async def removexattr(self, node_id: int, name: bytes) -> None:
        directory = self._with_layout(node_id, name)
        try:
            await self._layouts.remove(directory)
        except NotFound:
            raise NoAttribute(f"{directory!r} asks for no layout") from None

    def _with_layout(self, node_id: int, name: bytes) -> bytes:
        if name != _LAYOUT or self._tree.node(node_id).kind is not Kind.DIRECTORY:
            raise Unsupported(f"extended attribute {name!r} cannot be changed")
        return self._tree.state.path(node_id)
