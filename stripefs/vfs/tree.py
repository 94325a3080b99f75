"""The mounted tree: operations of a read-only file system, answered from a store and a reader.

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
from stripefs.vfs import xattrs
from stripefs.vfs.dir_handle import DirectoryListing, Listable
from stripefs.vfs.idmap import IdMap
from stripefs.vfs.inodes import Inode, InodeJournal, InodeTable
from stripefs.vfs.open_files import FileReader, OpenFiles

__all__ = ["NodeAttributes", "Tree", "UnknownHandle", "require_file"]

_log = logging.getLogger(__name__)

_NO_NOTION = Space(capacity=1 << 50, free=1 << 50, files=0)
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
    """Attributes of node `id` for stat(2). `valid` is for how many seconds the kernel may believe it."""

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

    attr_timeout and io_timeout in seconds; umask is taken from all modes; uid and gid as in `IdMap`.
    """

    posix_acl = False
    """The lists of a store, if it has any, are the store's own business."""

    xattr_prefix = xattrs.NAMESPACE

    def __init__(
        self,
        store: Store,
        reader: FileReader,
        *,
        state: InodeTable | None = None,
        journal: InodeJournal | None = None,
        attr_timeout: float = 1.0,
        io_timeout: float = 90.0,
        umask: int = 0,
        uid: int = -1,
        gid: int = -1,
    ) -> None:
        self.state = state or InodeTable(journal)
        self._store = store
        self._walked: Listable = store
        self._calls = Executor(io_timeout)
        self._owners = IdMap(uid, gid)
        self.attr_timeout = attr_timeout
        self._mask = ~umask & 0o7777
        self._opened = OpenFiles(self.state, self._calls, reader, self._confirm, attr_timeout)
        self._listings: dict[int, DirectoryListing] = {}
        self._space = _NO_NOTION
        self._space_until = -1.0

    def snapshot(self) -> dict[str, int]:
        """Figures for `status`."""
        return {
            "nodes": len(self.state.nodes),
            "open_files": len(self.state.files),
            "open_directories": len(self.state.directories),
            "metadata_calls_under_way": self._calls.busy,
            "metadata_retries": self._calls.retries,
        }

    # Names and attributes

    async def lookup(self, parent: int, name: bytes) -> NodeAttributes:
        """The version at `name` in directory `parent` now, with one more lookup counted. Raises NotFound."""
        path = self._child(parent, name)
        try:
            status = await self._stat(path)
        except (NotFound, NotADirectory) as error:
            self.state.current.pop((parent, name), None)
            if len(name) > NAME_MAX and isinstance(error, NotFound):
                raise NameTooLong(f"{name[:20]!r}… is longer than {NAME_MAX} bytes") from error
            raise
        self._node(parent)  # it may have been forgotten meanwhile
        node = self.state.see(parent, name, status.kind, self._identity(status))
        attributes = self._attributes(node.id, status)
        self.state.commit()
        return attributes

    def forget(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Take back lookups: (id, count) each."""
        for node_id, count in pairs:
            self.state.forget(node_id, count)
        self.state.commit()

    async def getattr(self, node_id: int) -> NodeAttributes:
        """Attributes of a node. Raises StaleVersion when its path holds something else and nobody has it open."""
        node = self._node(node_id)
        if node.status is not None:
            return self._attributes(node_id, node.status)
        path = self.state.path(node_id)
        status = await self._version(node, path)
        return self._attributes(node_id, status)

    async def readlink(self, node_id: int) -> bytes:
        node = self._node(node_id)
        if node.kind is not Kind.SYMLINK:
            raise Unsupported(f"{self.state.path(node_id)!r} is no symbolic link")
        path = self.state.path(node_id)
        return await self._calls.call(f"read link {path!r}", self._store.readlink, path)

    # Files

    async def open(self, node_id: int) -> int:
        """A handle of the file version `node_id`. Raises StaleVersion when it is not its path's version any more."""
        node = self._node(node_id)
        require_file(node, self.state.path(node_id))
        if not self.state.is_current(node):
            raise StaleVersion(f"{self.state.path(node_id)!r} was replaced")
        try:
            async with self._opened.use(node, node.identity, fresh=True) as file:
                handle = self.state.open_file(node_id, file.status)
        except StaleVersion:
            # The kernel looks up again now, and must not get the answer of a call that began before the change.
            self._calls.outdate(("stat", self.state.path(node_id)))
            self.state.current.pop((node.parent, node.name), None)
            raise
        self.state.commit()
        return handle

    async def read(self, handle: int, offset: int, size: int) -> Buffer:
        """Exactly min(size, length - offset) bytes of the handle's version, none at or after its end."""
        held = self.state.files.get(handle)
        if held is None:
            raise UnknownHandle(f"file handle {handle} is not known", hint="close the file and open it again")
        file = await self._opened.of_handle(self.state.nodes[held.node], held.status)
        data = await file.read(offset, size)
        wanted = max(0, min(size, held.status.length - offset))
        if len(data) != wanted:
            raise StoreError(
                f"{len(data)} bytes instead of {wanted} at {offset} of {self.state.path(held.node)!r}",
                hint="this is a bug of the store's client; the answer was withheld",
            )
        return data

    async def release(self, handle: int) -> None:
        """Close a handle. The last one of a version lets go of it."""
        node = self.state.release(handle)
        self.state.commit()
        if node is not None:
            await self._opened.released(node)

    # Directories

    async def opendir(self, node_id: int) -> int:
        node = self._node(node_id)
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
            path = self.state.path(held.node)
            listing = DirectoryListing(self._walked, self._calls, self._owners, self.state, handle, path)
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
                identity = self._identity(status)
                node_id = self.state.id_of(held.node, status.name, status.kind, identity)
                attributes = self._attributes(node_id, status)
                attributes.valid = self._believe(held.node, status.name, entry.seen)
                if not show(status.name, attributes, listing.cookie(entry)):
                    break
                listing.take()
                shown = True
                self.state.see(held.node, status.name, status.kind, identity)
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
                    space = await self._calls.shared("space", self._ask_space)
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
        node = self._node(node_id)
        if name not in (xattrs.OF_FILES if node.kind is Kind.FILE else xattrs.OF_OTHERS):
            return None
        path = self.state.path(node_id)
        if name == xattrs.LOCATIONS:
            return await self._locations(node, path)
        status = node.status or await self._version(node, path)
        return xattrs.value(name, self._store.url, path, status)

    # Inner workings

    async def _stat(self, path: bytes) -> Status:
        async def ask() -> Status:
            return await self._calls.call(f"look up {path!r}", self._stat_blocking, path)

        return await self._calls.shared(("stat", path), ask)

    def _stat_blocking(self, path: bytes) -> Status:
        status = self._store.stat(path)
        self._owners.learn((status,))
        return status

    async def _ask_space(self) -> Space | None:
        return await self._calls.call("ask for the capacity", self._store.space)

    async def _confirm(self, node_id: int) -> Status:
        return await self._version(self._node(node_id), self.state.path(node_id))

    async def _version(self, node: Inode, path: bytes) -> Status:
        """The status of the path, provided that it still holds the version `node`."""
        try:
            status = await self._stat(path)
        except (NotFound, NotADirectory) as error:
            raise StaleVersion(f"{path!r} is gone") from error
        if status.kind is not node.kind or self._identity(status) != node.identity:
            raise StaleVersion(f"{path!r} was replaced")
        return status

    def _node(self, node_id: int) -> Inode:
        try:
            return self.state.nodes[node_id]
        except KeyError:
            raise UnknownHandle(f"node {node_id} is not known", hint="look the path up again") from None

    def _child(self, parent: int, name: bytes) -> bytes:
        if self._node(parent).kind is not Kind.DIRECTORY:
            raise NotADirectory(f"{self.state.path(parent)!r} is no directory")
        return self.state.path(parent).rstrip(b"/") + b"/" + name

    def _identity(self, status: Status) -> Identity | None:
        """The identity of the version that `status` describes."""
        return None if status.kind is Kind.DIRECTORY else status.identity

    def _believe(self, parent: int, name: bytes, seen: float) -> float:
        """For how many more seconds the kernel may believe what the store said of a name at the time `seen`."""
        return max(0.0, self.attr_timeout - (trio.current_time() - seen))

    def _attributes(self, node_id: int, status: Status) -> NodeAttributes:
        return NodeAttributes(
            node_id,
            status.kind,
            status.mode & self._mask,
            max(1, status.links),
            self._owners.uid(status.owner),
            self._owners.gid(status.group),
            status.length,
            status.mtime_ns,
            status.atime_ns or status.mtime_ns,
            self.attr_timeout,
        )

    async def _locations(self, node: Inode, path: bytes) -> bytes:
        async with self._opened.use(node, node.identity) as file:
            blocks = await self._calls.persist(f"locate {path!r}", lambda: file.locate(0, file.status.length))
        return xattrs.locations(blocks)


def require_file(node: Inode, path: bytes) -> None:
    if node.kind is Kind.DIRECTORY:
        raise IsADirectory(f"{path!r} is a directory")
    if node.kind is not Kind.FILE:
        raise Unsupported(f"{path!r} is no regular file")
