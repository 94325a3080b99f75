"""One version of an HDFS file, open.

**The bytes are the version's.** A WebHDFS read names the file by its inode, so a file renamed over the path is never
read by mistake; and after the bytes of any read arrived the NameNode is asked once more whether this inode still has
the length and modification time of `status` (threads share that question, see `confirm`). Bytes that came from an
appended to, truncated or deleted file are thrown away: StaleVersion.

**The NameNode may go away.** A DataNode asks the NameNode before it serves a WebHDFS read, so each handle also pins the
file's blocks through hdfs-native when it is opened, and reads go there while no NameNode answers. Such bytes cannot be
confirmed; nobody can change a file while no NameNode serves, and the first read after it is back is confirmed again.

**Failures say whose they are.** After a DataNode failed the version is confirmed too, which tells StaleVersion and
ServiceDown from HostFailed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Protocol

from stripefs.errors import HostFailed, NotFound, ServiceDown, StaleVersion, StoreError
from stripefs.store.base import Block, Buffer, Handle, Status, Watch
from stripefs.store.hdfs.confirm import GroupCommit
from stripefs.store.hdfs.located import Locations
from stripefs.store.hdfs.native import PinnedFile
from stripefs.store.ranges import blocks_by_size, check_range

__all__ = ["Cluster", "HdfsHandle"]


class Cluster(Protocol):
    """What a handle needs of its store. `path` is an HDFS path in plain text."""

    chooses_host: bool
    finds_blocks: bool

    def current(self, path: str, status: Status) -> Status:
        """The file of `status` as it is now, by its inode where there are file ids, else whatever is at `path`."""

    def blocks(self, status: Status, offset: int, length: int) -> Sequence[Block]: ...

    def fetch(self, status: Status, offset: int, length: int, host: str, watch: Watch | None) -> Buffer: ...

    def pin(self, path: str, status: Status) -> PinnedFile | None:
        """The file pinned by a client library, None where there is none. Raises StoreErrors."""

    def namenode_away(self) -> bool: ...

    def note_away(self) -> None: ...


class HdfsHandle(Handle):
    def __init__(self, cluster: Cluster, path: str, status: Status) -> None:
        self.status = status
        self._cluster = cluster
        self._path = path
        self._closed = False
        self._confirm = GroupCommit(self._check_version)
        self._locations = Locations(
            status.length, status.block_size, lambda offset, length: cluster.blocks(status, offset, length)
        )
        self._pinned: PinnedFile | None = None
        if status.length:
            self._pin_at_open()

    def locate(self, offset: int, length: int) -> Sequence[Block]:
        if self._cluster.finds_blocks and not (self._pinned and self._cluster.namenode_away()):
            try:
                return self._located(offset, length)
            except ServiceDown:
                if self._pinned is None:
                    raise
                self._cluster.note_away()
        return blocks_by_size(self.status, offset, length)

    def read(self, offset: int, length: int, *, host: str = "", watch: Watch | None = None) -> Buffer:
        check_range(self.status, offset, length)
        if self._closed:
            raise StoreError(f"{self._path}: the handle is closed")
        if not length:
            return b""
        if self._cluster.chooses_host and not (self._pinned and self._cluster.namenode_away()):
            try:
                return self._read_chosen(offset, length, host, watch)
            except ServiceDown:
                if self._pinned is None:
                    raise
                self._cluster.note_away()
        return self._read_pinned(offset, length, watch)

    def close(self) -> None:
        self._closed = True
        self._pinned = None

    def _read_chosen(self, offset: int, length: int, host: str, watch: Watch | None) -> Buffer:
        """By WebHDFS from `host`; where it is "", from the replicas of the first byte in turn."""
        failure: HostFailed | None = None
        [block] = self._located(offset, 1)  # also tells the store where the DataNodes are reached
        for name in [host] if host else block.hosts:
            try:
                data = self._cluster.fetch(self.status, offset, length, name, watch)
            except NotFound as error:
                raise self._stale() from error
            except HostFailed as error:
                self._confirm()
                self._locations.refresh(offset)
                failure = error
            else:
                self._confirm()
                return data
        raise failure or HostFailed(f"{self._path}: no DataNode has the block at byte {offset}")

    def _located(self, offset: int, length: int) -> Sequence[Block]:
        try:
            return self._locations.overlapping(offset, length)
        except NotFound as error:
            raise self._stale() from error

    def _read_pinned(self, offset: int, length: int, watch: Watch | None) -> Buffer:
        pinned = self._pinned
        if pinned is None:
            pinned = self._pin()
        if pinned is None:
            raise ServiceDown(f"{self._path}: no transport can read it now")
        try:
            data = pinned.read(offset, length, watch)
        except HostFailed:
            self._confirm_unless_away()
            with contextlib.suppress(ServiceDown):
                self._pin()  # replicas may have moved since; the caller's next try finds them
            raise
        self._confirm_unless_away()
        return data

    def _pin_at_open(self) -> None:
        try:
            self._pin()
        except ServiceDown:
            if not self._cluster.chooses_host:
                raise
            # WebHDFS reads need no pin; only going on without a NameNode does.

    def _pin(self) -> PinnedFile | None:
        """Pin the file between two sightings of the same version."""
        try:
            pinned = self._cluster.pin(self._path, self.status)
        except NotFound as error:
            raise self._stale() from error
        if pinned is not None:
            self._confirm()
            self._pinned = pinned
        return pinned

    def _confirm_unless_away(self) -> None:
        if self._cluster.namenode_away():
            return
        try:
            self._confirm()
        except ServiceDown:
            self._cluster.note_away()

    def _check_version(self) -> None:
        try:
            current = self._cluster.current(self._path, self.status)
        except NotFound as error:
            raise self._stale() from error
        if current.identity != self.status.identity:
            raise self._stale()

    def _stale(self) -> StaleVersion:
        return StaleVersion(f"{self._path} was replaced, changed or deleted since it was opened")
