"""What the kernel was told and will refer to: nodes, lookup counts, handles, directory cookies.

A node id stands for one *version* of a path. It is derived, never handed out in turn: the first 63 bits of a BLAKE2b
hash over (parent id, name, kind, identity), moved on by one while another node holds it. So a version that the kernel
forgot and looks up again keeps its inode number, and a replaced file gets a new one. Directories have no identity:
their id is that of their path. A version that this mount itself renamed, or gave other times, stays the node it was.

Every change is also a record, so that the worker that follows a dead one can carry on. Records gather in a buffer that
`commit` hands to the journal as one unit; callers commit *before* the reply that reveals what changed. `replay`
rebuilds the same state. Nothing here does I/O or awaits.

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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Protocol

from stripefs.store.base import Identity, Kind, Status
from stripefs.tree.records import KIND_NUMBER, KINDS, RecordReader, pack_bytes, pack_status, unpack_status

__all__ = ["ROOT", "DirectoryHandle", "FileHandle", "Journal", "NoJournal", "Node", "State"]

ROOT = 1
_MASK = (1 << 63) - 1

_NODE = struct.Struct("<QQIB?Qq")
_COUNT32 = struct.Struct("<QI")
_COUNT64 = struct.Struct("<QQ")
_HANDLE = struct.Struct("<Q")
_MOVED = struct.Struct("<QQQq")
_NUMBER = struct.Struct("<I")


class Journal(Protocol):
    """Where records are kept for the next worker."""

    def append(self, payload: bytes) -> None:
        """Keep `payload`: wholly or, when this process dies meanwhile, not at all."""

    def full(self) -> bool:
        """True when replacing everything by a fresh dump would pay."""

    def replace(self, payloads: Iterable[bytes]) -> None:
        """Keep `payloads` instead of all that was appended before; all or nothing."""


class NoJournal:
    """Keeps nothing: for a tree that no other process carries on."""

    def append(self, payload: bytes) -> None:
        pass

    def full(self) -> bool:
        return False

    def replace(self, payloads: Iterable[bytes]) -> None:
        pass


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


@dataclass(slots=True)
class FileHandle:
    node: int
    status: Status


@dataclass(slots=True)
class DirectoryHandle:
    """Cookie k stands for the position after the entry `names[k - 1]`; cookie 0 for the start."""

    node: int
    names: list[bytes] = field(default_factory=list)


class State:
    """Nodes by id and handles by number. `current` holds the version last seen at (parent id, name).

    `intents` are changes of names by number: those begun and not answered yet, also by a worker that is dead.
    """

    def __init__(self, journal: Journal | None = None) -> None:
        self.nodes: dict[int, Node] = {ROOT: Node(ROOT, ROOT, b"", Kind.DIRECTORY, None, lookups=1)}
        self.current: dict[tuple[int, bytes], int] = {}
        self.files: dict[int, FileHandle] = {}
        self.directories: dict[int, DirectoryHandle] = {}
        self.intents: dict[int, bytes] = {}
        self._next_handle = 1
        self._journal = journal or NoJournal()
        self._pending = bytearray()

    # What the tree asks

    def path(self, node: int) -> bytes:
        """The absolute path of a node. KeyError when the kernel never heard of it."""
        parts: list[bytes] = []
        while node != ROOT:
            entry = self.nodes[node]
            parts.append(entry.name)
            node = entry.parent
        return b"/" + b"/".join(reversed(parts))

    def id_of(self, parent: int, name: bytes, kind: Kind, identity: Identity | None) -> int:
        """The id that this version has or would have."""
        node = self.current.get((parent, name), 0)
        if (known := self.nodes.get(node)) is not None and known.kind is kind and known.identity == identity:
            return node  # also one that was moved here
        node = _derive(parent, name, kind, identity)
        while True:
            other = self.nodes.get(node)
            if node > ROOT and (
                other is None
                or (other.name == name and other.parent == parent and other.kind is kind and other.identity == identity)
            ):
                return node
            node = (node + 1) & _MASK

    def is_current(self, node: Node) -> bool:
        return node.id == ROOT or self.current.get((node.parent, node.name)) == node.id

    # What changes it

    def see(self, parent: int, name: bytes, kind: Kind, identity: Identity | None) -> Node:
        """Count one lookup of this version, which becomes the current one of its path."""
        node_id = self.id_of(parent, name, kind, identity)
        node = self.nodes.get(node_id)
        if node is None:
            node = self._add(Node(node_id, parent, name, kind, identity, lookups=1))
            self._record_node(node, current=True)
        else:
            node.lookups += 1
            self._pending += b"L" + _COUNT32.pack(node_id, 1)
        self.current[parent, name] = node_id
        return node

    def forget(self, node_id: int, count: int) -> None:
        """Take back `count` lookups. Ids unknown and counts too high are no error: a dead worker may have counted."""
        node = self.nodes.get(node_id)
        if node is None or node_id == ROOT:
            return
        self._pending += b"F" + _COUNT64.pack(node_id, count)
        node.lookups = max(0, node.lookups - count)
        self._collect(node)

    def amend(self, node_id: int, parent: int, name: bytes, identity: Identity | None) -> None:
        """This mount moved a version to (parent, name), or changed what makes its identity and not its bytes."""
        node = self.nodes[node_id]
        reference = identity or Identity(0, 0, "")
        self._pending += b"M" + _MOVED.pack(node_id, parent, reference.length, reference.mtime_ns)
        self._pending += pack_bytes(name) + pack_bytes(reference.file_id.encode())
        self._move(node, parent, name, identity)

    def intend(self, key: bytes) -> int:
        """Note, with the next commit, that a change of names is about to be made; its number, for `settle`."""
        number = max(self.intents, default=0) + 1
        self.intents[number] = key
        self._pending += b"I" + _NUMBER.pack(number) + pack_bytes(key)
        return number

    def settle(self, number: int) -> None:
        """An intended change was answered, or never will be. No error for one that is settled already."""
        if self.intents.pop(number, None) is not None:
            self._pending += b"J" + _NUMBER.pack(number)

    def open_file(self, node_id: int, status: Status) -> int:
        """A new handle of the file version `node_id`, whose status is `status`."""
        handle = self._number()
        self._pending += b"O" + _COUNT64.pack(handle, node_id) + pack_status(status)
        self._hold_file(handle, node_id, status)
        return handle

    def open_directory(self, node_id: int) -> int:
        handle = self._number()
        self._pending += b"D" + _COUNT64.pack(handle, node_id)
        self._hold_directory(handle, node_id)
        return handle

    def add_cookie(self, handle: int, name: bytes) -> int:
        """The cookie of the position after `name`; one more in the handle's sequence."""
        names = self.directories[handle].names
        names.append(name)
        self._pending += b"C" + _HANDLE.pack(handle) + pack_bytes(name)
        return len(names)

    def release(self, handle: int) -> Node | None:
        """Drop a handle of either kind; its node, or None when there is none such (released before a restart)."""
        held = self.files.pop(handle, None) or self.directories.pop(handle, None)
        if held is None:
            return None
        self._pending += b"R" + _HANDLE.pack(handle)
        node = self.nodes[held.node]
        node.handles -= 1
        if not node.handles:
            node.status = None
        self._collect(node)
        return node

    # Records

    def commit(self) -> None:
        """Hand all changes since the last commit to the journal as one unit."""
        if not self._pending:
            return
        self._journal.append(bytes(self._pending))
        self._pending.clear()  # only now: records that could not be kept go with the next commit
        if self._journal.full():
            self._journal.replace(self.dump())

    def dump(self) -> Iterator[bytes]:
        """Records that rebuild this state, in units of about 64 KiB."""
        scratch = State()
        out = scratch._pending
        for node in self._parents_first():
            scratch._record_node(node, current=self.is_current(node))
            if len(out) > 1 << 16:
                yield bytes(out)
                out.clear()
        for handle, file in self.files.items():
            out += b"O" + _COUNT64.pack(handle, file.node) + pack_status(file.status)
        for handle, directory in self.directories.items():
            out += b"D" + _COUNT64.pack(handle, directory.node)
            for name in directory.names:
                out += b"C" + _HANDLE.pack(handle) + pack_bytes(name)
        for number, key in self.intents.items():
            out += b"I" + _NUMBER.pack(number) + pack_bytes(key)
        yield bytes(out)

    def replay(self, payloads: Iterable[bytes]) -> None:
        """Apply records of an earlier worker. Call it on a fresh state."""
        for payload in payloads:
            reader = RecordReader(payload)
            while reader.more():
                self._apply(reader)
        self._pending.clear()

    def _apply(self, reader: RecordReader) -> None:
        tag = reader.take(1)
        if tag == b"N":
            node_id, parent, lookups, kind, current, length, mtime_ns = reader.unpack(_NODE)
            name, file_id = reader.text(), reader.text().decode()
            identity = None if KINDS[kind] is Kind.DIRECTORY else Identity(length, mtime_ns, file_id)
            self._add(Node(node_id, parent, name, KINDS[kind], identity, lookups))
            if current:
                self.current[parent, name] = node_id
        elif tag == b"L":
            node_id, count = reader.unpack(_COUNT32)
            node = self.nodes[node_id]
            node.lookups += count
            self.current[node.parent, node.name] = node_id
        elif tag == b"F":
            self.forget(*reader.unpack(_COUNT64))
        elif tag == b"O":
            handle, node_id = reader.unpack(_COUNT64)
            self._hold_file(handle, node_id, unpack_status(reader))
        elif tag == b"D":
            self._hold_directory(*reader.unpack(_COUNT64))
        elif tag == b"C":
            (handle,) = reader.unpack(_HANDLE)
            self.directories[handle].names.append(reader.text())
        elif tag == b"R":
            self.release(*reader.unpack(_HANDLE))
        elif tag == b"M":
            node_id, parent, length, mtime_ns = reader.unpack(_MOVED)
            name, file_id = reader.text(), reader.text().decode()
            node = self.nodes[node_id]
            self._move(node, parent, name, None if node.kind is Kind.DIRECTORY else Identity(length, mtime_ns, file_id))
        elif tag == b"I":
            (number,) = reader.unpack(_NUMBER)
            self.intents[number] = reader.text()
        elif tag == b"J":
            (number,) = reader.unpack(_NUMBER)
            self.intents.pop(number, None)
        else:
            raise ValueError(f"unknown journal record {tag!r}")

    # Inner workings

    def _add(self, node: Node) -> Node:
        self.nodes[node.id] = node
        self.nodes[node.parent].children += 1
        return node

    def _move(self, node: Node, parent: int, name: bytes, identity: Identity | None) -> None:
        if self.current.get((node.parent, node.name)) == node.id:
            del self.current[node.parent, node.name]
        former = self.nodes[node.parent]
        former.children -= 1
        self.nodes[parent].children += 1
        node.parent, node.name, node.identity = parent, name, identity
        self.current[parent, name] = node.id
        self._collect(former)

    def _collect(self, node: Node) -> None:
        """Drop a node that nothing refers to any more, and then perhaps its parent."""
        while node.id != ROOT and not (node.lookups or node.children or node.handles):
            del self.nodes[node.id]
            if self.current.get((node.parent, node.name)) == node.id:
                del self.current[node.parent, node.name]
            node = self.nodes[node.parent]
            node.children -= 1

    def _hold_file(self, handle: int, node_id: int, status: Status) -> None:
        node = self.nodes[node_id]
        node.handles += 1
        node.status = status
        self.files[handle] = FileHandle(node_id, status)
        self._next_handle = max(self._next_handle, handle + 1)

    def _hold_directory(self, handle: int, node_id: int) -> None:
        self.nodes[node_id].handles += 1
        self.directories[handle] = DirectoryHandle(node_id)
        self._next_handle = max(self._next_handle, handle + 1)

    def _number(self) -> int:
        handle = self._next_handle
        self._next_handle += 1
        return handle

    def _record_node(self, node: Node, *, current: bool) -> None:
        identity = node.identity or Identity(0, 0, "")
        self._pending += b"N"
        self._pending += _NODE.pack(
            node.id,
            node.parent,
            node.lookups,
            KIND_NUMBER[node.kind],
            current,
            identity.length,
            identity.mtime_ns,
        )
        self._pending += pack_bytes(node.name)
        self._pending += pack_bytes(identity.file_id.encode())

    def _parents_first(self) -> Iterator[Node]:
        """All nodes but the root, each after its parent."""
        done = {ROOT}
        for node in self.nodes.values():
            chain = []
            while node.id not in done:
                chain.append(node)
                done.add(node.id)
                node = self.nodes[node.parent]
            yield from reversed(chain)


def _derive(parent: int, name: bytes, kind: Kind, identity: Identity | None) -> int:
    text = (
        f"{parent} {kind.value}"
        if identity is None
        else (f"{parent} {kind.value} {identity.length} {identity.mtime_ns} {identity.file_id}")
    )
    return int.from_bytes(blake2b(text.encode() + b"\0" + name, digest_size=8).digest(), "little") & _MASK
