"""The protocol between FUSE operations and a tree: `stripefs.vfs` implements it, and whatever else is mounted.

Every call answers or raises an error of `stripefs.errors`, whose errno the caller of the system call gets. Node 1 is
the root. A mount is read-only unless its tree is a `WritableServedTree` and its settings say that it may be written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, runtime_checkable

from stripefs.store.base import Buffer, Space

__all__ = ["ROOT", "ServedAttributes", "ServedTree", "ServedVersion", "Show", "WritableServedTree"]

ROOT = 1


class ServedAttributes(Protocol):
    """Attributes of node `id` for stat(2). `valid`: for how many seconds the kernel may cache it.

    st_mode holds type and permission bits. Times in nanoseconds since 1970, also negative.
    """

    id: int
    links: int
    uid: int
    gid: int
    size: int
    mtime_ns: int
    atime_ns: int
    valid: float

    @property
    def st_mode(self) -> int: ...
    @property
    def blocks(self) -> int:
        """Allocated space, in units of 512 bytes."""

    @property
    def rdev(self) -> int:
        """Of a device node, as os.makedev has it."""


class ServedVersion(ServedAttributes, Protocol):
    """inode: st_ino where that is not the node's number, else 0: a file being written is the file at its path."""

    inode: int


Show = Callable[[bytes, ServedAttributes, int], bool]
"""Takes a name, its attributes, and the cookie behind it; False when there is no room for it any more."""


class ServedTree(Protocol):
    """A read-only tree of nodes."""

    @property
    def attr_timeout(self) -> float:
        """Seconds for which the kernel may cache that a name is not there."""

    @property
    def posix_acl(self) -> bool:
        """True if the kernel enforces the access control lists that the tree keeps as `system.posix_acl_*`.

        It then asks `getxattr` for them; all workers of a mount must agree. Else they are attributes like any other.
        """

    @property
    def xattr_prefix(self) -> bytes:
        """The start of every name that an extended attribute can have here. Other names are answered without the tree,
        by EOPNOTSUPP, after which programs like `ls -l` ask for them of no other file."""

    async def lookup(self, parent: int, name: bytes) -> ServedAttributes:
        """Raises NotFound, NotADirectory."""

    def forget(self, pairs: Iterable[tuple[int, int]]) -> None:
        """The kernel gives back this many lookups of these nodes."""

    async def getattr(self, node_id: int) -> ServedAttributes: ...
    async def readlink(self, node_id: int) -> bytes: ...

    async def open(self, node_id: int) -> int:
        """A handle. Data that the kernel has cached of the node stays valid."""

    async def read(self, handle: int, offset: int, size: int) -> Buffer:
        """Exactly the bytes that the file has there, fewer only at its end."""

    async def release(self, handle: int) -> None: ...
    async def opendir(self, node_id: int) -> int: ...

    async def readdir(self, handle: int, start: int, show: Show) -> None:
        """Call `show` with entries, from the one behind cookie `start` on, until it answers False."""

    async def releasedir(self, handle: int) -> None: ...
    async def statfs(self) -> Space: ...

    async def listxattr(self, node_id: int) -> Sequence[bytes] | None:
        """All names; those in `trusted.` are kept from whoever may not read them. None where the tree lists none of any
        node: the kernel answers so by itself from then on."""

    async def getxattr(self, node_id: int, name: bytes) -> bytes | None:
        """None where there is none of that name."""


@runtime_checkable
class WritableServedTree(ServedTree, Protocol):
    """A tree that can be changed. `flags` are those of open(2); `thread` is who asks, as the kernel numbers it.

    A file that is being written has a node of its own, of which the kernel caches nothing. Names that are not there
    are not remembered either.
    """

    async def getattr(self, node_id: int) -> ServedVersion: ...

    async def create(
        self, parent: int, name: bytes, mode: int, flags: int, thread: int
    ) -> tuple[int, ServedAttributes, bool]:
        """A handle of a new file (or of one that was made meanwhile), and whether it is for direct I/O."""

    async def open_reading(self, node_id: int) -> tuple[int, bool]:
        """A handle, and whether it is for direct I/O."""

    async def open_writing(self, node_id: int, flags: int, thread: int) -> tuple[int, bool]:
        """A handle to write, and whether it is for direct I/O. StaleVersion: look the path up and open that node."""

    async def write(self, handle: int, offset: int, data: Buffer) -> None: ...

    async def flush(self, handle: int) -> None:
        """A descriptor was closed, of which there may be others. Raises what writing met."""

    async def fsync(self, handle: int) -> None: ...
    async def mkdir(self, parent: int, name: bytes, mode: int) -> ServedAttributes: ...
    async def rmdir(self, parent: int, name: bytes) -> None: ...
    async def unlink(self, parent: int, name: bytes) -> None: ...

    async def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes, *, replace: bool) -> None:
        """Raises Exists where something is in the way and is not to be replaced."""

    async def setattr(
        self,
        node_id: int,
        *,
        size: int | None,
        mode: int | None,
        uid: int | None,
        gid: int | None,
        mtime_ns: int | None,
        atime_ns: int | None,
    ) -> ServedVersion:
        """Change what is not None. mode holds permission bits only. StaleVersion: look the path up, and do it there."""

    async def setxattr(self, node_id: int, name: bytes, value: bytes) -> None: ...
    async def removexattr(self, node_id: int, name: bytes) -> None: ...
