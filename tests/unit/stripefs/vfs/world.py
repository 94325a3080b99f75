"""A store in memory, and the tree over it: no kernel, no clock but trio's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import trio
import trio.testing

from stripefs.errors import NotFound, StaleVersion
from stripefs.store.base import Block, Buffer, Capabilities, Handle, Identity, Kind, Space, Status, Store
from stripefs.vfs import InodeTable, NodeAttributes, Tree


class MemoryHandle(Handle):
    def __init__(self, status: Status, data: bytes) -> None:
        self.status = status
        self.data = data
        self.closed = False

    def locate(self, offset: int, length: int) -> Sequence[Block]:
        return [Block(0, self.status.length, ("a", "b"))]

    def read(self, offset: int, length: int, *, host: str = "", watch: object = None) -> Buffer:
        return self.data[offset : offset + length]

    def close(self) -> None:
        self.closed = True


class MemoryStore(Store):
    """Files in a dictionary. `before` is called with the name of each call and its path, and may raise or wait."""

    url = "memory://test"
    capabilities = Capabilities(any_names=True, file_ids=True)

    def __init__(self) -> None:
        self.entries: dict[bytes, tuple[Status, bytes]] = {b"/": (Status(b"", Kind.DIRECTORY, mode=0o755), b"")}
        self.calls: list[tuple[str, bytes]] = []
        self.before: Callable[[str, bytes], None] = lambda call, path: None
        self.batch = 3
        self.capacity: Space | None = Space(1000, 400, 7)
        self.handles: list[MemoryHandle] = []
        self._serial = 0

    def put(self, path: bytes, data: bytes = b"", kind: Kind = Kind.FILE, **fields: object) -> None:
        self._serial += 1
        name = path.rsplit(b"/", 1)[1]
        status = Status(name, kind, len(data), mtime_ns=1000, file_id=str(self._serial))
        self.entries[path] = (replace(status, **fields), data)  # type: ignore[arg-type]  # fields of Status

    def _enter(self, call: str, path: bytes) -> None:
        self.calls.append((call, path))
        self.before(call, path)

    def stat(self, path: bytes) -> Status:
        self._enter("stat", path)
        if path not in self.entries:
            raise NotFound(f"{path!r} does not exist")
        return self.entries[path][0]

    def scandir(self, path: bytes, after: bytes = b"") -> Iterator[Sequence[Status]]:
        prefix = path.rstrip(b"/") + b"/"
        children = sorted(
            (
                status
                for child, (status, _) in self.entries.items()
                if child.rpartition(b"/")[0] + b"/" == prefix and status.name
            ),
            key=lambda status: status.name,
        )
        children = [status for status in children if status.name > after]
        for at in range(0, len(children), self.batch):
            self._enter("scandir", path)
            yield children[at : at + self.batch]

    def open(self, path: bytes, expect: Identity | None = None) -> MemoryHandle:
        self._enter("open", path)
        if path not in self.entries:
            raise NotFound(f"{path!r} does not exist")
        status, data = self.entries[path]
        if expect is not None and status.identity != expect:
            raise StaleVersion(f"{path!r} was replaced")
        self.handles.append(MemoryHandle(status, data))
        return self.handles[-1]

    def readlink(self, path: bytes) -> bytes:
        return self.entries[path][1]

    def space(self) -> Space | None:
        self._enter("space", b"/")
        return self.capacity

    def close(self) -> None:
        pass


class PlainFile:
    def __init__(self, handle: MemoryHandle) -> None:
        self.handle = handle
        self.status = handle.status

    async def read(self, offset: int, size: int) -> Buffer:
        await trio.lowlevel.checkpoint()
        return self.handle.read(offset, size)

    async def locate(self, offset: int, length: int) -> Sequence[Block]:
        await trio.lowlevel.checkpoint()
        return self.handle.locate(offset, length)

    async def aclose(self) -> None:
        self.handle.close()


class PlainReader:
    """Opens files of a store and reads them as they are."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store

    async def open(self, path: bytes, expect: Identity | None) -> PlainFile:
        return PlainFile(await trio.to_thread.run_sync(self.store.open, path, expect))


def recovered(payloads: Iterable[bytes]) -> InodeTable:
    state = InodeTable()
    state.replay(payloads)
    return state


class Kept:
    """A journal in lists. longest: most slashes, which tests give names, carried by one step of a compaction."""

    def __init__(self, compact_every: int = 0) -> None:
        self.payloads: list[bytes] = []
        self.longest = self.generations = 0
        self._compact_every = compact_every
        self._carried: list[bytes] = []
        self._since = 0

    def append(self, payload: bytes) -> None:
        self.payloads.append(payload)

    def full(self) -> bool:
        return 0 < self._compact_every < len(self.payloads)

    def begin(self) -> None:
        self._carried, self._since = [], len(self.payloads)

    def carry(self, payload: bytes) -> None:
        self._carried.append(payload)
        self.longest = max(
            self.longest, len(recovered([*self._carried]).nodes) - len(recovered(self._carried[:-1]).nodes)
        )

    def finish(self) -> bool:
        """Two payloads at a time, so that it comes to an end beside commits."""
        copied = self.payloads[self._since : self._since + 2]
        self._carried += copied
        self._since += len(copied)
        if self._since < len(self.payloads):
            return False
        self.payloads = self._carried
        self.generations += 1
        return True


def make(store: MemoryStore, kept: Kept | None = None, **options: object) -> Tree:
    """A tree; one that carries on where an earlier one stopped when `kept` holds its records."""
    state = InodeTable(kept)
    state.replay(kept.payloads if kept else ())
    return Tree(store, PlainReader(store), state=state, **options)  # type: ignore[arg-type]


async def listed(tree: Tree, handle: int, start: int = 0, most: int = 10**6) -> list[tuple[bytes, int]]:
    shown: list[tuple[bytes, int]] = []

    def show(name: bytes, attributes: NodeAttributes, cookie: int) -> bool:
        if len(shown) == most:
            return False
        shown.append((name, cookie))
        return True

    await tree.readdir(handle, start, show)
    return shown
