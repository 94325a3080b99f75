"""A store in memory with the manners of HDFS: ids that no other file ever has, joins that keep them, one clock.

Each call has its whole effect at once, so who uses it from several threads sees to their turns.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from dataclasses import replace as changed

from stripefs.errors import Exists, IsADirectory, NotADirectory, NotEmpty, NotFound, StaleVersion, Unsupported
from stripefs.format.manifest import MANIFEST_BLOCK_SIZE
from stripefs.store.base import (
    Attributes,
    Block,
    Buffer,
    Capabilities,
    Handle,
    Identity,
    Kind,
    Sink,
    Status,
    Store,
    Watch,
)
from stripefs.store.common import blocks_by_size, check_range

__all__ = ["MemoryStore"]


class MemoryStore(Store):
    """clock: nanoseconds since 1970. entries: the status of each path."""

    url = "memory:///"
    capabilities = Capabilities(
        file_ids=True,
        pinned=True,
        any_names=True,
        put=True,
        put_if_absent=True,
        writes=True,
        replace=True,
        concat=True,
        compare=True,
        move_document=True,
        attributes=True,
        marks=True,
    )

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._ids = itertools.count(1)
        self.entries: dict[bytes, Status] = {}
        self._data: dict[str, bytes] = {}
        self._documents: dict[str, bytes] = {}
        self.add(b"/", Kind.DIRECTORY)

    def stat(self, path: bytes) -> Status:
        try:
            return self.entries[path]
        except KeyError:
            raise NotFound(f"{path!r} does not exist") from None

    def scandir(self, path: bytes, after: bytes = b"") -> Iterator[Sequence[Status]]:
        if self.stat(path).kind is not Kind.DIRECTORY:
            raise NotADirectory(f"{path!r} is no directory")
        below = sorted(self._below(path), key=lambda status: status.name)
        yield [status for status in below if status.name > after]

    def open(self, path: bytes, expect: Identity | None = None) -> Handle:
        status = self._file(path)
        if expect is not None and status.identity != expect:
            raise StaleVersion(f"{path!r} was replaced")
        return _MemoryHandle(status, self._data[status.file_id])

    def put(self, path: bytes, data: Iterable[Buffer], *, replace: bool = False, parents: bool = True) -> Status:
        if parents:
            self._make_above(path)
        elif self.stat(path.rpartition(b"/")[0] or b"/").kind is not Kind.DIRECTORY:
            raise NotADirectory(f"there is no directory for {path!r}")
        if path in self.entries and not replace:
            raise Exists(f"{path!r} exists")
        return self.add(path, Kind.FILE, b"".join(bytes(piece) for piece in data))

    def put_document(self, path: bytes, data: bytes) -> Status:
        status = self.put(path, (), parents=False)
        self._documents[status.file_id] = data
        return status

    def get_document(self, path: bytes) -> Buffer:
        return self._documents.get(self._file(path).file_id) or self.get(path)

    def move_document(self, source: bytes, target: bytes, seen: Identity, data: bytes) -> None:
        if seen.file_id not in self._documents:
            raise Unsupported(f"{source!r} has its document in its bytes")
        found = next((path for path, status in self.entries.items() if status.file_id == seen.file_id), None)
        if found is None:
            raise StaleVersion(f"{source!r} was removed")
        self._documents[seen.file_id] = data
        if found != target:
            self.rename(found, target)

    def remove(self, path: bytes) -> None:
        self._file(path)
        del self.entries[path]

    def create(
        self,
        path: bytes,
        *,
        host: str = "",
        block_size: int = 0,
        replication: int = 0,
        length: int | None = None,
        private: bool = False,
    ) -> Sink:
        if path in self.entries:
            raise Exists(f"{path!r} exists")
        self.stat(path.rpartition(b"/")[0] or b"/")
        status = self.add(path, Kind.FILE, b"", marked=block_size == MANIFEST_BLOCK_SIZE)
        return _MemorySink(self, path, status.file_id)

    def complete(self, path: bytes, file_id: str, data: bytes) -> Status:
        """The file that was created at `path` has all its bytes, wherever it is by now."""
        for where, status in self.entries.items():
            if status.file_id == file_id:
                self._data[file_id] = data
                self.entries[where] = changed(status, length=len(data), mtime_ns=self._clock())
                return changed(self.entries[where], name=path.rpartition(b"/")[2])
        raise NotFound(f"{path!r} was removed while it was written")

    def mkdir(self, path: bytes, mode: int = 0o755) -> None:
        if path in self.entries:
            raise Exists(f"{path!r} exists")
        self.stat(path.rpartition(b"/")[0] or b"/")
        self.add(path, Kind.DIRECTORY, mode=mode)

    def rmdir(self, path: bytes) -> None:
        if self.stat(path).kind is not Kind.DIRECTORY:
            raise NotADirectory(f"{path!r} is no directory")
        if any(True for _ in self._below(path)):
            raise NotEmpty(f"{path!r} is not empty")
        del self.entries[path]

    def rename(self, source: bytes, target: bytes, *, replace: bool = False) -> None:
        self.stat(source)
        self.stat(target.rpartition(b"/")[0] or b"/")
        if target in self.entries and not replace:
            raise Exists(f"{target!r} exists")
        for path in [path for path in self.entries if path == source or path.startswith(source + b"/")]:
            moved = target + path.removeprefix(source)
            self.entries[moved] = changed(self.entries.pop(path), name=moved.rpartition(b"/")[2])

    def set_attributes(self, path: bytes, attributes: Attributes) -> None:
        given = {name: value for name, value in asdict(attributes).items() if value is not None}
        self.entries[path] = changed(self.stat(path), **given)

    def concat(self, target: bytes, sources: Sequence[bytes]) -> None:
        joined = [self._file(path) for path in (target, *sources)]
        data = b"".join(self._data[status.file_id] for status in joined)
        for path in sources:
            del self.entries[path]
        self._data[joined[0].file_id] = data
        self.entries[target] = changed(joined[0], length=len(data), mtime_ns=self._clock())

    def readlink(self, path: bytes) -> bytes:
        return self._data[self.stat(path).file_id]

    def close(self) -> None:
        """Nothing is held."""

    def _file(self, path: bytes) -> Status:
        status = self.stat(path)
        if status.kind is Kind.DIRECTORY:
            raise IsADirectory(f"{path!r} is a directory")
        return status

    def _below(self, path: bytes) -> Iterator[Status]:
        folder = path.rstrip(b"/")
        return (status for each, status in self.entries.items() if each != b"/" and each.rpartition(b"/")[0] == folder)

    def _make_above(self, path: bytes) -> None:
        folder = path.rpartition(b"/")[0]
        if folder and folder not in self.entries:
            self._make_above(folder)
            self.add(folder, Kind.DIRECTORY)

    def add(self, path: bytes, kind: Kind, data: bytes = b"", **fields: object) -> Status:
        """A new entry, whatever is at `path`, with these fields of Status."""
        file_id = str(next(self._ids))
        status = Status(path.rpartition(b"/")[2], kind, len(data), self._clock(), file_id=file_id)
        self.entries[path] = changed(status, **fields)  # type: ignore[arg-type]  # fields of Status
        self._data[file_id] = data
        return self.entries[path]


class _MemoryHandle(Handle):
    def __init__(self, status: Status, data: bytes) -> None:
        self.status = status
        self._data = data

    def locate(self, offset: int, length: int) -> Sequence[Block]:
        return blocks_by_size(self.status, offset, length)

    def read(self, offset: int, length: int, *, host: str = "", watch: Watch | None = None) -> Buffer:
        check_range(self.status, offset, length)
        return self._data[offset : offset + length]

    def close(self) -> None:
        """Nothing is held."""


class _MemorySink(Sink):
    def __init__(self, store: MemoryStore, path: bytes, file_id: str) -> None:
        self._store = store
        self._path = path
        self._file_id = file_id
        self._pieces: list[bytes] = []
        self._closed = False

    def write(self, data: Buffer) -> None:
        self._pieces.append(bytes(data))

    def close(self) -> Status:
        status = self._store.complete(self._path, self._file_id, b"".join(self._pieces))
        self._closed = True
        return status

    def abort(self) -> None:
        if self._closed:
            return
        try:
            if self._store.stat(self._path).file_id == self._file_id:
                self._store.remove(self._path)
        except NotFound:
            pass
