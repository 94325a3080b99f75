"""The mounted tree: operations of a read-only file system, answered from a store and a reader.

`NamespaceOps`, `AttributeOps` and `WriteOps` change the same tree; `WritableTree` puts them together.

It knows no kernel: a shell (`stripefs.fuse`) translates requests into these calls and the answers back. Ids and what
they mean are in `stripefs.vfs.inodes`. Every method either answers or raises an error of `stripefs.errors`, whose
`errno` the system call gets; all that an answer reveals has been committed to the journal before the method returns.

Visibility: a lookup asks the store and names the version that is there now. The kernel may use that answer for
`attr_timeout` seconds. Opening a version that is no longer the path's raises StaleVersion, upon which the kernel
looks the path up anew. An open handle keeps its version: attributes come from the moment of opening, bytes are of that
version or the read fails.
"""

from __future__ import annotations

import logging
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from stripefs.errors import (
    IsADirectory,
    NameTooLong,
    NotADirectory,
    NotFound,
    StaleVersion,
    StoreError,
    StripefsError,
    Unsupported,
)
from stripefs.executor import Executor
from stripefs.format.reserved_names import NAME_MAX
from stripefs.store.base import Buffer, Identity, Kind, Space, Status, Store
from stripefs.vfs.attributes import (
    XATTR_LOCATIONS,
    XATTR_NAMESPACE,
    XATTRS_OF_FILES,
    XATTRS_OF_OTHERS,
    AttributeTimeout,
    IdMap,
    xattr_locations,
    xattr_value,
)
from stripefs.vfs.inodes import Inode, InodeTable, identity_of
from stripefs.vfs.read_handles import DirectoryListing, OpenFiles, UnpublishedNames

if TYPE_CHECKING:
    from stripefs.read import Reader

__all__ = ["NodeAttributes", "Tree", "UnknownHandle", "require_file"]

_log = logging.getLogger(__name__)

_UNKNOWN_SPACE = Space(capacity=1 << 50, free=1 << 50, files=0)
"""Space that df shows where the store cannot say: 1 PiB, all free. With zeros df hides the mount and kubelet evicts
pods."""

_SPACE_TTL = 10.0
_SPACE_TIMEOUT = 3.0

_TYPES = {
    Kind.FILE: stat.S_IFREG,
    Kind.DIRECTORY: stat.S_IFDIR,
    Kind.SYMLINK: stat.S_IFLNK,
    Kind.OTHER: stat.S_IFIFO,  # sockets and devices of a local source: shown, never opened
}


class UnknownHandle(StoreError):
    """A handle or node that this mount never gave out."""

    errno = StaleVersion.errno


@dataclass(slots=True)
class NodeAttributes:
    """Attributes of node `id` for stat(2). valid: for how many seconds the kernel may cache it."""

    id: int
    kind: Kind
    mode: int
    links: int
    uid: int
    gid: int
    size: int
    mtime_ns: int
    atime_ns: int
    valid: float
    rdev: int = 0
    inode: int = 0
    """st_ino where that is another number than the node's, else 0."""

    @property
    def st_mode(self) -> int:
        return _TYPES[self.kind] | self.mode

    @property
    def blocks(self) -> int:
        return -(-self.size // 512)


class Tree:
    """A store as a tree of nodes. `state` may hold what an earlier worker left (`InodeTable.replay`).

    unpublished: the files that are being written, of a tree that can be written; listings show them, and the kernel may
    cache nothing of them. attr_timeout and io_timeout in seconds; umask is taken from all modes; uid and gid as in
    `IdMap`. `calls`, `owners` and the methods below "For operations on this tree" are for those operations.
    """

    posix_acl = False
    """The lists of a store, if it has any, are the store's own business."""

    xattr_prefix = XATTR_NAMESPACE

    def __init__(
        self,
        store: Store,
        reader: Reader,
        *,
        state: InodeTable | None = None,
        unpublished: UnpublishedNames | None = None,
        attr_timeout: float = 1.0,
        io_timeout: float = 90.0,
        umask: int = 0,
        uid: int = -1,
        gid: int = -1,
    ) -> None:
        self.state = state or InodeTable()
        self.store = store
        self.calls = Executor(io_timeout)
        self.owners = IdMap(uid, gid)
        self.attr_timeout = attr_timeout
        self._timeout = AttributeTimeout(attr_timeout)
        self._unpublished = unpublished
        self._mask = ~umask & 0o7777
        self._open_files = OpenFiles(self.state, self.calls, reader, self.current_status, attr_timeout)
        self._listings: dict[int, DirectoryListing] = {}
        self._space = _UNKNOWN_SPACE
        self._space_until = -1.0

    def snapshot(self) -> dict[str, int]:
        """Figures for `status`."""
        return {
            "nodes": len(self.state.nodes),
            "open_files": len(self.state.files),
            "open_directories": len(self.state.directories),
            "metadata_calls_under_way": self.calls.busy,
            "metadata_retries": self.calls.retries,
        }

    # Names and attributes

    async def lookup(self, parent: int, name: bytes) -> NodeAttributes:
        """The version at `name` in directory `parent` now, with one more lookup counted. Raises NotFound."""
        path = self.child_path(parent, name)
        try:
            status = await self.stat(path)
        except (NotFound, NotADirectory) as error:
            self.state.current.pop((parent, name), None)
            if len(name) > NAME_MAX and isinstance(error, NotFound):
                raise NameTooLong(f"{name[:20]!r}… is longer than {NAME_MAX} bytes") from error
            raise
        return self.looked_up(parent, name, status, identity_of(status))

    def forget(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Take back lookups: (id, count) each."""
        for node_id, count in pairs:
            self.state.forget(node_id, count)
        self.state.commit()

    async def getattr(self, node_id: int) -> NodeAttributes:
        """Attributes of a node. Raises StaleVersion when its path holds another version and it has no handle."""
        node = self.node(node_id)
        if node.status is not None:
            return self.attributes(node_id, node.status)
        if (known := self._timeout.directory(self.state.path(node_id))) is not None:
            return self.attributes(node_id, *known)
        return self.attributes(node_id, await self.current_status(node))

    async def readlink(self, node_id: int) -> bytes:
        node = self.node(node_id)
        if node.kind is not Kind.SYMLINK:
            raise Unsupported(f"{self.state.path(node_id)!r} is no symbolic link")
        path = self.state.path(node_id)
        return await self.calls.call(f"read link {path!r}", self.store.readlink, path)

    # Files

    async def open(self, node_id: int) -> int:
        """A handle of the file version `node_id`. Raises StaleVersion when it is not its path's version any more."""
        node = self.node(node_id)
        require_file(node, self.state.path(node_id))
        if not self.state.is_current(node):
            raise StaleVersion(f"{self.state.path(node_id)!r} was replaced")
        try:
            async with self._open_files.use(node, node.identity, fresh=True) as file:
                handle = self.state.open_file(node_id, file.status)
        except StaleVersion:
            # The kernel looks up again now, and must not get the answer of a call that began before the change.
            self.outdate(self.state.path(node_id))
            self.state.current.pop((node.parent, node.name), None)
            raise
        self.state.commit()
        return handle

    async def read(self, handle: int, offset: int, size: int) -> Buffer:
        """Exactly min(size, length - offset) bytes of the handle's version, none at or after its end."""
        held = self.state.files.get(handle)
        if held is None:
            raise UnknownHandle(f"file handle {handle} is not known", hint="close the file and open it again")
        file = await self._open_files.of_handle(self.state.nodes[held.node], held.status)
        data = await file.read(offset, size)
        wanted = max(0, min(size, held.status.length - offset))
        if len(data) != wanted:
            raise StoreError(
                f"{len(data)} bytes instead of {wanted} at {offset} of {self.state.path(held.node)!r}",
                hint="this is a bug of the store's client; the answer was withheld",
            )
        return data

    async def release(self, handle: int) -> None:
        """Close a handle; with the last one of a version its file is closed."""
        node = self.state.release(handle)
        self.state.commit()
        if node is not None:
            await self._open_files.released(node)

    # Directories

    async def opendir(self, node_id: int) -> int:
        node = self.node(node_id)
        if node.kind is not Kind.DIRECTORY:
            raise NotADirectory(f"{self.state.path(node_id)!r} is no directory")
        handle = self.state.open_directory(node_id)
        self.state.commit()
        return handle

    async def readdir(self, handle: int, start: int, show: Callable[[bytes, NodeAttributes, int], bool]) -> None:
        """Call show(name, attributes, cookie) for the entries after cookie `start` until it answers False.

        Each one shown counts as a lookup. A cookie is good for the life of the handle, also in another worker.
        """
        held = self.state.directories.get(handle)
        if held is None:
            raise UnknownHandle(f"directory handle {handle} is not known", hint="list the directory again")
        listing = self._listings.get(handle)
        if listing is None:
            names = self.store if self._unpublished is None else self._unpublished
            path = self.state.path(held.node)
            listing = DirectoryListing(names, self.calls, self.owners, self.state, handle, path)
            self._listings[handle] = listing
        async with listing.lock:
            try:
                listing.seek(start)
            except IndexError:
                raise UnknownHandle(f"position {start} is not known", hint="list the directory again") from None
            shown = False
            while True:
                try:
                    entry = await listing.peek()
                except StripefsError:
                    if shown:
                        break  # entries shown so far are counted, so they must reach the kernel; the next call fails
                    raise
                if entry is None:
                    break
                status = entry.status
                identity = identity_of(status)
                node_id = self.state.id_of(held.node, status.name, status.kind, identity)
                attributes = self.attributes(node_id, status, self.ttl(held.node, status.name, entry.seen))
                if not show(status.name, attributes, listing.cookie(entry)):
                    break
                listing.advance()
                shown = True
                self.state.add_lookup(held.node, status.name, status.kind, identity)
        self.state.commit()

    async def releasedir(self, handle: int) -> None:
        self.state.release(handle)
        self._listings.pop(handle, None)
        self.state.commit()

    # The rest

    async def statfs(self) -> Space:
        """Capacity of the store; the last known one while the store is away. Never waits long and never fails."""
        now = trio.current_time()
        if now >= self._space_until:
            self._space_until = now + _SPACE_TTL
            with trio.move_on_after(_SPACE_TIMEOUT):
                try:
                    space = await self.calls.shared(
                        "space", lambda: self.calls.call("ask for the capacity", self.store.space)
                    )
                except StripefsError as error:
                    _log.info("the store's capacity is not known, df shows the last: %s", error)
                else:
                    if space is not None and space.capacity > 0:
                        self._space = space
        return self._space

    async def listxattr(self, node_id: int) -> None:
        """Nothing is listed: `rsync -aX` and `cp -a` copy every attribute that is. They would carry facts of this
        version into copies, and fail where the value of `LOCATIONS` is larger than the target takes."""

    async def getxattr(self, node_id: int, name: bytes) -> bytes | None:
        """The value of an extended attribute, None where the node has none of that name."""
        node = self.node(node_id)
        if name not in (XATTRS_OF_FILES if node.kind is Kind.FILE else XATTRS_OF_OTHERS):
            return None
        path = self.state.path(node_id)
        if name == XATTR_LOCATIONS:
            return await self._locations(node, path)
        status = node.status or await self.current_status(node)
        return xattr_value(name, self.store.url, path, status)

    # For operations on this tree

    def node(self, node_id: int) -> Inode:
        """Raises UnknownHandle."""
        try:
            return self.state.nodes[node_id]
        except KeyError:
            raise UnknownHandle(f"node {node_id} is not known", hint="look the path up again") from None

    def child_path(self, parent: int, name: bytes) -> bytes:
        """Raises UnknownHandle, NotADirectory."""
        if self.node(parent).kind is not Kind.DIRECTORY:
            raise NotADirectory(f"{self.state.path(parent)!r} is no directory")
        return self.state.path(parent).rstrip(b"/") + b"/" + name

    async def stat(self, path: bytes) -> Status:
        """The version at `path` now. Callers that ask at the same time share one call to the store."""

        async def ask() -> Status:
            return await self.calls.call(f"look up {path!r}", self._stat_blocking, path)

        began = trio.current_time()
        status = await self.calls.shared(("stat", path), ask)
        if status.kind is Kind.DIRECTORY:
            self._timeout.learn(path, status, began)
        return status

    async def find(self, path: bytes) -> Status | None:
        """As `stat`, None where there is nothing."""
        try:
            return await self.stat(path)
        except NotFound:
            return None

    async def current_status(self, node: Inode) -> Status:
        """The status of the node's path. Raises StaleVersion where that does not hold the version `node` any more."""
        path = self.state.path(node.id)
        try:
            status = await self.stat(path)
        except (NotFound, NotADirectory) as error:
            raise StaleVersion(f"{path!r} is gone") from error
        if status.kind is not node.kind or identity_of(status) != node.identity:
            raise StaleVersion(f"{path!r} was replaced")
        return status

    def outdate(self, path: bytes) -> None:
        """Let no `stat` of `path` have the answer of a call that began before now."""
        self.calls.outdate(("stat", path))

    def changed(self, path: bytes) -> None:
        """Note that this mount has changed, or may have changed, the file at `path`."""
        folder = path.rpartition(b"/")[0] or b"/"
        self.outdate(path)
        self.outdate(folder)
        self._timeout.changed(path, folder)

    def ttl(self, parent: int, name: bytes, seen: float) -> float:
        """For how many more seconds the kernel may cache what the store said of a name at the time `seen`.

        For none where this mount has made a change since, or where the file is being written.
        """
        if self._unpublished and self.child_path(parent, name) in self._unpublished:
            return 0.0
        return self._timeout.left(seen)

    def looked_up(
        self, parent: int, name: bytes, status: Status, identity: Identity | None, valid: float | None = None
    ) -> NodeAttributes:
        """Count a lookup of the version `identity`, which `status` describes. Raises UnknownHandle where the directory
        has been forgotten meanwhile."""
        self.node(parent)
        node = self.state.add_lookup(parent, name, status.kind, identity)
        attributes = self.attributes(node.id, status, valid)
        self.state.commit()
        return attributes

    def attributes(self, node_id: int, status: Status, valid: float | None = None) -> NodeAttributes:
        return NodeAttributes(
            node_id,
            status.kind,
            status.mode & self._mask,
            max(1, status.links),
            self.owners.uid(status.owner),
            self.owners.gid(status.group),
            status.length,
            status.mtime_ns,
            status.atime_ns or status.mtime_ns,
            self._timeout.seconds if valid is None else valid,
        )

    # Inner workings

    def _stat_blocking(self, path: bytes) -> Status:
        status = self.store.stat(path)
        self.owners.learn((status,))
        return status

    async def _locations(self, node: Inode, path: bytes) -> bytes:
        async with self._open_files.use(node, node.identity) as file:
            blocks = await self.calls.persist(f"locate {path!r}", lambda: file.locate(0, file.status.length))
        return xattr_locations(blocks)


def require_file(node: Inode, path: bytes) -> None:
    if node.kind is Kind.DIRECTORY:
        raise IsADirectory(f"{path!r} is a directory")
    if node.kind is not Kind.FILE:
        raise Unsupported(f"{path!r} is no regular file")
