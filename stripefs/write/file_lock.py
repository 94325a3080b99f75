"""One writer a file: a lock beside it, leased for LEASE seconds by the store's own clock. All calls block.

The lock is a small document put where nothing was. Its time, by the store's clock, is when it was renewed last. A lock
older than LEASE is its writer's death: a writer that wants the file renames its own lock over that very one
(`Store.compare_and_rename`), so there is no moment without a lock, and nobody takes a lock that is not the one that was
found dead. A lock is released in the same way, by removing that very file: a late removal removes no lock of another.
So a writer that finds no lock has nobody to fence. A store without the capability `compare` (HDFS without WebHDFS, or
behind a router) moves the lock away, compares it and puts it back. There the dead writer is fenced before; but a living
one whose lock was moved, and who is just about to publish, is not known to a third one who comes meanwhile.

Fencing has three layers, since what publishes is no step that could be bound to the lock:

1. By the clock of the writer. A lease ends for its own writer a tenth earlier than for others. That clock runs on while
   the process or the machine sleeps. Nothing that others see is begun after the end (`assert_held`).
2. By the store. `assert_held` also compares the lock there, right before each step that others see.
3. By the names. The step that publishes renames, or joins, a hidden file of the writer. A writer that takes over moves
   all such files of the writer before it to other names, as soon as it has the lock and before anything else. So a step
   that was held up between the comparison and the store finds nothing to rename, however late it comes. Bytes made
   durable by fsync are still there, and `stripefs recover` knows those names too. The lock of the new writer names the
   versions of the writers before, so if it dies before they are fenced, the next one fences them.

A renewal sets the lock's time, by a reading of the store's clock that all locks of a mount share (`heartbeat`), where
the store lets times be set; else it writes the lock anew. So on HDFS only the NameNode has part in it, and no data host
that is silent can cost a living writer its lock. The clock is read by a fresh, empty file. Where there is no room for
the name of one, since a quota is used up, the last reading and the time that has passed since then serve as well. A
lease that has ended may be renewed all the same while nobody has taken it over.

The clocks of hosts are never compared.

A lock that is not needed any more may become that of another file in its directory (`FileLock.hand_over`): its document
is changed, then it is renamed by its inode onto a name without a lock. It keeps its time, and so its lease.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
import secrets
import socket
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime

from stripefs.errors import (
    Busy,
    DraftLost,
    Exists,
    LeaseEnded,
    NoSpace,
    NotFound,
    PermissionDenied,
    QuotaExceeded,
    ServiceDown,
    StaleVersion,
    StoreError,
    Transient,
    Unsupported,
)
from stripefs.format.lock_and_record import LEASE, DocumentError, LockDocument
from stripefs.format.reserved_names import MARK, aside_name, lock_name, new_version, parse_reserved, part_name, stem
from stripefs.store.base import Attributes, Status, Store
from stripefs.write.store_ops import ClockReading, StoreClock, boot_time
from stripefs.write.upload_names import join_path, split_path

__all__ = ["RENEW", "FileLock", "acquire", "is_same_file", "lock_path", "read_lock"]

_log = logging.getLogger(__name__)

RENEW = LEASE / 3
"""Seconds between renewals: two may fail."""

_OWN = 0.9
"""Of the lease is what its own writer counts on: clocks drift, and the store hears of a step a moment later."""

_SOON = 1 / 2
"""Of the lease, within which nobody can have taken a lock over that was put at its start."""

_TRIES = 3

_BLANKS = 4096
"""A new lock has fewer blanks than these, their number drawn by lot: by its length a writer tells its own from one that
took its place just now, and need not read it, where putting it does not tell which file it is."""


def lock_path(path: bytes) -> bytes:
    folder, name = split_path(path)
    return join_path(folder, lock_name(name))


class FileLock:
    """A lock that is held. `status` is its file's, as it was when it was taken. For many threads.

    clock: seconds that never go back. renewed_at: by it, no later than the lock's time; -inf where nobody knows.
    """

    def __init__(
        self,
        store: Store,
        document: LockDocument,
        status: Status,
        renewed_at: float,
        seconds: float = LEASE,
        clock: Callable[[], float] = boot_time,
    ) -> None:
        self._store = store
        self._seconds = seconds
        self._clock = clock
        self.document = document
        self.status = status
        self._path = lock_path(document.path)
        self._seen = status.identity
        self._file_ids = {status.file_id}  # that have been this lock, or may have: no others are, whatever they say
        self._reading = ClockReading(status.mtime_ns, renewed_at)  # the store gave the time after it had been asked
        self._released = False
        self._turn = threading.RLock()  # a renewal that comes late would bring back what was released

    @property
    def path(self) -> bytes:
        """The file that it locks."""
        return self.document.path

    @property
    def left(self) -> float:
        """Seconds until the lease ends for its own writer; below 0 since then."""
        return self._reading.at + _OWN * self._seconds - self._clock()

    def add_version(self, version: str) -> None:
        """The writer's hidden things bear this version too. Renews."""
        with self._turn:
            self.document = dataclasses.replace(self.document, versions=(*self.document.versions, version))
            if not self._released:
                self._write()

    def renew(self, reading: ClockReading | None = None) -> ClockReading | None:
        """reading: of the store's clock; None reads it. Answers the one that was used, for further locks.

        Raises DraftLost when somebody else has it, StoreError when that cannot be known or done now.
        """
        with self._turn:
            if self._released:
                return reading
            if not self._store.capabilities.attributes:
                self._write()
                return None
            if reading is None:
                self.check()  # where the directory is gone, the file that tells the time would bring it back
                reading = self._read_clock()
            self._touch(reading)
            return reading

    @property
    def due(self) -> bool:
        """True when it is time to renew it."""
        return self.left < (_OWN - 1 / 3) * self._seconds

    def renew_if_due(self) -> None:
        """To be called now and then by who has no heartbeat: renews when it is time to. Raises as `renew`."""
        if self.due:
            self.renew()

    def _write(self) -> None:
        self.check()
        now = self._clock()
        try:
            with _prepare(self._store, self.document, secrets.randbelow(_BLANKS)) as (source, status):
                self._file_ids.add(status.file_id)
                self._store.compare_and_rename(source, self._path, self._seen)
        except (StaleVersion, NotFound) as error:
            self.check()
            raise ServiceDown(f"the lock of {self.path!r} is being taken by somebody else") from error
        self._seen = status.identity
        self._reading = ClockReading(status.mtime_ns, now)

    def _read_clock(self) -> ClockReading:
        try:
            return StoreClock(self._store, split_path(self._path)[0], self._clock).reading
        except (NoSpace, QuotaExceeded, PermissionDenied) as error:
            if self._reading.at == -math.inf:
                raise
            _log.info("the lock of %r is renewed by the last time that the store told: %s", self.path, error)
            return self._reading

    def _touch(self, reading: ClockReading) -> None:
        now = reading.moved_to(self._clock())
        found, seen = None, self._seen
        with contextlib.suppress(NotFound):
            self._store.set_attributes(self._path, Attributes(mtime_ns=now.store_ns))
            found = self._store.stat(self._path).identity
        # One that became too old while this was held up may be another writer's by now: then `check` reads it.
        young = self._clock() - self._reading.at < self._seconds
        if found and found.file_id and (found.file_id, found.length) == (seen.file_id, seen.length) and young:
            self._seen = found
        else:
            self.check()
        self._reading = now

    def check(self) -> None:
        """Raises DraftLost unless the lock is ours in the store; StoreError when that cannot be known now."""
        if self._seen.file_id and self._as_seen():
            return
        found = _read_with_status(self._store, self._path)
        if found is None or found[0].owner != self.document.owner or found[1].file_id not in self._file_ids:
            now = "nobody" if found is None else found[0].where
            raise DraftLost(
                f"the lock of {self.path!r} was lost: {now} holds it now",
                hint=f"a writer that the store does not hear of for {self._seconds:g} s loses its lock",
            )
        self._seen = found[1].identity

    def _as_seen(self) -> bool:
        """True if it is the very file that was seen to be ours; its bytes may lie on a data host that is silent."""
        try:
            return self._store.stat(self._path).identity == self._seen
        except NotFound:
            return False

    def assert_held(self) -> None:
        """For right before a step that others see. Raises LeaseEnded, and what `check` raises."""
        self.check()
        if self.left <= 0:
            raise LeaseEnded(f"the lease of the lock of {self.path!r} has ended and is to be renewed")

    def release(self) -> None:
        """Let it go, if it is still held. Safe to call twice, and again after an error.

        Raises Transient when that could not be done now; the lock then runs out.
        """
        with self._turn:
            if self._released:
                return
            try:
                self._remove()
            except Transient:
                raise
            except StoreError as error:
                if not isinstance(error, (NotFound, StaleVersion, DraftLost)):
                    _log.warning("the lock of %r stays until it runs out: %s", self.path, error)
            self._released = True

    def hand_over(self, path: bytes, versions: Sequence[str], owner: str) -> FileLock | None:
        """The lock of the file at `path` in the same directory, which this one becomes where nobody has that: so there
        is no writer before to be fenced. Nothing of the writer of this one may come to its name any more.

        This one is released in any case: None where that is all. After Transient it is to be asked again, or released.
        """
        document = dataclasses.replace(self.document, owner=owner, path=path, versions=tuple(versions), since=_now())
        with self._turn:
            if not self._released:
                with contextlib.suppress(StaleVersion, Exists, Unsupported):
                    self._store.move_document(self._path, lock_path(path), self._seen, document.to_bytes())
                    self._released = True
                    status = dataclasses.replace(self.status, mtime_ns=self._seen.mtime_ns)
                    return FileLock(self._store, document, status, self._reading.at, self._seconds, self._clock)
            self.release()
        return None

    def _remove(self) -> None:
        try:
            self._store.compare_and_remove(self._path, self._seen)
        except StaleVersion:  # also where the answer to a renewal was lost
            self.check()
            self._store.compare_and_remove(self._path, self._seen)


def acquire(
    store: Store,
    path: bytes,
    versions: Sequence[str] = (),
    owner: str = "",
    *,
    before: set[str] | None = None,
    seconds: float = LEASE,
    clock: Callable[[], float] = boot_time,
) -> FileLock:
    """Take the lock of the file at `path`. Raises Busy, NotFound (no directory), StoreError.

    When this returns, nothing of a writer before comes to the name any more. versions: those that the hidden things of
    the writer will bear. owner: the caller's unique name; callers that ask again after a lost answer give the same one,
    and then find the lock to be their own. Its part before a `/` names the mount: a lock of the same mount and another
    owner is one that a dead worker of it left. before: gets the versions of writers before. seconds: of the lease, the
    same for all who write there.
    """
    before = set() if before is None else before
    if not store.capabilities.put_if_absent:
        raise Unsupported(f"{store.url} cannot lock files: it has no way to put a file only where there is none")
    mine = LockDocument(owner or new_version(), path, tuple(versions), f"{socket.gethostname()}:{os.getpid()}", _now())
    lock = lock_path(path)
    blanks = secrets.randbelow(_BLANKS)
    for _ in range(_TRIES):
        now = clock()
        mine = dataclasses.replace(mine, versions=(*versions, *sorted(before.difference(versions))))
        data = mine.to_bytes(blanks)
        try:
            put = store.put_document(lock, data)
        except Exists:
            held = _read_with_status(store, lock)
            if held is None:
                continue
            before.update(set(held[0].versions).difference(versions))
            if held[0].owner == mine.owner:  # put by a try before or by another process, at an unknown time
                ours = FileLock(store, *held, -math.inf, seconds, clock)
                try:
                    ours.renew()
                except DraftLost:
                    continue
            else:
                mine = dataclasses.replace(mine, versions=(*versions, *sorted(before)))
                status = _take_over(store, mine, held, blanks, seconds)
                if status is None:
                    continue
                ours = FileLock(store, mine, status, now, seconds, clock)
        else:
            found = put or _status(store, lock)
            if found is None or (put is None and found.length != len(data)) or clock() - now > _SOON * seconds:
                held = _read_with_status(store, lock)
                if held is None or held[0].owner != mine.owner:
                    continue
                found = held[1]
            ours = FileLock(store, mine, found, now, seconds, clock)
        if before:
            _fence(store, path, before)
        return ours
    raise Busy(f"{path!r} is being written by somebody else")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _fence(store: Store, path: bytes, versions: Collection[str]) -> None:
    """Nothing of these versions can be renamed or joined to `path` by its writer after this.

    Each file that such a step could come from existed before its writer compared the lock for the last time, so it is
    listed here, unless the step was done.
    """
    folder, name = split_path(path)
    prefix = b"." + stem(name) + MARK
    for batch in store.scandir(folder, prefix) if store.capabilities.listing else ():
        for entry in batch:
            found = parse_reserved(entry.name)
            if found is not None and found.version in versions and (aside := aside_name(entry.name)):
                with contextlib.suppress(NotFound):
                    store.rename(join_path(folder, entry.name), join_path(folder, aside), replace=True)
        if batch and not batch[-1].name.startswith(prefix):
            break


def read_lock(store: Store, lock: bytes) -> LockDocument | None:
    """The lock at this path; None where there is none. One that is spoiled has no owner and no versions."""
    try:
        return LockDocument.from_bytes(bytes(store.get_document(lock)))
    except NotFound:
        return None
    except DocumentError as error:
        return LockDocument("", b"", (), f"somebody whose lock is not readable ({error.message})")


def _read_with_status(store: Store, lock: bytes) -> tuple[LockDocument, Status] | None:
    """The lock, and the status of the very file that says so: where many want it, one may take the place of another
    between two calls. None where there is none."""
    while (before := _status(store, lock)) is not None:
        held, now = read_lock(store, lock), _status(store, lock)
        if held is not None and now is not None and is_same_file(before, now):
            return held, now
    return None


def _status(store: Store, lock: bytes) -> Status | None:
    try:
        return store.stat(lock)
    except NotFound:
        return None


def is_same_file(one: Status, other: Status) -> bool:
    """True if both are one file, under whichever name. Renaming keeps ids, lengths and times."""
    if one.file_id or other.file_id:
        return (one.file_id, one.length) == (other.file_id, other.length)
    return one.identity == other.identity


def _same_mount(one: LockDocument, other: LockDocument) -> bool:
    mount, slash, _ = one.owner.partition("/")
    return bool(slash) and mount == other.owner.partition("/")[0]


def _take_over(
    store: Store, mine: LockDocument, held: tuple[LockDocument, Status], blanks: int, seconds: float
) -> Status | None:
    """The lock `mine` takes the place of a dead writer's, which is `held`: its status. None where that one is not there
    any more, or was renewed. Raises Busy where its writer lives."""
    path, lock = mine.path, lock_path(mine.path)
    document, seen = held
    if not _same_mount(document, mine):
        now_ns = StoreClock(store, split_path(path)[0]).now_ns()
        now = _status(store, lock)
        if now is None or not is_same_file(now, seen):
            return None
        if now_ns - now.mtime_ns <= seconds * 1e9:
            raise _busy(path, document, seconds)
        seen = now
    if not store.capabilities.compare:  # a writer that comes in the moment without a lock has nobody to fence
        _fence(store, path, mine.versions)
    try:
        with _prepare(store, mine, blanks) as (source, status):
            store.compare_and_rename(source, lock, seen.identity)
    except (StaleVersion, NotFound):
        return None
    except (NoSpace, QuotaExceeded):  # no name is left for a second file, so the dead one makes room
        _fence(store, path, mine.versions)
        with contextlib.suppress(StaleVersion):
            store.compare_and_remove(lock, seen.identity)
        return None
    now = _status(store, lock)
    return now if now is not None and is_same_file(now, status) else None


@contextlib.contextmanager
def _prepare(store: Store, document: LockDocument, blanks: int) -> Iterator[tuple[bytes, Status]]:
    """A hidden file that is this lock and is to be renamed. Where that fails it goes, and with it a rename that is on
    its way."""
    folder, name = split_path(document.path)
    path = join_path(folder, part_name(name, new_version(), 0))
    status = store.put(path, [document.to_bytes(blanks)], parents=False)
    try:
        yield path, status or store.stat(path)
    except BaseException:
        with contextlib.suppress(StoreError):
            store.remove(path)
        raise


def _busy(path: bytes, held: LockDocument, seconds: float) -> Busy:
    who = f"{held.where} since {held.since}" if held.where else ""
    hint = f"a dead writer's lock runs out after {seconds:g} s"
    return Busy(f"{path!r} is being written{f' by {who}' if who else ''}", hint=hint, by=who)
