"""Parts of a file that is being written: their bytes, in memory until acknowledged, and their way to the store.

Bytes are dealt out in units to the columns of a segment (`UploadSegment`), and each column (`PartBuffer`) becomes one
object. A column is sent as soon as it is full, the others when the segment is sealed.

A `PartUpload` is one object on its way: a part, a small file or a manifest, whole in memory. `send` writes it on a
thread, in the turn that `HostSlots` gives it. Each try is an `UploadAttempt`, under a path of its own.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import trio

from stripefs.errors import Abandoned, Exists, HostFailed, NotFound, StaleVersion, StoreError, Transient
from stripefs.format.blocks import PartTable, digest_of, table_length
from stripefs.retry import Attempts
from stripefs.store.base import Buffer, Status, Store
from stripefs.units import shown
from stripefs.write.layout_policy import Shape

__all__ = [
    "HostSlots",
    "LazyDirectory",
    "PartBuffer",
    "PartUpload",
    "UploadAttempt",
    "UploadBase",
    "UploadSegment",
    "send",
]

GATHERED = 1 << 20
"""Small writes are gathered into pieces of this many bytes, so that a million of them are no million objects."""

_SMALL = 64 << 10


@dataclass(frozen=True, slots=True)
class UploadBase:
    """`length` bytes of the file are those of the file at `path`, which so many parts were joined to. file_id: of a
    published file, whose name others may give to another one; "" where it is not known."""

    path: bytes
    length: int
    parts: int = 1
    file_id: str = ""

    def ensure_same(self, status: Status) -> None:
        """Raises StaleVersion unless `status` is that of this very file."""
        if (status.file_id, status.length) != (self.file_id or status.file_id, self.length):
            raise self.replaced()

    def replaced(self) -> StaleVersion:
        """The error where another file, or none, has the name by now."""
        return StaleVersion(
            f"{shown(self.path)} was unlinked or replaced while it was being written, so its published bytes are gone"
        )


class PartBuffer:
    """The bytes of one part: pieces that do not change any more, but for a last one that gathers small writes."""

    def __init__(self) -> None:
        self.size = 0
        self._pieces: list[Buffer] = []
        self._tail = bytearray()
        self.part: PartUpload | None = None

    def add(self, data: memoryview) -> None:
        """Take `data`, whose bytes stay as they are (no copy is made of long ones)."""
        self.size += len(data)
        if len(data) < _SMALL:
            self._tail += data
            if len(self._tail) >= GATHERED:
                self._close_tail()
        else:
            self._close_tail()
            self._pieces.append(data)

    def _close_tail(self) -> None:
        if self._tail:
            self._pieces.append(self._tail)
            self._tail = bytearray()

    def pieces(self) -> list[Buffer]:
        """All bytes so far; bytes added later go to other pieces."""
        self._close_tail()
        return list(self._pieces)

    def forget(self) -> None:
        self._pieces = []
        self._tail = bytearray()

    def read(self, offset: int, size: int) -> Iterator[Buffer]:
        """The bytes [offset, offset + size) that are held."""
        for piece in self.pieces():
            view = memoryview(piece)
            if offset < len(view):
                yield view[offset : offset + size]
                size -= min(size, len(view) - offset)
                offset = 0
                if not size:
                    return
            else:
                offset -= len(view)


class UploadSegment:
    """`send(column)` is called once for every column that holds something, and sets `column.part`."""

    def __init__(self, start: int, shape: Shape, send: Callable[[UploadSegment, PartBuffer], None]) -> None:
        self.start = start
        self.shape = shape
        self.length = 0
        self.taken: set[str] = set()
        self.columns = [PartBuffer() for _ in range(shape.width)]
        self._send = send

    @property
    def end(self) -> int:
        return self.start + self.length

    @property
    def space(self) -> int:
        return self.shape.length - self.length

    @property
    def parts(self) -> list[PartUpload]:
        """Of a sealed segment, in the order of its columns."""
        return [column.part for column in self.columns if column.part is not None]

    def add(self, data: memoryview) -> None:
        """Take all of `data`, at most `room` bytes."""
        unit = self.shape.unit or self.shape.part_length
        while data:
            index, into = divmod(self.length, unit)
            column = self.columns[index % len(self.columns)]
            take = min(len(data), unit - into)
            column.add(data[:take])
            self.length += take
            data = data[take:]
            if column.size == self.shape.part_length:
                self._send(self, column)

    def seal(self) -> None:
        """Nothing more comes."""
        self.columns = [column for column in self.columns if column.size]
        for column in self.columns:
            if column.part is None:
                self._send(self, column)

    def places(self, offset: int, size: int) -> Iterator[tuple[PartBuffer, int, int]]:
        """(column, offset in it, bytes) of the file's bytes [offset, offset + size), which lie in this segment."""
        unit = self.shape.unit or self.shape.part_length
        while size:
            number, into = divmod(offset - self.start, unit)
            row, index = divmod(number, self.shape.width)
            take = min(size, unit - into)
            yield self.columns[index], row * unit + into, take
            offset += take
            size -= take


class LazyDirectory:
    """A directory that is made when the first part needs it. For many threads."""

    def __init__(self, path: bytes) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._made = False

    def make(self, store: Store) -> None:
        """Make the directory where it is missing, and those above it."""
        with self._lock:
            if self._made:
                return
            at = b""
            for name in self._path.split(b"/")[1:]:
                at += b"/" + name
                with contextlib.suppress(Exists):
                    store.mkdir(at)
            self._made = True

    def lost(self) -> None:
        """Note that the directory was found missing."""
        self._made = False


@dataclass(eq=False)
class PartUpload:
    """`chunks`, `size` bytes in all, to become one file.

    unit: a table of checksums goes behind the bytes when it is not 0 (parts of striped files). new_path() answers a
    path and its number for each try, so that a try that was given up cannot harm the next. taken: hosts that have a
    part of the same segment, acknowledged or on its way: others are better. folder is made before, if there is one.
    on_end is called on trio's thread once `status` or `error` is known, on_cancel there when it is given up: for its
    uploader.
    """

    chunks: Sequence[Buffer]
    size: int
    new_path: Callable[[], tuple[bytes, int]]
    unit: int = 0
    block_size: int = 0
    taken: set[str] = field(default_factory=set)
    folder: LazyDirectory | None = None
    on_end: Callable[[PartUpload], None] | None = None
    on_cancel: Callable[[], None] = lambda: None

    number: int = -1
    status: Status | None = None
    error: Exception | None = None
    ended: trio.Event = field(default_factory=trio.Event)
    given_up: trio.Event = field(default_factory=trio.Event)
    attempt: UploadAttempt | None = None
    attempts: Attempts | None = None  # from the first failure on, by trio's clock
    changed: trio.Event = field(default_factory=trio.Event)
    """Set, and replaced by another one, when all of it was sent, or it has ended."""

    @property
    def cancelled(self) -> bool:
        return self.given_up.is_set()

    @property
    def acked(self) -> bool:
        return self.status is not None

    @property
    def sent(self) -> bool:
        """True if its host has all its bytes, and may still fail to keep them."""
        return self.attempt is not None and self.attempt.sent

    @property
    def path(self) -> bytes:
        """Of the object in the store, as long as no other try is needed."""
        return b"" if self.attempt is None else self.attempt.path

    @property
    def digest(self) -> bytes:
        """Of the table behind the bytes, once all of it was sent; b"" where there is none."""
        return b"" if self.attempt is None else self.attempt.digest

    @property
    def length(self) -> int:
        """Bytes of the object in the store, a table included."""
        return self.size + (table_length(self.size, self.unit) if self.unit else 0)

    def notify(self) -> None:
        changed, self.changed = self.changed, trio.Event()
        changed.set()

    def cancel(self) -> None:
        """The part is not wanted any more. The try ends soon; the uploader removes its leftovers."""
        self.given_up.set()
        if self.attempt is not None:
            self.attempt.cancel()
        self.on_cancel()

    def end(self, error: Exception | None) -> None:
        self.error = error
        self.ended.set()
        self.notify()
        if self.on_end is not None:
            self.on_end(self)


@dataclass(eq=False)
class UploadAttempt:
    """One try. The sending thread writes `sent_bytes`, `digest`, `sent` and `waiting`, and calls `on_sent`."""

    path: bytes
    host: str
    began: float
    slots: HostSlots
    on_sent: Callable[[], None] = lambda: None
    sent_bytes: int = 0
    digest: bytes = b""
    sent: bool = False
    waiting: bool = False
    cancelled: bool = False
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    seen: int = 0
    moved_at: float = 0.0

    def cancel(self) -> None:
        """Its thread is to stop as soon as it can; nothing waits for it."""
        self.cancelled = True
        self.slots.give_up(self)

    def stalled(self, now: float, patience: float) -> bool:
        """True if nothing has moved for `patience` seconds; to be asked now and then."""
        if self.waiting or self.sent_bytes != self.seen:
            self.seen, self.moved_at = self.sent_bytes, now
        return now - max(self.began, self.moved_at) > patience


class HostSlots:
    """`at_once` parts flow to a host at a time, the first that was ready first. For many threads.

    Parts that share a host's bandwidth all end late, and their hosts then stand idle together while the last ones are
    closed. One after the other, each is being closed while the next one flows: eight DataNodes of 40 MB/s took 274 MB/s
    of a striped file, 257 with three parts at once.
    """

    def __init__(self, at_once: int = 1) -> None:
        self._at_once = at_once
        self._queue: list[UploadAttempt] = []
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def use(self, attempt: UploadAttempt) -> Iterator[None]:
        """Waits until it is the turn of `attempt`. Raises Abandoned, HostFailed when the host fails meanwhile."""
        with self._changed:
            self._queue.append(attempt)
            attempt.waiting = True
            try:
                self._changed.wait_for(lambda: attempt.cancelled or attempt not in self._queue[self._at_once :])
            finally:
                attempt.waiting = False
            if attempt.cancelled:
                self._leave(attempt)
                raise Abandoned("nobody wants this part any more")
            if attempt not in self._queue:
                raise HostFailed("the host failed while this part waited for its turn")
        try:
            yield
        finally:
            with self._changed:
                self._leave(attempt)

    def give_up(self, attempt: UploadAttempt) -> None:
        """`attempt` is no longer wanted: its end is not waited for."""
        with self._changed:
            self._leave(attempt)

    def failed(self) -> None:
        """The host failed: those that wait for it need not find that out one after the other."""
        with self._changed:
            self._queue = [attempt for attempt in self._queue if not attempt.waiting]
            self._changed.notify_all()

    def _leave(self, attempt: UploadAttempt) -> None:
        with contextlib.suppress(ValueError):
            self._queue.remove(attempt)
        self._changed.notify_all()


def send(store: Store, part: PartUpload, attempt: UploadAttempt) -> Status:
    """Write it all, blocking; its status. Nothing stays when this raises, if possible."""
    if attempt.cancelled:
        raise Abandoned("nobody wants this part any more")
    table = PartTable(part.unit) if part.unit else None
    total = part.length
    if part.folder is not None:
        part.folder.make(store)
    sink = store.create(
        attempt.path,
        host=attempt.host,
        block_size=part.block_size,
        length=total,
        private=bool(part.unit),  # other parts are joined into an ordinary file
    )
    try:
        with attempt.slots.use(attempt):
            for chunk in part.chunks:
                sink.write(chunk)
                attempt.sent_bytes += len(chunk)
                if attempt.cancelled:
                    raise Abandoned("nobody wants this part any more")
                if table is not None:
                    table.add(chunk)
            if table is not None:
                behind = table.finish()
                sink.write(behind)
                attempt.digest = digest_of(behind)
        attempt.sent = True
        attempt.on_sent()
        status = sink.close()
    except BaseException as error:
        sink.abort()
        if isinstance(error, HostFailed):
            error.host = error.host or attempt.host
        elif isinstance(error, NotFound) and part.folder is not None:
            part.folder.lost()
            raise Transient(f"the folder of {attempt.path!r} went: {error.message}") from error
        elif not isinstance(error, Exception):  # a panic of a client written in Rust is no Exception
            raise StoreError(f"the client failed unexpectedly: {error!r}") from None
        raise
    if attempt.cancelled or status.length != total:
        with contextlib.suppress(StoreError):  # gc finds it
            store.remove(attempt.path)
        if attempt.cancelled:
            raise Abandoned("nobody wants this part any more")
        raise Transient(f"{attempt.path!r} has {status.length} bytes in the store instead of {total}")
    return status
