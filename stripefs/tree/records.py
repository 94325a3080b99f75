"""Inodes and handles, and the journal records that rebuild them. Pure.

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
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from stripefs.store.base import Identity, Kind, Status

__all__ = [
    "COUNT32",
    "COUNT64",
    "HANDLE",
    "KINDS",
    "MOVED",
    "NODE",
    "NUMBER",
    "ROOT",
    "DirectoryHandle",
    "FileHandle",
    "Node",
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
class Node:
    """One version of a path. `status` is kept while handles are open: what fstat answers, whatever the store says."""

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
    """Of the journal, which holds it (`stripefs.tree.compaction`)."""


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


def pack_node(node: Node, *, current: bool) -> bytes:
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
