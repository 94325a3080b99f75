"""Handle of one version of an HDFS file.

**The bytes are the version's.** A WebHDFS read names the file by its inode, so a file renamed over the path is never
read by mistake; and after the bytes of any read arrived the NameNode is asked once more whether this inode still has
the length and modification time of `status`. Bytes that came from an appended to, truncated or deleted file are thrown
away: StaleVersion. A caller may also ask itself, once for many reads (`read_unconfirmed`, `confirm`). The bytes of a
short file come first, and the status with which it is opened confirms them (`short_files`).

Threads share that question, as a database's group commit does (`GroupCommit`). With 32 threads each finishing a range
every few milliseconds one question each would be most of the NameNode's work for us; instead those who come while a
question is under way wait for the next one, together.

**The NameNode may go away.** Where DataNodes serve blocks by name (`data_transfer`) a handle learns all of them when it
is opened, and reads go on. Elsewhere, and for files of more than 512 blocks, hdfs-native pins the file's blocks then,
and reads go there while no NameNode answers, since a DataNode asks the NameNode before it serves a WebHDFS read. Such
bytes cannot be confirmed; no file can change while no NameNode serves, and the first read after it is back is confirmed
again.

**Failures say whose they are.** After a DataNode failed the version is confirmed too, which tells StaleVersion and
ServiceDown from HostFailed.

**Corrupt blocks.** A DataNode that is asked by WebHDFS reads other replicas where its own fails its checksum, and falls
silent for 20 s before it breaks off where all do. So when every replica's host has failed to serve a block, the
pinned file is read once: it has the bytes, or says that the block is Corrupt. That block is read so from then on.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from stripefs.errors import Corrupt, HostFailed, NotFound, ServiceDown, StaleVersion, StoreError
from stripefs.store.base import Block, Buffer, Handle, Kind, Status, Watch
from stripefs.store.common import blocks_by_size, check_range
from stripefs.store.hdfs.block_locations import BlockLocations
from stripefs.store.hdfs.datanode_read import PATIENCE, SMALL, FileRange
from stripefs.store.hdfs.native import PinnedFile
from stripefs.store.hdfs.short_files import ShortFile
from stripefs.store.hdfs.wire import inode_path

if TYPE_CHECKING:
    from stripefs.store.hdfs.store import HdfsStore

__all__ = ["CheckedHandle", "GroupCommit", "HdfsHandle"]


class GroupCommit:
    """Calling it returns, or raises, what a run of `action` did that *started* after the call. One runs at a time."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._next: Future[None] | None = None

    def __call__(self) -> None:
        with self._lock:
            run = self._next
            leads = run is None
            if run is None:
                run = self._next = Future()
        if leads:
            self._lead(run)
            return
        failure = run.exception()
        if isinstance(failure, StoreError):
            raise type(failure)(failure.message, hint=failure.hint) from failure
        if failure is not None:  # a bug ended the leader: meet it ourselves instead of taking silence for a yes
            self()

    def _lead(self, run: Future[None]) -> None:
        with self._turn:
            with self._lock:
                self._next = None  # later callers need a run that starts later
            try:
                self._action()
            except BaseException as failure:
                run.set_exception(failure)
                raise
            run.set_result(None)


STREAM = 128 << 20
"""Bytes to ask a DataNode for at once at most: 3 s of a 40 MB/s host, beside which a request costs nothing."""

_BLOCK = 8 << 20  # bytes: the assumed block size of a checked file, while the NameNode's is not known
_SMALL = 64 << 10  # bytes: the sums of a part of 8 GiB


class HdfsHandle(Handle):
    """`short`: the blocks and the bytes of the file that came before `status` was asked for."""

    def __init__(self, store: HdfsStore, path: str, status: Status, short: ShortFile | None = None) -> None:
        self.status = status
        self._store = store
        self._path = path
        self._where = inode_path(status.file_id) if status.file_id and store.finds_blocks else path
        self._closed = False
        self._failed: dict[int, set[str]] = {}
        """By offset of a block: the hosts that failed since it was last read by WebHDFS."""
        self._corrupt: set[int] = set()
        """Offsets of blocks that are read from the pinned file."""
        self._confirm = GroupCommit(self._check_version)
        self._locations = BlockLocations(
            status.length,
            status.block_size,
            lambda offset, length: store.reads.blocks(self._where, offset, length, named=not status.encrypted),
            short.blocks if short is not None else (),
        )
        self._pinned: PinnedFile | None = None
        self._named = False
        """All blocks are known by names that DataNodes know."""
        if status.length:
            self._prepare()
        if short is not None and short.data is not None:
            store.short_files.keep(self, short.data)

    def locate(self, offset: int, length: int) -> Sequence[Block]:
        if self._store.finds_blocks and not (self._pinned and self._store.namenode_away()):
            try:
                return self._located(offset, length)
            except ServiceDown:
                if self._pinned is None:
                    raise
                self._store.note_away()
        return blocks_by_size(self.status, offset, length)

    def read(self, offset: int, length: int, *, host: str = "", watch: Watch | None = None) -> Buffer:
        return self.read_on(offset, length, 0, host=host, watch=watch)

    def read_on(self, offset: int, length: int, ahead: int, *, host: str = "", watch: Watch | None = None) -> Buffer:
        return self._read(offset, length, ahead, host, watch, self._arrived_pinned if self._named else self._arrived)

    def read_now(self, offset: int, length: int) -> Buffer | None:
        data = self._store.short_files.get(self)
        return None if data is None else memoryview(data)[offset : offset + length]

    def read_unconfirmed(self, offset: int, length: int, ahead: int, *, host: str, watch: Watch) -> Buffer:
        """Bytes that may be used while no NameNode serves are confirmed here."""

        def arrived() -> None:
            if self._named and self._store.namenode_away():
                self._arrived_pinned()
            else:
                watch.unconfirmed()

        return self._read(offset, length, ahead, host, watch, arrived)

    def confirm(self) -> None:
        """After ServiceDown the next reads do without a NameNode, where that is possible."""
        try:
            self._confirm()
        except ServiceDown:
            if self._pinned is not None or self._named:
                self._store.note_away()
            raise

    def _read(
        self, offset: int, length: int, ahead: int, host: str, watch: Watch | None, arrived: Callable[[], None]
    ) -> Buffer:
        """`arrived` is called when bytes have come from a chosen host."""
        check_range(self.status, offset, length)
        if self._closed:
            raise StoreError(f"{self._path}: the handle is closed")
        if not length:
            return b""
        if self._store.chooses_host and not (self._pinned and self._store.namenode_away()):
            try:
                data = self._read_chosen(offset, length, ahead, host, watch)
                arrived()
                return data
            except ServiceDown:
                if self._pinned is None:
                    raise
                self._store.note_away()
        return self._read_pinned(offset, length, watch)

    def close(self) -> None:
        self._closed = True
        self._pinned = None
        self._store.short_files.drop(self)
        self._store.reads.release(self, self._where)

    def _read_chosen(self, offset: int, length: int, ahead: int, host: str, watch: Watch | None) -> Buffer:
        """From `host`, or where the block is by now; where it is "", from the replicas of the first byte in turn."""
        failure: HostFailed | None = None
        ahead = min(ahead, STREAM)
        # Also tells the store where the DataNodes are reached.
        blocks = self._located(offset, length + ahead if ahead else 1)
        block = blocks[0]
        if block.offset in self._corrupt:
            return self._read_corrupt(block, offset, length, watch)
        if not host and not ahead and (place := self._place(block, offset, length)) and len(block.hosts) > 1:
            with contextlib.suppress(HostFailed, *([ServiceDown] if self._named else [])):
                return self._read_any(block, place)

        span = FileRange(self._where, block, offset, length)

        def moved() -> None:
            self._locations.refresh(offset)

        names = self._store.health.order(block.hosts, time.monotonic())
        if host:
            names = [host] if host in names or not names else names[:1]  # the block was moved to these
        for name in names:
            end = min(offset + length + ahead, _reach(blocks, name)) if ahead else 0
            try:
                data = self._store.reads.fetch(self, span, end, name, watch, moved)
            except NotFound as error:
                raise self._missing_error(error) from error
            except ServiceDown as error:
                if not self._named:
                    raise
                self._store.note_away()  # this host does not grant the read without one; another may
                failure = HostFailed(error.message, host=name)
            except HostFailed as error:
                if self._named:
                    self._confirm_unless_away()
                else:
                    self._confirm()
                self._locations.refresh(offset)
                failure = error
                failed = self._failed.setdefault(block.offset, set())
                failed.add(name)
                if failed.issuperset(block.hosts):
                    with contextlib.suppress(HostFailed, ServiceDown):
                        return self._read_corrupt(block, offset, length, watch)
            else:
                self._failed.pop(block.offset, None)
                if host and name != host and watch is not None:
                    watch.served_by(name)
                return data
        raise failure or HostFailed(f"{self._path}: no DataNode has the block at byte {offset}")

    def _read_any(self, block: Block, place: FileRange) -> Buffer:
        """From the replica that answers first. Raises HostFailed when none does within `SILENT` seconds."""
        try:
            hosts = self._store.health.order(block.hosts, time.monotonic())
            data = self._store.small.race(place, hosts, PATIENCE)
        except NotFound as error:
            raise self._missing_error(error) from error
        self._failed.pop(block.offset, None)
        return data

    def _place(self, block: Block, offset: int, length: int) -> FileRange | None:
        """Of a small read that lies in `block`; None for any other."""
        if length > SMALL or offset + length > block.offset + block.length:
            return None
        return FileRange(self._where, block, offset, length)

    def _read_corrupt(self, block: Block, offset: int, length: int, watch: Watch | None) -> Buffer:
        """From the pinned file, bytes of a block that no host serves. Raises what `_read_pinned` raises."""
        self._failed.pop(block.offset, None)
        self._corrupt.discard(block.offset)
        try:
            return self._read_pinned(offset, length, watch)
        except Corrupt:
            self._corrupt.add(block.offset)
            raise

    def _located(self, offset: int, length: int) -> Sequence[Block]:
        try:
            return self._locations.overlapping(offset, length)
        except NotFound as error:
            raise self._missing_error(error) from error

    def _read_pinned(self, offset: int, length: int, watch: Watch | None) -> Buffer:
        pinned = self._pinned
        if pinned is None:
            pinned = self._pin()
        if pinned is None:
            raise ServiceDown(f"{self._path}: no transport can read it now")
        try:
            data = pinned.read(offset, length, watch)
        except (Corrupt, HostFailed) as error:
            self._confirm_unless_away()
            with contextlib.suppress(ServiceDown):
                self._pin()  # replicas may have moved since; the caller's next try finds them
            if isinstance(error, Corrupt):
                raise Corrupt(f"{self._path}: {error.message}", hint=error.hint) from error
            raise
        self._arrived_pinned()
        return data

    def _arrived(self) -> None:
        """Bytes came by WebHDFS: make sure whose they are."""
        self._confirm()

    def _arrived_pinned(self) -> None:
        self._confirm_unless_away()

    def _prepare(self) -> None:
        """Learn what it takes to read without a NameNode."""
        try:
            self._named = self._store.reads.by_name and self._know_names()
            if not self._named:
                self._pin()
        except ServiceDown:
            if not self._store.chooses_host:
                raise
            # Reads need none of it while a NameNode serves.

    def _know_names(self) -> bool:
        """True if all blocks have names, asked for at once; False for files whose blocks take several questions."""
        if not self._locations.in_one_segment:
            return False
        return all(block.name is not None for block in self._located(0, self.status.length))

    def _pin(self) -> PinnedFile | None:
        """Pin the file between two sightings of the same version."""
        try:
            pinned = self._store.pin(self._path, self.status)
        except NotFound as error:
            raise self._missing_error(error) from error
        if pinned is not None:
            self._arrived()
            self._pinned = pinned
        return pinned

    def _confirm_unless_away(self) -> None:
        if self._store.namenode_away():
            return
        try:
            self._confirm()
        except ServiceDown:
            self._store.note_away()

    def _check_version(self) -> None:
        try:
            current = self._store.current(self._path, self.status)
        except NotFound as error:
            raise self._missing_error(error) from error
        if current.identity != self.status.identity:
            raise self._stale()

    def _missing_error(self, error: NotFound) -> StoreError:
        """The error for a file that is not found."""
        return self._stale()

    def _stale(self) -> StaleVersion:
        return StaleVersion(f"{self._path} was replaced, changed or deleted since it was opened")


class CheckedHandle(HdfsHandle):
    """The file of `length` bytes at the path, without confirmation, for a reader that checks every byte.

    Opening it asks nobody. It is pinned by the first small read for which no host was chosen, which comes from there:
    that costs DataNodes a twentieth of a WebHDFS request, and readers of checked files begin with their sums.
    """

    def __init__(self, store: HdfsStore, path: str, name: bytes, length: int) -> None:
        super().__init__(store, path, Status(name, Kind.FILE, length, block_size=_BLOCK))

    def read_on(self, offset: int, length: int, ahead: int, *, host: str = "", watch: Watch | None = None) -> Buffer:
        if not host and length <= _SMALL:
            with contextlib.suppress(ServiceDown):
                check_range(self.status, offset, length)
                return self._read_small(offset, length, watch)
        return super().read_on(offset, length, ahead, host=host, watch=watch)

    def read_unconfirmed(self, offset: int, length: int, ahead: int, *, host: str, watch: Watch) -> Buffer:
        return self.read_on(offset, length, ahead, host=host, watch=watch)

    def _read_small(self, offset: int, length: int, watch: Watch | None) -> Buffer:
        small, late = self._store.small, False
        if not small.avoiding:
            try:
                return small.try_first(self._path, lambda: self._read_pinned(offset, length, watch))
            except (HostFailed, ServiceDown):
                late = True
        place = self._place(self._located(offset, length)[0], offset, length)
        data = small.elsewhere(place, late=late) if place is not None else None
        return self._read_pinned(offset, length, watch) if data is None else data

    def _prepare(self) -> None:
        pass

    def _arrived(self) -> None:
        pass

    def _arrived_pinned(self) -> None:
        pass

    def _check_version(self) -> None:
        """Raises after a failure where no NameNode serves, or the file is not there."""
        self._store.current(self._path, self.status)

    def _missing_error(self, error: NotFound) -> StoreError:
        return error


def _reach(blocks: Sequence[Block], host: str) -> int:
    """End of the run of `blocks` that `host` has, 0 where it lacks the first."""
    end = 0
    for block in blocks:
        if host not in block.hosts:
            break
        end = block.offset + block.length
    return end
