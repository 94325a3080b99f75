"""Reads of a store that is collected or recovered: the walk over its directories, and the fsync records in it.

**Walk.** It goes over all directories of a store, batch by batch; memory grows with the depth of the tree alone. A
service that is away for a moment is waited for. A directory that cannot be listed is reported and passed over; one that
vanished meanwhile is not missed.

**Fsync records.** A file has a chain of them, which name its parts. Parts are looked for where the record lies now
(beside it, or in this store's pool), so that a directory that was moved is no hindrance.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TypeVar

from stripefs.errors import NotADirectory, NotFound, StoreError, Transient
from stripefs.format import reserved_names
from stripefs.format.lock_and_record import DocumentError, Record, RecordPart, digest_of
from stripefs.format.reserved_names import POOL_NAME
from stripefs.retry import Attempts, RetryPolicy, retry
from stripefs.store.base import Identity, Kind, Status, Store
from stripefs.store.striped import StripedStore
from stripefs.units import shown
from stripefs.write.upload_names import join_path, split_path

__all__ = [
    "BrokenChain",
    "FoundRecord",
    "Listed",
    "aside",
    "exists",
    "find_records",
    "is_obsolete",
    "is_version_of",
    "length_of",
    "pooled",
    "read_chain",
    "retry_transient",
    "status_of",
    "versions_of",
    "walk",
]

_T = TypeVar("_T")

SERVICE_AWAY = RetryPolicy(seconds=90.0)
"""A service that is away is asked again for so long."""

_POOLED = re.compile(rb"(?:.*/)?([0-9a-f]{16})/(0|[1-9][0-9]{0,9})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Listed:
    """A batch of the entries of `folder`.

    changed_ns: the newest time of the folder and all those above it, from before it was listed; 0 where one is not
    known. A move to here, of a directory perhaps, has changed one of them.
    """

    folder: bytes
    changed_ns: int
    entries: Sequence[Status]

    def path(self, entry: Status) -> bytes:
        return join_path(self.folder, entry.name)


@dataclass(slots=True)
class _Level:
    folder: bytes
    changed_ns: int
    batches: Iterator[Sequence[Status]]
    below: list[Status] = field(default_factory=list)


def walk(store: Store, failed: Callable[[bytes, StoreError], None]) -> Iterator[Listed]:
    """The tree from its root, without the pool and without those of mounts of directories further down.

    Calls `failed` with each directory that cannot be listed to its end; where that is the root it raises. Links are
    not followed.
    """
    stack = [_Level(b"/", store.stat(b"/").mtime_ns, _batches(store, b"/"))]
    while stack:
        frame = stack[-1]
        if frame.below:
            entry = frame.below.pop()
            folder = join_path(frame.folder, entry.name)
            changed_ns = entry.mtime_ns and frame.changed_ns and max(entry.mtime_ns, frame.changed_ns)
            stack.append(_Level(folder, changed_ns, _batches(store, folder)))
            continue
        try:
            batch = next(frame.batches, None)
        except (NotFound, NotADirectory):
            if len(stack) == 1:
                raise
            stack.pop()
            continue
        except StoreError as error:
            if len(stack) == 1:
                raise
            failed(frame.folder, error)
            stack.pop()
            continue
        if batch is None:
            stack.pop()
            continue
        yield Listed(frame.folder, frame.changed_ns, batch)
        frame.below = [e for e in reversed(batch) if e.kind is Kind.DIRECTORY and e.name != POOL_NAME]


def _batches(store: Store, folder: bytes) -> Iterator[Sequence[Status]]:
    """The entries of `folder`; where the service went away, from where it had come to."""
    after, attempts = b"", Attempts(SERVICE_AWAY, time.monotonic())
    while True:
        try:
            for batch in store.scandir(folder, after):
                if batch:
                    yield batch
                    after = batch[-1].name
                    attempts.restart(time.monotonic())
        except Transient as error:
            pause = attempts.failed(error, time.monotonic())
            if pause is None:
                raise
            time.sleep(pause)
        else:
            return


def retry_transient(call: Callable[[], _T]) -> _T:
    """`call()`, tried again for a while where the service is away. Raises what it raises last."""
    return retry(call, SERVICE_AWAY)


class BrokenChain(DocumentError):
    """A record that another one continues is missing, or not what it was."""


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """A record, with all that it continues. `path` is its own; changed_ns by the store's clock. paths: of all records
    of its version, newest first."""

    path: bytes
    record: Record
    changed_ns: int
    paths: tuple[bytes, ...] = ()

    @property
    def file(self) -> bytes:
        """The file that it is about, where the record lies now."""
        return join_path(split_path(self.path)[0], split_path(self.record.path)[1])

    @property
    def draft(self) -> bytes:
        """The file to which its parts are joined, and which is renamed onto the file."""
        folder, name = split_path(self.file)
        return join_path(folder, reserved_names.draft_name(name, self.record.version))

    def place(self, store: Store, part: RecordPart) -> bytes:
        """Place of a part: in our pool, beside the record, where the file was when it was written, or where another
        writer has moved it that took over."""
        inside = pooled(part.path) if self.record.layout == "striped" else None
        if inside:
            return reserved_names.pool_part(*inside)
        beside = join_path(split_path(self.path)[0], split_path(part.path)[1])
        places = [beside, *([part.path] if part.path != beside else []), aside(beside)]
        return next((path for path in places if path and exists(store, path)), beside)


def find_records(store: Store, path: bytes) -> list[FoundRecord]:
    """The records of the file at `path`, newest first, each with what it continues.

    Raises DocumentError when there are none but such as cannot be read, or continue one that is missing.
    """
    listed = _listed_records(store, path)
    while True:
        try:
            return _read_records(store, path, listed)
        except (NotFound, BrokenChain):
            before, listed = listed, _listed_records(store, path)
            if listed == before:  # else its writer was merging records
                return _read_records(store, path, listed, settled=True)


def _listed_records(store: Store, path: bytes) -> dict[str, dict[int, Status]]:
    """The records beside a file: version -> number -> entry."""
    folder, name = split_path(path)
    prefix = b"." + reserved_names.stem(name) + reserved_names.MARK
    found: dict[str, dict[int, Status]] = {}
    for batch in store.scandir(folder, prefix):
        for status in batch:
            meaning = reserved_names.parse_reserved(status.name)
            if meaning is not None and meaning.kind == "record" and status.name.startswith(prefix):
                found.setdefault(meaning.version, {})[meaning.number] = status
        if batch and not batch[-1].name.startswith(prefix):
            break
    return found


def _read_records(
    store: Store, path: bytes, listed: dict[str, dict[int, Status]], *, settled: bool = False
) -> list[FoundRecord]:
    """settled: no writer is merging these records, so a chain with a gap is as damaged as one that cannot be read."""
    folder = split_path(path)[0]
    found = []
    damaged: DocumentError | None = None
    for entries in listed.values():
        pieces = {number: join_path(folder, status.name) for number, status in sorted(entries.items(), reverse=True)}
        newest = max(entries)
        try:
            record, _ = read_chain(store, pieces)
        except DocumentError as error:
            if isinstance(error, BrokenChain) and not settled:
                raise
            damaged = error
        else:
            found.append(FoundRecord(pieces[newest], record, entries[newest].mtime_ns, tuple(pieces.values())))
    if damaged is not None and not found:
        raise damaged
    return sorted(found, key=lambda each: -each.changed_ns)


def read_chain(store: Store, pieces: Mapping[int, bytes]) -> tuple[Record, Set[int]]:
    """All that the newest of the records of one version says, with those that it continues, and the numbers of all of
    these. pieces: the path of each, by number.

    Raises BrokenChain, DocumentError for one that cannot be read, NotFound where the newest is gone.
    """
    number = max(pieces)
    record = newest = Record.from_bytes(bytes(store.get(pieces[number])))
    numbers, segments = {number}, [newest.segments]
    while (link := record.after) is not None:
        told = f"record {number} of {shown(newest.path)} continues record {link.number}, which "
        if link.number >= number:
            raise DocumentError(f"{told}is not older")
        number = link.number
        try:
            data = bytes(store.get(pieces[number]))
        except (KeyError, NotFound):
            raise BrokenChain(f"{told}is missing, as after a recovery that published the file and died") from None
        if digest_of(data) != link.digest:
            raise BrokenChain(f"{told}is another one or damaged")
        record = Record.from_bytes(data)
        if any(getattr(record, field) != getattr(newest, field) for field in ("version", "layout", "unit", "base")):
            raise DocumentError(f"{told}is of another version")
        numbers.add(number)
        segments.append(record.segments)
    whole = tuple(itertools.chain.from_iterable(reversed(segments)))
    return replace(newest, segments=whole, after=None), numbers


def versions_of(record: Record) -> frozenset[str]:
    """The versions of the pool that a record names parts of."""
    named = (pooled(part.path) for segment in record.segments for part in segment.parts)
    return frozenset(part[0] for part in named if part)


def is_obsolete(store: Store, view: StripedStore, record: Record, path: bytes) -> bool:
    """True if a record at `path` is of no use: its file is published, or none of its parts is left."""
    found = FoundRecord(path, record, 0)
    if record.layout == "striped":
        with contextlib.suppress(NotFound, NotADirectory):
            manifest = view.manifest(found.file)
            if manifest is not None:
                named = {(part.version, part.number) for part in manifest.parts}
                if all(pooled(part.path) in named for segment in record.segments for part in segment.parts):
                    return True
        if found.file != record.path:
            return False  # seen from another root, or moved: the pool that it means may not be ours
    parts = (part for segment in record.segments for part in segment.parts)
    if any(exists(store, found.place(store, part)) for part in parts):
        return False
    return not any(exists(store, path) for path in (found.draft, aside(found.draft)))


def aside(path: bytes) -> bytes:
    """The path to which a writer that takes over moves the part or draft at `path`; b"" for what stays where it is."""
    folder, name = split_path(path)
    moved = reserved_names.aside_name(name)
    return join_path(folder, moved) if moved else b""


def pooled(path: bytes) -> tuple[str, int] | None:
    """Version and number of a part in a pool."""
    match = _POOLED.fullmatch(path)
    return (match[1].decode(), int(match[2])) if match else None


def status_of(store: Store, path: bytes) -> Status | None:
    try:
        return retry_transient(lambda: store.stat(path))
    except (NotFound, NotADirectory):
        return None


def exists(store: Store, path: bytes) -> bool:
    return status_of(store, path) is not None


def length_of(store: Store, path: bytes) -> int | None:
    status = status_of(store, path)
    return None if status is None else status.length


def is_version_of(store: Store, view: StripedStore, path: bytes, identity: Identity) -> bool:
    """True if the version at `path` is that one, as the view shows it or as the store has it."""
    return any(
        found is not None and found.identity == identity for found in (status_of(view, path), status_of(store, path))
    )
