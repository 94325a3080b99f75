"""Values that calls of a store take and answer: entries of directories, their identity, hosts, capabilities. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ["Attributes", "Buffer", "Capabilities", "Host", "Identity", "Kind", "Space", "Status"]

Buffer = bytes | bytearray | memoryview
"""The bytes that a read answers. They must not change once answered."""


class Kind(enum.Enum):
    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of a version of a path: equal identities mean equal bytes.

    length in bytes; mtime_ns since 1970 (0 where unknown); file_id is the store's own id of the file (HDFS inode id,
    device:inode, ETag), "" where the store has none.
    """

    length: int
    mtime_ns: int
    file_id: str


@dataclass(frozen=True, slots=True)
class Status:
    """One entry of a directory. `name` is its last component (b"" for the root).

    mode holds permission bits only (0o7777). owner and group are names or decimal ids as text, "" where the store has
    none. block_size in bytes is the unit in which the store spreads the file over hosts, 0 where it does not. marked:
    the store holds the mark of a manifest on this file, whatever its bytes are (capability `marks`). encrypted: the
    store's data hosts hold other bytes than the file has.
    """

    name: bytes
    kind: Kind
    length: int = 0
    mtime_ns: int = 0
    atime_ns: int = 0
    mode: int = 0o644
    owner: str = ""
    group: str = ""
    file_id: str = ""
    block_size: int = 0
    replication: int = 1
    links: int = 1
    marked: bool = False
    encrypted: bool = False

    @property
    def identity(self) -> Identity:
        return Identity(self.length, self.mtime_ns, self.file_id)


@dataclass(frozen=True, slots=True)
class Host:
    """A data host. `reachable_as` is the address the client connects to, for messages."""

    name: str
    reachable_as: str = ""
    live: bool = True


@dataclass(frozen=True, slots=True)
class Space:
    """Sizes in bytes; files is the number of entries, 0 where unknown."""

    capacity: int
    free: int
    files: int = 0


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of a store. A feature that needs a missing one is refused by name, or does without and says so.

    locations: `Handle.locate` names hosts. choose_host: `Handle.read(host=…)` reads from that host and no other.
    file_ids: identities hold an id that a replaced file does not share. pinned: an open handle keeps its version
    readable or fails, without asking again. any_names: names may be any bytes. cancel: a blocked read ends soon after
    its `Watch` is cancelled. copies: until a read returns, its client holds the bytes a second time. put: `put` and
    `remove` work. put_if_absent: of several `put` of one path that do not replace, one succeeds. listing: `scandir`
    works; a store that cannot list may know of a directory no more than that it is one.

    writes: `create`, `mkdir`, `rmdir` and `rename` onto a free path work. replace: `rename(replace=True)` works and is
    atomic. place: `create(host=…)` puts every block's first replica on that host. concat: `concat` works.
    compare: `compare_and_rename` and `compare_and_remove` are one step for everyone. move_document: it works.
    attributes: `set_attributes` works. replication: it sets the number of replicas of a file, too. marks: a file
    created with MANIFEST_BLOCK_SIZE keeps that as the mark of a manifest, which `Status.marked` tells of and which no
    user of a mount can give a file.
    """

    locations: bool = False
    choose_host: bool = False
    file_ids: bool = False
    pinned: bool = False
    any_names: bool = False
    permissions: bool = False
    cancel: bool = False
    copies: bool = False
    put: bool = False
    put_if_absent: bool = False
    listing: bool = True
    writes: bool = False
    replace: bool = False
    place: bool = False
    concat: bool = False
    compare: bool = False
    move_document: bool = False
    attributes: bool = False
    replication: bool = False
    marks: bool = False


@dataclass(frozen=True, slots=True)
class Attributes:
    """Changes of an entry's attributes; None leaves one as it is.

    mode holds permission bits only (0o7777); owner and group are names or decimal ids as text; times in nanoseconds
    since 1970. A store that keeps coarser times rounds them down (HDFS: milliseconds), and one that keeps no access
    times leaves that one out. replication: the wanted number of replicas of a file, which the store makes or removes
    later (capability `replication`).
    """

    mode: int | None = None
    owner: str | None = None
    group: str | None = None
    mtime_ns: int | None = None
    atime_ns: int | None = None
    replication: int | None = None
