"""One writer a file: a lock beside it, leased for LEASE seconds by the store's own clock. All calls block.

The lock is a small document put where nothing was. Its time, by the store's clock, is when it was renewed last. A lock
older than LEASE is its writer's death: whoever wants the file moves it to a name of its own, which only one can, sees
that it moved the lock it had looked at (else it puts it back), and then puts its own. A writer that could not renew in
time looks whether the lock is still its own before it publishes.

A renewal gives the lock the time that a fresh, empty file gets, where the store lets times be set; else it writes the
lock anew. So on HDFS only the NameNode has part in it, and no data host that is silent can cost a living writer its
lock.

The clocks of hosts are never compared; within one host only the monotonic clock is used.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from datetime import UTC, datetime

from stripefs.errors import Busy, Exists, NotADirectory, NotFound, StoreError, Transient, Unsupported
from stripefs.layout.hidden import is_hidden, lock_name, new_version, parse_hidden, part_name
from stripefs.layout.record import LEASE, DocumentError, LockDocument
from stripefs.store.base import Attributes, Kind, Status, Store
from stripefs.write.clock import StoreClock
from stripefs.write.names import join, split
from stripefs.write.refusals import DraftLost

__all__ = ["RENEW", "Lease", "holder", "living", "lock_path", "take"]

_log = logging.getLogger(__name__)

RENEW = LEASE / 3
"""Seconds between renewals: two may fail."""

_SURE = 2 / 3
"""Of the lease, after its last renewal, for which a writer need not look whether it still holds the lock."""

_TRIES = 3
_LOOKS, _MOMENT = 5, 0.1  # seconds

_BLANKS = 4096
"""A new lock has fewer blanks than these, their number drawn by lot: by its length a writer tells its own from one that
took its place just now, and need not read it, which on HDFS takes a data host."""

_LOOKED_AT = 10_000
"""Names that are listed before a directory is renamed: a tenth of a second of a NameNode's time."""


def lock_path(path: bytes) -> bytes:
    folder, name = split(path)
    return join(folder, lock_name(name))


class Lease:
    """A lock that is held. `status` is its file's, as it was when it was taken."""

    def __init__(
        self, store: Store, document: LockDocument, status: Status, renewed_at: float, seconds: float = LEASE
    ) -> None:
        self._store = store
        self._seconds = seconds
        self.document = document
        self.status = status
        self._path = lock_path(document.path)
        self._seen = status.identity
        self._renewed_at = renewed_at
        self._released = False
        self._turn = threading.RLock()  # a renewal that comes late would bring back what was released

    @property
    def path(self) -> bytes:
        """The file that it locks."""
        return self.document.path

    def add(self, version: str) -> None:
        """The writer's hidden things bear this version too. Renews."""
        with self._turn:
            self.document = dataclasses.replace(self.document, versions=(*self.document.versions, version))
            self._renew(self._write)

    def renew(self) -> None:
        """Raises DraftLost when somebody else has it, StoreError when that cannot be told or done now."""
        with self._turn:
            self._renew(self._touch if self._store.capabilities.attributes else self._write)

    def _renew(self, how: Callable[[], None]) -> None:
        if self._released:
            return
        self.check()
        now = time.monotonic()
        how()
        self._renewed_at = now

    def _write(self) -> None:
        self._store.put(self._path, [self.document.to_bytes()], replace=True)

    def _touch(self) -> None:
        clock = StoreClock(self._store, split(self._path)[0])
        self._store.set_attributes(self._path, Attributes(mtime_ns=clock.now_ns()))
        now = self._store.stat(self._path)
        # One that became too old while this was held up may be another writer's by now: then `check` reads it.
        if now.file_id and now.file_id == self._seen.file_id and time.monotonic() - self._renewed_at < self._seconds:
            self._seen = now.identity

    def check(self) -> None:
        """Raises DraftLost unless the lock is ours in the store; StoreError when that cannot be told now."""
        if self._seen.file_id and self._as_seen():
            return
        held = _settled(self._store, self._path)
        if held is None or held.owner != self.document.owner:
            now = "nobody" if held is None else held.where
            raise DraftLost(
                f"the lock of {self.path!r} was lost: {now} holds it now",
                hint=f"a writer that the store does not hear of for {self._seconds:g} s loses its lock",
            )

    def _as_seen(self) -> bool:
        """Whether it is the very file that was seen to be ours; its bytes may lie on a data host that is silent."""
        try:
            return self._store.stat(self._path).identity == self._seen
        except NotFound:
            return False

    def ensure(self) -> None:
        """`check`, when too much time has passed since the last renewal."""
        if time.monotonic() - self._renewed_at > _SURE * self._seconds:
            self.check()

    def release(self) -> None:
        """Let it go, if it is still held. Safe to call twice, and again after an error.

        Raises Transient when that could not be done now; what is left runs out.
        """
        with self._turn:
            if self._released:
                return
            try:
                self.ensure()
                self._store.remove(self._path)
            except Transient:
                raise
            except StoreError as error:
                if not isinstance(error, (NotFound, DraftLost)):
                    _log.warning("the lock of %r stays until it runs out: %s", self.path, error)
            self._released = True


def take(store: Store, path: bytes, versions: Sequence[str] = (), owner: str = "", *, seconds: float = LEASE) -> Lease:
    """Take the lock of the file at `path`. Raises Busy, NotFound (no directory), StoreError.

    versions: those that the hidden things of the writer will bear. owner: who asks, unique; to be given by those who
    ask again when an answer may have been lost, and then find the lock to be their own. What stands before a `/` in it
    names the mount: a lock of the same mount and another owner is one that a dead worker of it left. seconds: of the
    lease, the same for all who want this lock.
    """
    if not store.capabilities.put_if_absent:
        raise Unsupported(f"{store.url} cannot lock files: it has no way to put a file only where there is none")
    since = datetime.now(UTC).isoformat(timespec="seconds")
    document = LockDocument(
        owner or new_version(), path, tuple(versions), f"{socket.gethostname()}:{os.getpid()}", since
    )
    lock = lock_path(path)
    if store.stat(split(path)[0]).kind is not Kind.DIRECTORY:  # `put` would make it
        raise NotADirectory(f"there is no directory for {path!r}")
    data = document.to_bytes(blanks=secrets.randbelow(_BLANKS))
    contended = False
    for _ in range(_TRIES):
        now = time.monotonic()
        try:
            store.put(lock, [data])
        except Exists:
            contended = True
            held = _read(store, lock)
            if held is None or held.owner != document.owner:
                _clear_dead(store, path, lock, seconds, dead=held is not None and _same_mount(held, document))
                continue
        if not contended:
            with contextlib.suppress(NotFound):  # moved away by somebody who will put it back
                status = store.stat(lock)
                if status.length == len(data):
                    return Lease(store, document, status, now, seconds)
        found = _looked_at(store, lock)
        if found is not None and found[0].owner == document.owner:
            return Lease(store, document, found[1], now, seconds)
    raise Busy(f"{path!r} is being written by somebody else")


def living(store: Store, folder: bytes, owner: str = "", versions: Set[str] = frozenset()) -> str:
    """Who writes a file somewhere below `folder`, for people; "" for nobody, or where that cannot be told.

    owner: names the mount that asks, as in `take`; of its own locks only those of `versions` live. Of a tree of more
    than _LOOKED_AT names the rest is not looked at. Blocks; raises Transient.
    """
    return _alive(store, folder, _locks(store, folder), owner, versions)


def holder(store: Store, path: bytes, owner: str = "", versions: Set[str] = frozenset()) -> str:
    """Who writes the file at `path`, as `living` says it."""
    return _alive(store, split(path)[0], _lock_of(store, path), owner, versions)


def _alive(store: Store, folder: bytes, locks: Iterable[tuple[bytes, int]], owner: str, versions: Set[str]) -> str:
    """Whose is the first of these locks that lives. The store's clock is read in `folder`."""
    clock: StoreClock | None = None
    try:
        for path, mtime_ns in locks:
            clock = clock or StoreClock(store, folder)
            held = _read(store, path) if clock.now_ns() - mtime_ns <= LEASE * 1e9 else None
            if held is None or (owner and held.owner.startswith(f"{owner}/") and not versions & set(held.versions)):
                continue
            return f"{held.path or path!r} is being written by {held.where}"
    except Transient:
        raise
    except StoreError as error:
        _log.info("nobody knows who writes in %r: %s", folder, error)
    return ""


def _lock_of(store: Store, path: bytes) -> Iterator[tuple[bytes, int]]:
    """The lock of the file at `path`, if there is one, and its time."""
    lock = lock_path(path)
    with contextlib.suppress(NotFound, NotADirectory):
        yield lock, store.stat(lock).mtime_ns


def _locks(store: Store, folder: bytes) -> Iterator[tuple[bytes, int]]:
    """The locks below `folder` and their times."""
    folders, looked_at = [folder], 0
    while folders and looked_at < _LOOKED_AT:
        folder = folders.pop()
        with contextlib.suppress(NotFound, NotADirectory):
            for batch in store.scandir(folder):
                for entry in batch:
                    found = parse_hidden(entry.name)
                    if entry.kind is Kind.DIRECTORY and not is_hidden(entry.name):
                        folders.append(join(folder, entry.name))
                    elif entry.kind is Kind.FILE and found is not None and found.kind == "lock":
                        yield join(folder, entry.name), entry.mtime_ns
                looked_at += len(batch)


def _read(store: Store, lock: bytes) -> LockDocument | None:
    try:
        return LockDocument.from_bytes(bytes(store.get(lock)))
    except NotFound:
        return None
    except DocumentError as error:
        return LockDocument("", b"", (), f"somebody whose lock is not readable ({error.message})")


def _settled(store: Store, lock: bytes) -> LockDocument | None:
    """The lock as it is when nobody holds it up: one that was moved by mistake is put back within moments."""
    for _ in range(_LOOKS):
        held = _read(store, lock)
        if held is not None:
            return held
        time.sleep(_MOMENT)
    return None


def _looked_at(store: Store, lock: bytes) -> tuple[LockDocument, Status] | None:
    """The lock as it is when nobody holds it up, and the status of the very file that says so: where many want it, one
    may take the place of another between two calls."""
    for _ in range(_LOOKS):
        with contextlib.suppress(NotFound):
            status = store.stat(lock)
            held = _read(store, lock)
            if held is not None and store.stat(lock).identity == status.identity:
                return held, status
        time.sleep(_MOMENT)
    return None


def _same_mount(one: LockDocument, other: LockDocument) -> bool:
    mount, slash, _ = one.owner.partition("/")
    return bool(slash) and mount == other.owner.partition("/")[0]


def _clear_dead(store: Store, path: bytes, lock: bytes, seconds: float, *, dead: bool) -> None:
    """Make room for a lock where a dead writer's stands; raises Busy where a living one's does.

    dead: the caller knows; else the lock's age tells.
    """
    folder, name = split(path)
    try:
        now_ns = 0 if dead else StoreClock(store, folder).now_ns()
        seen = store.stat(lock)  # as late as can be: between this and the rename others may be quicker
        if not dead and now_ns - seen.mtime_ns <= seconds * 1e9:
            raise _busy(store, path, lock, seconds)
        aside = join(folder, part_name(name, new_version(), 0))
        store.rename(lock, aside)
    except NotFound:
        return  # released, or taken over by somebody else: the next try tells
    moved = store.stat(aside)
    if moved.identity != seen.identity:
        # Somebody else was quicker, and this is the new owner's lock.
        try:
            store.rename(aside, lock)
        except StoreError:  # a third one has put its own, which the second one will notice when it renews
            with contextlib.suppress(StoreError):
                store.remove(aside)
        raise _busy(store, path, lock, seconds)
    with contextlib.suppress(StoreError):
        store.remove(aside)


def _busy(store: Store, path: bytes, lock: bytes, seconds: float) -> Busy:
    held = _read(store, lock)
    who = f"{held.where} since {held.since}" if held is not None and held.where else ""
    hint = f"a dead writer's lock runs out after {seconds:g} s"
    return Busy(f"{path!r} is being written{f' by {who}' if who else ''}", hint=hint, by=who)
