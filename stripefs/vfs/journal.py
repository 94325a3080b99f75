"""Journal of inodes and handles: its records, pure, and its compaction.

Records (little endian; `str` and `bytes` fields are a 16-bit length and the bytes):
    N  id u64, parent u64, lookups u32, kind u8, current u8,
       length u64, mtime_ns i64, name, file_id                 a node the kernel may hold
    L  id u64, count u32                                       looked up again, and thereby current
    F  id u64, count u64                                       forgotten `count` times
    O  handle u64, id u64, status                              a file was opened
    D  handle u64, id u64                                      a directory was opened
    C  handle u64, name                                        the handle's next cookie stands for name
    R  handle u64                                              released
    M  id u64, parent u64, length u64, mtime_ns i64,
       name, file_id                                           moved by this mount, or its times set; current
    I  number u32, key                                         a change of names is about to be made
    J  number u32                                              it was answered

A generation begins with the state as it stood at one commit, then come all changes since. Compaction carries the state
into a new generation, some inodes with each commit:

    begin    a commit finds the journal full: the state as it is now is what the new generation begins with
    carry    each commit carries the next SLICE inodes; one that is about to change is carried before, as it was
    finish   when all are carried, each commit copies changes made since the beginning, until none is left; then the
             new generation counts, by one store into memory

The old generation takes all changes until then. So a worker may die at any instruction: the next one reads either the
old generation, which is whole, or the new one, and both tell the same state. No step handles more than SLICE inodes and
those that the commit itself has changed, with the directories above them. Open handles are listed at once.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from stripefs.store.base import Identity, Kind, Status

if TYPE_CHECKING:
    from stripefs.vfs.inodes import InodeTable

__all__ = [
    "COUNT32",
    "COUNT64",
    "HANDLE",
    "KINDS",
    "MOVED",
    "NODE",
    "NUMBER",
    "ROOT",
    "SLICE",
    "Compaction",
    "DirectoryHandle",
    "FileHandle",
    "Inode",
    "InodeJournal",
    "RecordReader",
    "pack_bytes",
    "pack_cookie",
    "pack_directory",
    "pack_file",
    "pack_intent",
    "pack_node",
    "unpack_status",
]

ROOT = 1

NODE = struct.Struct("<QQIB?Qq")
COUNT32 = struct.Struct("<QI")
COUNT64 = struct.Struct("<QQ")
HANDLE = struct.Struct("<Q")
MOVED = struct.Struct("<QQQq")
NUMBER = struct.Struct("<I")

KINDS = (Kind.FILE, Kind.DIRECTORY, Kind.SYMLINK, Kind.OTHER)
_KIND_NUMBER = {kind: number for number, kind in enumerate(KINDS)}

_STATUS = struct.Struct("<BQqqIQII")
_LENGTH = struct.Struct("<H")


@dataclass(slots=True, eq=True)
class Inode:
    """One version of a path. `status`, kept while handles are open, is fstat's answer whatever the store says."""

    id: int
    parent: int
    name: bytes
    kind: Kind
    identity: Identity | None  # None for directories
    lookups: int = 0
    children: int = 0
    handles: int = 0
    status: Status | None = None
    generation: int = field(default=0, compare=False, repr=False)
    """Of the journal, which holds it (`stripefs.vfs.journal`)."""


@dataclass(slots=True)
class FileHandle:
    node: int
    status: Status


@dataclass(slots=True)
class DirectoryHandle:
    """Cookie k stands for the position after the entry `names[k - 1]`; cookie 0 for the start."""

    node: int
    names: list[bytes] = field(default_factory=list)


class RecordReader:
    __slots__ = ("_at", "_payload")

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._at = 0

    def more(self) -> bool:
        return self._at < len(self._payload)

    def take(self, size: int) -> bytes:
        self._at += size
        return self._payload[self._at - size : self._at]

    def unpack(self, form: struct.Struct) -> tuple[int, ...]:
        self._at += form.size
        return form.unpack_from(self._payload, self._at - form.size)

    def text(self) -> bytes:
        return self.take(*self.unpack(_LENGTH))


def pack_bytes(text: bytes) -> bytes:
    return _LENGTH.pack(len(text)) + text


def pack_node(node: Inode, *, current: bool) -> bytes:
    """The record N."""
    identity = node.identity or Identity(0, 0, "")
    kind = _KIND_NUMBER[node.kind]
    fields = (node.id, node.parent, node.lookups, kind, current, identity.length, identity.mtime_ns)
    return b"N" + NODE.pack(*fields) + pack_bytes(node.name) + pack_bytes(identity.file_id.encode())


def pack_file(handle: int, file: FileHandle) -> bytes:
    """The record O."""
    return b"O" + COUNT64.pack(handle, file.node) + _pack_status(file.status)


def pack_directory(handle: int, node: int) -> bytes:
    """The record D."""
    return b"D" + COUNT64.pack(handle, node)


def pack_cookie(handle: int, name: bytes) -> bytes:
    """The record C."""
    return b"C" + HANDLE.pack(handle) + pack_bytes(name)


def pack_intent(number: int, key: bytes) -> bytes:
    """The record I."""
    return b"I" + NUMBER.pack(number) + pack_bytes(key)


def _pack_status(status: Status) -> bytes:
    return b"".join(
        (
            _STATUS.pack(
                _KIND_NUMBER[status.kind],
                status.length,
                status.mtime_ns,
                status.atime_ns,
                status.mode,
                status.block_size,
                status.replication,
                status.links,
            ),
            pack_bytes(status.name),
            pack_bytes(status.owner.encode(errors="surrogateescape")),
            pack_bytes(status.group.encode(errors="surrogateescape")),
            pack_bytes(status.file_id.encode()),
        )
    )


def unpack_status(reader: RecordReader) -> Status:
    kind, length, mtime_ns, atime_ns, mode, block_size, replication, links = reader.unpack(_STATUS)
    return Status(
        name=reader.text(),
        kind=KINDS[kind],
        length=length,
        mtime_ns=mtime_ns,
        atime_ns=atime_ns,
        mode=mode,
        owner=reader.text().decode(errors="surrogateescape"),
        group=reader.text().decode(errors="surrogateescape"),
        file_id=reader.text().decode(),
        block_size=block_size,
        replication=replication,
        links=links,
    )


SLICE = 256
"""Inodes that one commit carries: a millisecond."""


class InodeJournal(Protocol):
    """Store of the journal records for the next worker."""

    def append(self, payload: bytes) -> None:
        """Keep `payload`: wholly or, when this process dies meanwhile, not at all."""

    def full(self) -> bool:
        """True when a new generation would pay."""

    def begin(self) -> None:
        """A new, empty generation; one that was begun and not finished is dropped."""

    def carry(self, payload: bytes) -> None:
        """Add `payload` to the new generation, which does not count yet."""

    def finish(self) -> bool:
        """Copy to the new generation a bounded number of the bytes appended since `begin`; True if these were all, and
        the new generation counts."""


class Compaction:
    """The compaction of `table`, which reports each change before it is made. Without a journal it keeps nothing."""

    def __init__(self, journal: InodeJournal | None, table: InodeTable) -> None:
        self._journal = journal
        self._table = table
        self._generation = 0  # of all nodes that are carried, or are newer than what is carried
        self._order: list[int] = []  # each node of this generation, and some that are gone
        self._walk: Iterator[None] | None = None
        self._carried = bytearray()

    def add(self, node: Inode) -> None:
        """Note a new node; a change record carries it."""
        if self._journal is not None:
            node.generation = self._generation
            self._order.append(node.id)

    def keep(self, node: Inode) -> None:
        """`node` is about to change or to go: it is carried as it is, behind the directories above it."""
        chain = []
        while node.generation != self._generation and node.id != ROOT:
            chain.append(node)
            node = self._table.nodes[node.parent]
        for each in reversed(chain):
            self.add(each)
            current = self._table.current.get((each.parent, each.name)) == each.id
            self._carried += pack_node(each, current=current)

    def step(self) -> None:
        """One step, if there is one to make. For right after a commit, while no change is pending.

        Raises what the journal raises; the next call goes on.
        """
        if self._journal is None:
            return
        if self._walk is None:
            if not self._journal.full() and len(self._order) <= 2 * len(self._table.nodes) + SLICE:
                return
            self._journal.begin()
            self._walk = self._slices()
        walked = next(self._walk, self) is self
        if self._carried:
            self._journal.carry(bytes(self._carried))
            self._carried.clear()
        elif walked and self._journal.finish():
            self._walk = None

    def _slices(self) -> Iterator[None]:
        """Puts what is to be carried into `_carried`; yields after each slice."""
        table = self._table
        order, self._order = self._order, []
        self._generation += 1
        files, intents = list(table.files.items()), list(table.intents.items())
        listings = [(handle, held, len(held.names)) for handle, held in table.directories.items()]

        def records() -> Iterator[bytes]:
            for handle, file in files:
                yield pack_file(handle, file)
            for handle, held, count in listings:
                yield pack_directory(handle, held.node)
                for name in itertools.islice(held.names, count):  # they only ever grow
                    yield pack_cookie(handle, name)
            for number, key in intents:
                yield pack_intent(number, key)

        for start in range(0, len(order), SLICE):
            for node_id in order[start : start + SLICE]:
                if (node := table.nodes.get(node_id)) is not None:
                    self.keep(node)
            yield
        handles = records()
        while several := b"".join(itertools.islice(handles, SLICE)):
            self._carried += several
            yield
