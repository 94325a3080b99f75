"""Block sources: packs of a store, read by ranges, whose blocks are unpacked and checked against their SHA-256.

The store is connected when something is first read, and anew when reads keep failing, so that a device whose blocks are
all here needs no store to be reachable. Packs that were read stay open, the latest used.

Blocks are loaded in the threads that read. One that is not what it must be is None; nothing is raised for it.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TYPE_CHECKING, Protocol

import xxhash

from imagefs.format.codec import decode
from imagefs.format.index import BlockLocation, Pack
from imagefs.repository.base import RangeReader, Repository
from imagefs.repository.images import Images, object_path
from imagefs.repository.store import open_repository
from stripefs.errors import ServiceDown, StoreError, StripefsError
from stripefs.settings import StoreSettings, redact
from stripefs.store.base import Buffer

if TYPE_CHECKING:
    from imagefs.blocks.upstream import Mirror, Mirrors

__all__ = ["Arrived", "BlockSource", "Copy", "PackSource", "load", "read_copies"]

PACKS = 64
"""Open at once: 2 GiB of them. Each may be a descriptor or a connection."""

FAILURES = 3
"""Reads that fail in a row before the store is connected anew."""

CONNECT_WITHIN = 30.0
"""Seconds that others wait for one thread's connection: then it counts as hung, and is made anew."""

PAUSE = 5.0
"""Seconds between two connections."""


class BlockSource(Protocol):
    """Called from many threads at once; a call may block. `mirrors` are to be asked before it, in their order. url:
    without secrets."""

    @property
    def url(self) -> str: ...
    @property
    def mirrors(self) -> Sequence[Mirror]: ...

    def read(self, pack: Pack, offset: int, length: int) -> Buffer:
        """`length` bytes of the pack, unchecked. Raises StoreErrors; Transient ones are worth another try."""

    def report_damage(self, pack: Pack) -> None:
        """The bytes that were read of the pack are wrong: the next read is to look for it anew, it may have been
        mended."""


class PackSource:
    """The packs, and the images, of the store that `settings` describe. Nothing is asked before the first call.

    owned: whether what `connect` answers is closed by this. mirrors: those of the store, closed with this.
    """

    def __init__(
        self,
        settings: StoreSettings,
        *,
        connect: Callable[[StoreSettings], Repository] = open_repository,
        owned: bool = True,
        mirrors: Mirrors | None = None,
    ) -> None:
        self.url = redact(settings.url)
        self.mirrors: Sequence[Mirror] = mirrors.all if mirrors is not None else ()
        self._mirrors = mirrors
        self._settings = settings
        self._connect = connect
        self._owned = owned
        self._lock = threading.Lock()
        self._store: Future[Repository] | None = None
        self._connected = 0.0
        self._last: Repository | None = None  # the one before, which calls under way may use
        self._open: OrderedDict[bytes, _Opened] = OrderedDict()
        self._failures = 0
        self._closed = False

    def images(self) -> Images:
        """The images of the store, connected. Raises ConfigError and StoreErrors."""
        copies = self._mirrors.document if self._mirrors is not None else None
        return Images(self._connection(), copies=copies)

    def read(self, pack: Pack, offset: int, length: int) -> Buffer:
        """`length` bytes of the pack, unchecked. Raises StoreErrors."""
        opened, new = self._enter(pack.digest)
        try:
            if new:
                opened.open(self._connection, pack)
            try:
                handle = opened.handle.result(CONNECT_WITHIN)
            except FutureTimeout:
                raise ServiceDown(f"{self.url}: a pack is not opened within {CONNECT_WITHIN:g} s") from None
            data = handle.read(offset, length)
        except StoreError:
            # A handle that failed may stay broken, so the next read opens the pack anew.
            self._failed(pack.digest, opened)
            raise
        finally:
            opened.leave()
        self._failures = 0
        return data

    def report_damage(self, pack: Pack) -> None:
        """Open the pack anew for the next read: what is open may be a file that another has taken the place of."""
        with self._lock:
            opened = self._open.pop(pack.digest, None)
        if opened is not None:
            opened.leave()

    def close(self) -> None:
        """Let go of everything. Reads under way may fail."""
        with self._lock:
            self._closed = True
            opened, self._open = list(self._open.values()), OrderedDict()
            store, self._store = self._store, None
            last, self._last = self._last, None
        if self._mirrors is not None:
            self._mirrors.close()
        for one in opened:
            one.leave()
        if last is not None:
            self._close(last)
        if store is not None and store.done() and store.exception() is None:
            self._close(store.result())

    def _connection(self) -> Repository:
        """One thread connects; those that come meanwhile share what becomes of it."""
        with self._lock:
            if self._closed:
                raise StoreError(f"{self.url} is not used any more")
            future = self._store
            mine = future is None
            if future is None:
                future = self._store = Future()
        if not mine:
            try:
                return future.result(CONNECT_WITHIN)
            except FutureTimeout:
                with self._lock:
                    if self._store is future:
                        self._store = None  # the next reader connects anew
                raise ServiceDown(f"{self.url} is not connected within {CONNECT_WITHIN:g} s") from None
        try:
            store = self._connect(self._settings)
        except BaseException as error:
            with self._lock:
                if self._store is future:
                    self._store = None
            future.set_exception(error)
            raise
        with self._lock:
            self._connected, self._failures = time.monotonic(), 0
            forgotten = self._store is not future  # closed meanwhile, or given up by those who waited
        future.set_result(store)
        if forgotten:
            self._close(store)
            raise StoreError(f"{self.url} took too long to be connected")
        return store

    def _enter(self, digest: bytes) -> tuple[_Opened, bool]:
        """The pack, and whether the caller must open it."""
        surplus = None
        with self._lock:
            opened = self._open.get(digest)
            new = opened is None
            if opened is None:
                opened = self._open[digest] = _Opened()
                if len(self._open) > PACKS:
                    surplus = self._open.popitem(last=False)[1]
            self._open.move_to_end(digest)
            opened.enter()
        if surplus is not None:
            surplus.leave()
        return opened, new

    def _failed(self, digest: bytes, opened: _Opened) -> None:
        retired = None
        surplus: list[_Opened] = []
        with self._lock:
            self._failures += 1
            if self._open.get(digest) is opened:
                surplus.append(self._open.pop(digest))
            store = self._store
            if (
                self._failures >= FAILURES
                and store is not None
                and store.done()
                and time.monotonic() - self._connected >= PAUSE
            ):
                # Requests that still use the one before have had the time between two connections to end.
                retired, self._last, self._store = self._last, store.result(), None
                surplus += self._open.values()
                self._open.clear()
        for one in surplus:
            one.leave()
        if retired is not None:
            self._close(retired)

    def _close(self, repository: Repository) -> None:
        if self._owned:
            repository.close()


class _Opened:
    """A pack that is open or being opened. Closed when the source and every read have left it."""

    def __init__(self) -> None:
        self.handle: Future[RangeReader] = Future()
        self._users = 1
        self._lock = threading.Lock()

    def open(self, connection: Callable[[], Repository], pack: Pack) -> None:
        """Open it for all that wait; what fails reaches them as well."""
        try:
            self.handle.set_result(connection().open(object_path("packs", pack.digest.hex()), pack.length))
        except BaseException as error:  # noqa: BLE001  raised by every `handle.result()`, the caller's own first
            self.handle.set_exception(error)

    def enter(self) -> None:
        with self._lock:
            self._users += 1

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            unused = self._users == 0
        if unused:
            self.handle.add_done_callback(_close)  # at once, unless its opening hangs


def _close(handle: Future[RangeReader]) -> None:
    if handle.exception() is None:
        handle.result().close()


Arrived = tuple[bytes, int]
"""A block's bytes, checked, and their XXH3."""

Copy = Callable[[], bytes]
"""Reads a block from where it is on this machine already. Blocks; raises OSError, StoreError."""


def load(
    source: BlockSource,
    pack: Pack,
    offset: int,
    length: int,
    places: Sequence[BlockLocation],
    received: Callable[[], None],
) -> list[Arrived | None]:
    """Read the range and unpack its blocks; None for each that is not what it must be. Raises StripefsError.

    received: called in between, when all bytes are here.
    """
    try:
        data = source.read(pack, offset, length)
    except StripefsError:
        raise
    except BaseException as error:  # a panic of a client written in Rust is no Exception
        raise StoreError(f"the client failed unexpectedly: {error!r}") from error
    arrived: list[Arrived | None] = [None] * len(places)
    if len(data) == length:
        received()
        view = memoryview(data)
        for number, place in enumerate(places):
            block = decode(pack.codec, view[place.offset - offset :][: place.stored], place)
            if block is not None:
                arrived[number] = block, xxhash.xxh3_64_intdigest(block)
    if None in arrived:
        source.report_damage(pack)
    return arrived


def read_copies(copies: Sequence[tuple[bytes, Copy]]) -> list[Arrived | None]:
    """Read each block, of which this is the SHA-256, by its copy."""
    found: list[Arrived | None] = []
    for digest, copy in copies:
        try:
            data = copy()
        except (OSError, StoreError):
            found.append(None)
            continue
        right = hashlib.sha256(data).digest() == digest
        found.append((data, xxhash.xxh3_64_intdigest(data)) if right else None)
    return found
