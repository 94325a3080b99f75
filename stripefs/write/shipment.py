"""One object on its way to the store: a part, a small file or a manifest, whole in memory until it is acknowledged."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import trio

from stripefs.errors import Abandoned, Exists, HostFailed, NotFound, StoreError, Transient
from stripefs.layout.sums import PartTable, digest_of, table_length
from stripefs.store.base import Buffer, Status, Store

__all__ = ["Attempt", "Folder", "Group", "Shipment", "send"]


class Group:
    """Shipments that want a host each. `hosts` are those that have one of them, landed or on its way."""

    def __init__(self) -> None:
        self.hosts: set[str] = set()


class Folder:
    """A directory that is made when the first shipment needs it. For many threads."""

    def __init__(self, path: bytes) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._made = False

    def make(self, store: Store) -> None:
        """It is there, and those above it."""
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
        """It is not there, as it turned out."""
        self._made = False


@dataclass(eq=False)
class Shipment:
    """`chunks`, `size` bytes in all, to become one file.

    unit: a table of checksums goes behind the bytes when it is not 0 (parts of striped files). place answers the path
    for every try anew, so that a try that was given up cannot harm the next. group: shipments of one group go to
    different hosts as far as there are any. folder is made before, if there is one. on_end is called on
    trio's thread once `status` or `error` stands.
    """

    chunks: Sequence[Buffer]
    size: int
    place: Callable[[], tuple[bytes, int]]
    unit: int = 0
    block_size: int = 0
    group: Group = field(default_factory=Group)
    folder: Folder | None = None
    on_end: Callable[[Shipment], None] | None = None

    path: bytes = b""
    number: int = -1
    status: Status | None = None
    digest: bytes = b""
    error: Exception | None = None
    ended: trio.Event = field(default_factory=trio.Event)
    cancelled: bool = False
    attempt: Attempt | None = None
    first_failure: float | None = None  # trio's clock
    delay: float = 0.0

    @property
    def landed(self) -> bool:
        return self.status is not None

    @property
    def length(self) -> int:
        """Bytes of the object that stands in the store, a table included."""
        assert self.status is not None
        return self.status.length

    def cancel(self) -> None:
        """Nobody wants it any more. It ends soon; what it leaves is removed by the sender."""
        self.cancelled = True
        if self.attempt is not None:
            self.attempt.cancelled = True

    def end(self, error: Exception | None) -> None:
        self.error = error
        self.ended.set()
        if self.on_end is not None:
            self.on_end(self)


@dataclass(eq=False)
class Attempt:
    """One try. `sent` and `cancelled` are shared with the sending thread, and words both."""

    path: bytes
    host: str
    began: float
    sent: int = 0
    cancelled: bool = False
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    seen: int = 0
    moved_at: float = 0.0

    def stalled(self, now: float, patience: float) -> bool:
        """Whether nothing has moved for `patience` seconds; to be asked now and then."""
        if self.sent != self.seen:
            self.seen, self.moved_at = self.sent, now
        return now - max(self.began, self.moved_at) > patience


def send(store: Store, shipment: Shipment, attempt: Attempt) -> tuple[Status, bytes]:
    """Write it all, blocking; its status and the digest of its table. Nothing stays when this raises, if possible."""
    if attempt.cancelled:
        raise Abandoned("nobody wants this part any more")
    table = PartTable(shipment.unit) if shipment.unit else None
    total = shipment.size + (table_length(shipment.size, shipment.unit) if table else 0)
    if shipment.folder is not None:
        shipment.folder.make(store)
    sink = store.create(attempt.path, host=attempt.host, block_size=shipment.block_size, length=total)
    digest = b""
    try:
        for chunk in shipment.chunks:
            sink.write(chunk)
            attempt.sent += len(chunk)
            if attempt.cancelled:
                raise Abandoned("nobody wants this part any more")
            if table is not None:
                table.add(chunk)
        if table is not None:
            behind = table.finish()
            sink.write(behind)
            digest = digest_of(behind)
        status = sink.close()
    except BaseException as error:
        sink.abort()
        if isinstance(error, HostFailed):
            error.host = error.host or attempt.host
        elif isinstance(error, NotFound) and shipment.folder is not None:
            shipment.folder.lost()
            raise Transient(f"the folder of {attempt.path!r} went: {error.message}") from error
        elif not isinstance(error, Exception):  # a panic of a client written in Rust is no Exception
            raise StoreError(f"the client failed unexpectedly: {error!r}") from None
        raise
    if attempt.cancelled or status.length != total:
        _remove(store, attempt.path)
        if attempt.cancelled:
            raise Abandoned("nobody wants this part any more")
        raise Transient(f"{attempt.path!r} has {status.length} bytes in the store instead of {total}")
    return status, digest


def _remove(store: Store, path: bytes) -> None:
    with contextlib.suppress(StoreError):  # gc finds it
        store.remove(path)
