"""Short files of HDFS are read while they are opened, before their status is asked for.

Every opening asks for the status. Asked for after the bytes it confirms them, so a small file takes the NameNode two
calls and the mount one wait, instead of three and three. That needs a caller who expects a version: its inode is read,
and what came counts if the path has that version still. A path through a snapshot is left out, since an inode is read
as it is now.

An opening must not become slow or fail by that. One DataNode is asked, if it has granted a read and has not failed
since, by data transfer alone and for `PATIENCE` seconds. Whatever goes wrong is met again by the ordinary read, which
hedges and tries other replicas. A file that was read so once is not read so again: the kernel has its pages, as a rule.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from stripefs.errors import Abandoned, HostFailed, ServiceDown, StoreError
from stripefs.retry import HostHealth
from stripefs.store.base import Block, Buffer, Identity
from stripefs.store.buffers import PAGE
from stripefs.store.hdfs.datanode_read import DataNodeReader
from stripefs.store.hdfs.wire import inode_path

__all__ = ["SHORT", "ShortFile", "ShortFiles"]

log = logging.getLogger(__name__)

SHORT = 256 << 10
"""Bytes of the longest file that is read when it is opened: a DataNode of 40 MB/s sends them within 7 ms."""

PATIENCE = 0.5
"""Seconds for the answer of a DataNode, and for all bytes."""

KEPT = 16 << 20
"""Bytes of memory for files that were read so and are open."""

REMEMBERED = 10_000
"""Files that were read so lately: 1 MiB of memory."""


@dataclass(frozen=True, slots=True)
class ShortFile:
    """The blocks of a file, and its bytes unless it was not to be read, or did not come."""

    blocks: Sequence[Block]
    data: Buffer | None


class ShortFiles:
    """Safe to use from many threads."""

    def __init__(self, reads: DataNodeReader, health: HostHealth) -> None:
        self._reads = reads
        self._health = health
        self._lock = threading.Lock()
        self._data: dict[Hashable, Buffer] = {}  # in the order of the openings
        self._bytes = 0
        self._read: dict[str, None] = {}  # ids, in the order of the openings

    def read(self, path: str, expect: Identity) -> ShortFile | None:
        """The file of this identity, which was seen at an HDFS path; unconfirmed. None where nothing was asked for.

        Raises ServiceDown.
        """
        if not 0 < expect.length <= SHORT or not expect.file_id or expect.file_id in self._read:
            return None
        if not self._reads.by_name or "/.snapshot/" in path:
            return None
        try:
            blocks = self._reads.blocks(inode_path(expect.file_id), 0, expect.length)
        except ServiceDown:
            raise
        except StoreError as error:  # the status will tell
            log.debug("locating %s: %s", path, error)
            return None
        data = self._fetch(blocks[0], expect.length) if len(blocks) == 1 else None
        return ShortFile(blocks, data)

    def _fetch(self, block: Block, length: int) -> Buffer | None:
        now = time.monotonic()
        for host in self._health.well(block.hosts, now):
            if self._health.on_probation(host, now):
                continue
            try:
                return self._reads.fetch_granted(block, length, host, _Deadline(now + PATIENCE), PATIENCE)
            except HostFailed as error:
                log.debug("reading a short file: %s", error)
                if error.stalled:
                    self._health.failed(host, time.monotonic(), error.message)
                return None
        return None

    def keep(self, owner: Hashable, file_id: str, data: Buffer) -> None:
        """Confirmed bytes, for the open file that `owner` stands for; the oldest of others give way."""
        with self._lock:
            self._read[file_id] = None
            if len(self._read) > REMEMBERED:
                del self._read[next(iter(self._read))]
            self._data[owner] = data
            self._bytes += len(data) + PAGE
            while self._bytes > KEPT:
                self._bytes -= len(self._data.pop(next(iter(self._data)))) + PAGE

    def get(self, owner: Hashable) -> Buffer | None:
        return self._data.get(owner)

    def drop(self, owner: Hashable) -> None:
        with self._lock:
            data = self._data.pop(owner, None)
            if data is not None:
                self._bytes -= len(data) + PAGE


class _Deadline:
    """Watch of a read that is given up at a time."""

    cancelled = False

    def __init__(self, end: float) -> None:
        self._end = end

    def progress(self, received: int) -> None:
        if time.monotonic() > self._end:
            self.cancelled = True
            raise Abandoned("a short file comes slowly")

    def unconfirmed(self) -> None: ...

    def served_by(self, host: str) -> None: ...

    def on_cancel(self, close: Callable[[], None] | None) -> None: ...
