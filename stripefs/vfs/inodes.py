"""Inode table: the nodes, lookup counts, handles and directory cookies that the kernel knows and may refer to.

A node id stands for one *version* of a path. It is derived, never handed out in turn: the first 63 bits of a BLAKE2b
hash over (parent id, name, kind, identity), moved on by one while another node holds it. So a version that the kernel
forgot and looks up again keeps its inode number, and a replaced file gets a new one. Directories have no identity:
their id is that of their path. A version that this mount itself renamed, or gave other times, stays the node it was.

Every change is also a record, so that the worker that follows a dead one can carry on. Records gather in a buffer that
`commit` hands to the journal as one unit; callers commit *before* the reply that reveals what changed. `replay`
rebuilds the same state. Nothing here does I/O or awaits.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from secrets import token_hex

from stripefs.store.base import Identity, Kind, Status
from stripefs.vfs.journal import (
    COUNT32,
    COUNT64,
    HANDLE,
    KINDS,
    MOVED,
    NODE,
    NUMBER,
    ROOT,
    Compaction,
    DirectoryHandle,
    FileHandle,
    Inode,
    InodeJournal,
    RecordReader,
    pack_bytes,
    pack_cookie,
    pack_directory,
    pack_file,
    pack_intent,
    pack_node,
    unpack_status,
)

__all__ = ["ROOT", "Inode", "InodeTable", "identity_of", "is_unpublished", "unpublished_identity"]

_MASK = (1 << 63) - 1

_UNPUBLISHED = "\0being written:"
"""Begins the file id of a version that is being written. No store has file ids with a NUL."""


class _Names(dict[tuple[int, bytes], int]):
    """Is never looked at by a young collection of garbage, once it is old. The collector takes a plain dict of numbers
    off its list and puts it back as a young one with the next name: it then went through all of a million names twice,
    50 ms each."""

    __slots__ = ()


class InodeTable:
    """Nodes by id and handles by number. `current` holds the version last seen at (parent id, name).

    `intents` are changes of names by number: those begun and not answered yet, also by a worker that is dead.
    """

    def __init__(self, journal: InodeJournal | None = None) -> None:
        self.nodes: dict[int, Inode] = {ROOT: Inode(ROOT, ROOT, b"", Kind.DIRECTORY, None, lookups=1)}
        self.current: dict[tuple[int, bytes], int] = _Names()
        self.files: dict[int, FileHandle] = {}
        self.directories: dict[int, DirectoryHandle] = {}
        self.intents: dict[int, bytes] = {}
        self._next_handle = 1
        self._journal = journal
        self._pending = bytearray()
        self._compaction = Compaction(journal, self)

    # Queries of the tree

    def path(self, node: int) -> bytes:
        """The absolute path of a node. Raises KeyError for one that the kernel does not hold."""
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

    def is_current(self, node: Inode) -> bool:
        return node.id == ROOT or self.current.get((node.parent, node.name)) == node.id

    # Changes

    def add_lookup(self, parent: int, name: bytes, kind: Kind, identity: Identity | None) -> Inode:
        """Count one lookup of this version, which becomes the current one of its path."""
        node_id = self.id_of(parent, name, kind, identity)
        node = self.nodes.get(node_id)
        if node is None:
            node = self._add(Inode(node_id, parent, name, kind, identity, lookups=1))
            self._pending += pack_node(node, current=True)
        else:
            self._compaction.keep(node)
            node.lookups += 1
            self._pending += b"L" + COUNT32.pack(node_id, 1)
        self._set_current(parent, name, node_id)
        return node

    def forget(self, node_id: int, count: int) -> None:
        """Take back `count` lookups. Ids unknown and counts too high are no error: a dead worker may have counted."""
        node = self.nodes.get(node_id)
        if node is None or node_id == ROOT:
            return
        self._pending += b"F" + COUNT64.pack(node_id, count)
        self._compaction.keep(node)
        node.lookups = max(0, node.lookups - count)
        self._collect(node)

    def rekey(self, node_id: int, parent: int, name: bytes, identity: Identity | None) -> None:
        """Note that this mount moved a version to (parent, name), or changed its identity and not its bytes."""
        node = self.nodes[node_id]
        reference = identity or Identity(0, 0, "")
        self._pending += b"M" + MOVED.pack(node_id, parent, reference.length, reference.mtime_ns)
        self._pending += pack_bytes(name) + pack_bytes(reference.file_id.encode())
        self._move(node, parent, name, identity)

    def begin_intent(self, key: bytes) -> int:
        """Note, with the next commit, that a change of names is about to be made; its number, for `end_intent`."""
        number = max(self.intents, default=0) + 1
        self.intents[number] = key
        self._pending += pack_intent(number, key)
        return number

    def end_intent(self, number: int) -> None:
        """An intended change was answered, or never will be. No error for one that is settled already."""
        if self.intents.pop(number, None) is not None:
            self._pending += b"J" + NUMBER.pack(number)

    def open_file(self, node_id: int, status: Status) -> int:
        """A new handle of the file version `node_id`, whose status is `status`."""
        handle = self._number()
        self._add_file(handle, node_id, status)
        self._pending += pack_file(handle, self.files[handle])
        return handle

    def open_directory(self, node_id: int) -> int:
        handle = self._number()
        self._pending += pack_directory(handle, node_id)
        self._add_directory(handle, node_id)
        return handle

    def add_cookie(self, handle: int, name: bytes) -> int:
        """The cookie of the position after `name`; one more in the handle's sequence."""
        names = self.directories[handle].names
        names.append(name)
        self._pending += pack_cookie(handle, name)
        return len(names)

    def release(self, handle: int) -> Inode | None:
        """Drop a handle of either kind; its node, or None when there is none such (released before a restart)."""
        held = self.files.pop(handle, None) or self.directories.pop(handle, None)
        if held is None:
            return None
        self._pending += b"R" + HANDLE.pack(handle)
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
        if self._journal is not None:
            self._journal.append(bytes(self._pending))
        self._pending.clear()  # only now: records that could not be kept go with the next commit
        self._compaction.step()

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
            node_id, parent, lookups, kind, current, length, mtime_ns = reader.unpack(NODE)
            name, file_id = reader.text(), reader.text().decode()
            identity = None if KINDS[kind] is Kind.DIRECTORY else Identity(length, mtime_ns, file_id)
            self._add(Inode(node_id, parent, name, KINDS[kind], identity, lookups))
            if current:
                self.current[parent, name] = node_id
        elif tag == b"L":
            node_id, count = reader.unpack(COUNT32)
            node = self.nodes[node_id]
            node.lookups += count
            self.current[node.parent, node.name] = node_id
        elif tag == b"F":
            self.forget(*reader.unpack(COUNT64))
        elif tag == b"O":
            handle, node_id = reader.unpack(COUNT64)
            self._add_file(handle, node_id, unpack_status(reader))
        elif tag == b"D":
            self._add_directory(*reader.unpack(COUNT64))
        elif tag == b"C":
            (handle,) = reader.unpack(HANDLE)
            self.directories[handle].names.append(reader.text())
        elif tag == b"R":
            self.release(*reader.unpack(HANDLE))
        elif tag == b"M":
            node_id, parent, length, mtime_ns = reader.unpack(MOVED)
            name, file_id = reader.text(), reader.text().decode()
            node = self.nodes[node_id]
            self._move(node, parent, name, None if node.kind is Kind.DIRECTORY else Identity(length, mtime_ns, file_id))
        elif tag == b"I":
            (number,) = reader.unpack(NUMBER)
            self.intents[number] = reader.text()
        elif tag == b"J":
            (number,) = reader.unpack(NUMBER)
            self.intents.pop(number, None)
        else:
            raise ValueError(f"unknown journal record {tag!r}")

    # Inner workings

    def _add(self, node: Inode) -> Inode:
        self.nodes[node.id] = node
        self.nodes[node.parent].children += 1
        self._compaction.add(node)
        return node

    def _set_current(self, parent: int, name: bytes, node_id: int) -> None:
        before = self.nodes.get(self.current.get((parent, name), node_id))
        if before is not None and before.id != node_id:
            self._compaction.keep(before)
        self.current[parent, name] = node_id

    def _move(self, node: Inode, parent: int, name: bytes, identity: Identity | None) -> None:
        self._compaction.keep(node)
        if self.current.get((node.parent, node.name)) == node.id:
            del self.current[node.parent, node.name]
        former = self.nodes[node.parent]
        former.children -= 1
        self.nodes[parent].children += 1
        node.parent, node.name, node.identity = parent, name, identity
        self._set_current(parent, name, node.id)
        self._collect(former)

    def _collect(self, node: Inode) -> None:
        """Drop a node that nothing refers to any more, and then perhaps its parent."""
        while node.id != ROOT and not (node.lookups or node.children or node.handles):
            self._compaction.keep(node)
            del self.nodes[node.id]
            if self.current.get((node.parent, node.name)) == node.id:
                del self.current[node.parent, node.name]
            node = self.nodes[node.parent]
            node.children -= 1

    def _add_file(self, handle: int, node_id: int, status: Status) -> None:
        node = self.nodes[node_id]
        node.handles += 1
        node.status = status
        self.files[handle] = FileHandle(node_id, status)
        self._next_handle = max(self._next_handle, handle + 1)

    def _add_directory(self, handle: int, node_id: int) -> None:
        self.nodes[node_id].handles += 1
        self.directories[handle] = DirectoryHandle(node_id)
        self._next_handle = max(self._next_handle, handle + 1)

    def _number(self) -> int:
        handle = self._next_handle
        self._next_handle += 1
        return handle


def _derive(parent: int, name: bytes, kind: Kind, identity: Identity | None) -> int:
    text = f"{parent} {kind.value}"
    if identity is not None:
        text += f" {identity.length} {identity.mtime_ns} {identity.file_id}"
    return int.from_bytes(blake2b(text.encode() + b"\0" + name, digest_size=8).digest(), "little") & _MASK


def unpublished_identity(mark: str = "") -> Identity:
    """The identity of a version that is yet to be published: a new one, or the one with this file id."""
    return Identity(0, 0, mark or _UNPUBLISHED + token_hex(8))


def is_unpublished(node: Inode) -> bool:
    """True if a node is of a file being written, by this worker or by one that is dead."""
    return node.identity is not None and node.identity.file_id.startswith(_UNPUBLISHED)


def identity_of(status: Status) -> Identity | None:
    """The identity of the version that `status` describes; a directory has none."""
    if status.kind is Kind.DIRECTORY:
        return None
    if status.file_id.startswith(_UNPUBLISHED):  # listed by `UnpublishedNames`
        return unpublished_identity(status.file_id)
    return status.identity
