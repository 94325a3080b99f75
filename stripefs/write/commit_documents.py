"""Documents of an upload (the manifest of a striped version, the records of its fsyncs), and the step that shows it.

A document is written before it is needed, as a hidden file, so that one rename is left to do (`PreparedDocument`).
Writing one takes from 20 ms to half a second: the last parts of a file are being acknowledged as long.

Each fsync writes a record that names the new segments and continues the record before. The records in the store form a
chain, oldest first. One that names at most as much as those behind it is merged with them, so each names more than
twice what the next one does: n fsyncs write O(n log n) bytes, and `stripefs recover` reads O(log n) documents. A record
appears by one rename, and the records it was merged of go only after that. So the newest one and those that it
continues name all that was durable, wherever a writer dies.

A call that was given up may have its effect later. So a number that was in use once is not used for another record,
but by one that replaces the only record, when the last try was answered.

A `Step` makes a version visible at its name: a rename onto it, or a join behind what is there. A step whose answer was
lost may be run again, and can tell if it has had its effect. All calls block.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import trio

from stripefs.errors import Exists, NotFound, StaleVersion
from stripefs.format.lock_and_record import Record, RecordBase, RecordLink, RecordPart, RecordSegment, digest_of
from stripefs.format.manifest import Manifest, Part, Segment
from stripefs.store.base import Status, Store
from stripefs.write.file_contents import STOPPING, FileContents
from stripefs.write.file_lock import is_same_file
from stripefs.write.layout_policy import Layout
from stripefs.write.parts import PartUpload
from stripefs.write.parts import UploadSegment as Written
from stripefs.write.store_ops import StoreOps
from stripefs.write.upload_names import UploadNames
from stripefs.write.uploader import Uploader

__all__ = [
    "Durable",
    "JoinStep",
    "PreparedDocument",
    "RecordLog",
    "RenameStep",
    "Step",
    "count_of",
    "manifest_of",
    "record_of",
]


@dataclass(frozen=True, slots=True)
class Step(ABC):
    """`source` is the hidden file that is renamed or joined; `path` the file that it becomes, or comes behind."""

    source: bytes
    path: bytes

    knows_itself: ClassVar[bool]
    """True if `is_done` cannot take another writer's version for this one."""

    @abstractmethod
    def run(self, store: Store) -> None: ...

    @abstractmethod
    def is_done(self, store: Store) -> bool:
        """True if the version is at the name. Raises NotFound where nothing is."""

    def has_source(self, store: Store) -> bool:
        """True if the source is there: then it has not been taken away by a writer that took over."""
        try:
            store.stat(self.source)
        except NotFound:
            return False
        return True


@dataclass(frozen=True, slots=True)
class RenameStep(Step):
    """staged: of the source. alone: there is no file at `path` that may be replaced."""

    staged: Status
    alone: bool

    knows_itself: ClassVar[bool] = True

    def run(self, store: Store) -> None:
        try:
            store.rename(self.source, self.path, replace=not self.alone)
        except Exists as error:
            raise StaleVersion(f"{self.path!r} was made by somebody else while it was being written") from error

    def is_done(self, store: Store) -> bool:
        return is_same_file(store.stat(self.path), self.staged)


@dataclass(frozen=True, slots=True)
class JoinStep(Step):
    """before: of the file at `path`, which has `length` bytes afterwards."""

    before: Status
    length: int

    knows_itself: ClassVar[bool] = False

    def run(self, store: Store) -> None:
        store.concat(self.path, [self.source])

    def is_done(self, store: Store) -> bool:
        now = store.stat(self.path)
        return (now.file_id, now.length) == (self.before.file_id, self.length)


def manifest_of(
    names: UploadNames, contents: FileContents, unit: int, before: Sequence[Segment], generation: int, pool: bytes
) -> Manifest:
    """The manifest of the segments `before` and those written behind them. All parts must have been sent."""
    segments = (*before, *(_as_segment(segment, names.version) for segment in contents.segments))
    return Manifest(names.version, generation, unit, pool, segments)


def count_of(contents: FileContents, *, head: PartUpload | None, manifest: Manifest | None) -> int:
    """Segments that `record_of` names, from the first one."""
    if head is not None:
        return 1 if head.size else 0
    return len(_before(contents, manifest)) + len(contents.stored) + len(contents.segments)


def record_of(
    names: UploadNames,
    contents: FileContents,
    unit: int,
    *,
    head: PartUpload | None,
    manifest: Manifest | None,
    published: Status | None,
    mode: int | None,
    start: int,
    after: RecordLink | None,
) -> Record:
    """Of all that is written, from segment `start` on, which continues the record `after`. unit: 0 unless striped.
    head: the part that has all of it, if there is one. manifest, published: of the file that is continued.
    """
    base = None
    if head is None and contents.layout is not Layout.STRIPED and contents.base is not None and published is not None:
        identity = published.identity
        base = RecordBase(identity.length, identity.mtime_ns, identity.file_id)
    if head is not None:
        segments = [_as_record(head.size, [head])] if head.size else []
    else:
        before = _before(contents, manifest)
        segments = [_as_named(each) for each in before[start:]]
        start = max(0, start - len(before))
        stored = contents.stored
        segments += [RecordSegment(each.length, (RecordPart(each.path, each.length),)) for each in stored[start:]]
        start = max(0, start - len(stored))
        segments += [_as_record(each.length, each.parts) for each in contents.segments[start:]]
    layout = (contents.layout or Layout.PLAIN).value
    return Record(names.path, names.version, layout, unit, tuple(segments), base, mode, after)


def _before(contents: FileContents, manifest: Manifest | None) -> tuple[Segment, ...]:
    return manifest.segments if manifest is not None and contents.layout is Layout.STRIPED else ()


def _as_named(segment: Segment) -> RecordSegment:
    parts = (RecordPart(part.path(), part.length, part.digest.hex()) for part in segment.parts)
    return RecordSegment(segment.length, tuple(parts))


def _as_record(length: int, parts: list[PartUpload]) -> RecordSegment:
    return RecordSegment(length, tuple(RecordPart(part.path, part.length, part.digest.hex()) for part in parts))


def _as_segment(segment: Written, version: str) -> Segment:
    parts = (Part(version, part.number, part.length, part.digest) for part in segment.parts)
    return Segment(segment.length, tuple(parts))


@dataclass(frozen=True, slots=True)
class _Sent:
    document: bytes
    part: PartUpload


class PreparedDocument:
    """At most one document at a time. new_path names each try of it. block_size: of its file, 0 for the store's own."""

    def __init__(self, uploader: Uploader, new_path: Callable[[], tuple[bytes, int]], block_size: int = 0) -> None:
        self._uploader = uploader
        self._new_path = new_path
        self._block_size = block_size
        self._sent: _Sent | None = None
        self.wasted = 0
        """Documents that were not the one that was needed in the end."""

    def begin(self, document: bytes) -> None:
        """Write the document that will be needed, as it seems, unless one was begun."""
        if self._sent is None:
            self._sent = self._send(document)

    async def take(self, document: bytes) -> bytes:
        """The path of a file of this document; the file is the caller's. Raises why it cannot be written.

        Another document that was begun must have been dropped.
        """
        if self._sent is not None and (path := await self._ended(self._sent)) is not None:
            return path
        self._sent = sent = self._send(document)
        path = await self._ended(sent)
        if path is None:
            assert sent.part.error is not None
            raise sent.part.error
        return path

    async def _ended(self, sent: _Sent) -> bytes | None:
        """The path of the document, which is the caller's affair then; None when it could not be written."""
        await sent.part.ended.wait()
        self._sent = None
        return sent.part.path if sent.part.acked else None

    async def drop(self, but: bytes | None = None) -> list[bytes]:
        """Forget what was begun and not taken, unless it is the document `but`; paths of what is in the store of it."""
        sent = self._sent
        if sent is None or sent.document == but:
            return []
        sent.part.cancel()
        with trio.move_on_after(STOPPING):  # a later arrival removes itself, or is found by gc
            await sent.part.ended.wait()
        self._sent = None
        self.wasted += 1
        return [sent.part.path] if sent.part.acked else []

    def _send(self, document: bytes) -> _Sent:
        part = PartUpload([document], len(document), self._new_path, block_size=self._block_size)
        self._uploader.submit(part)
        return _Sent(document, part)


@dataclass(frozen=True, slots=True)
class Durable:
    """`count` segments to be recorded. record(start, after) is one of those from `start` on that continues
    `after`. key: equal where the segments that were recorded last are the first of these; None where they never are.
    """

    count: int
    key: Hashable | None
    record: Callable[..., Record]


@dataclass(frozen=True, slots=True)
class _StoredRecord:
    path: bytes
    link: RecordLink
    count: int


@dataclass(frozen=True, slots=True)
class _Next:
    document: bytes
    behind: list[_StoredRecord]
    count: int


class RecordLog:
    """For one task at a time. outdated: paths to be removed once a record is in the store, or the upload has ended."""

    def __init__(self, ops: StoreOps, names: UploadNames, prepared: PreparedDocument) -> None:
        self.outdated: list[bytes] = []
        self._ops = ops
        self._names = names
        self._prepared = prepared
        self._chain: list[_StoredRecord] = []
        self._key: Hashable | None = None
        self._last = -1  # the highest number that was in use
        self._answered = True

    @property
    def exists(self) -> bool:
        """True if a record is in the store."""
        return bool(self._chain)

    async def prepare(self, durable: Durable) -> None:
        """Write the next record under another name, as far as it is known now."""
        document = self._next(durable).document
        self.outdated += await self._prepared.drop(but=document)
        self._prepared.begin(document)

    async def write(self, durable: Durable) -> None:
        """A record of all of it is in the store. Raises StoreError."""
        following = self._next(durable)
        self.outdated += await self._prepared.drop(but=following.document)
        source = await self._prepared.take(following.document)
        number = self._last + 1
        if self._answered and len(self._chain) == 1 and not following.behind:
            number = self._chain[0].link.number
        path = self._names.record(number)
        self._last, self._answered = max(self._last, number), False
        stood = [each.path for each in reversed(self._chain)]
        try:
            await self._ops.rename_over(source, path, len(following.document))
        except BaseException:
            self.outdated += [each for each in (source, path) if each not in stood]
            raise
        self._answered = True
        written = _StoredRecord(path, RecordLink(number, digest_of(following.document)), following.count)
        self._chain, self._key = [*following.behind, written], durable.key
        stored = {each.path for each in self._chain}
        self.outdated += [each for each in stood if each not in stored]

    def _next(self, durable: Durable) -> _Next:
        behind = self._chain[:] if durable.key is not None and durable.key == self._key else []
        count = durable.count - sum(each.count for each in behind)
        while behind and behind[-1].count <= count:
            count += behind.pop().count
        record = durable.record(start=durable.count - count, after=behind[-1].link if behind else None)
        return _Next(record.to_bytes(), behind, count)

    def forget(self) -> None:
        """The records are of no use any more: newest first, so that what is left of them is a chain."""
        self.outdated += [each.path for each in reversed(self._chain)]
        self._chain, self._key = [], None

    async def unused(self) -> list[bytes]:
        """Paths of what was written ahead and nothing needs. They are forgotten here."""
        return await self._prepared.drop()
