"""Short files of HDFS are read while they are opened, before their status is asked for.

Every opening asks for the status. A status that is asked for after the bytes came confirms them, so a small file takes
the NameNode two calls and the mount one wait, instead of three and three. That needs a caller who expects a version:
the bytes of its inode are read, and they count if the path still has that version. A path through a snapshot is left
out, since the bytes of an inode are those of now.

An opening must not become slow or fail by that. One DataNode is asked, by data transfer, where it has granted a read
before and has not failed since. The opening waits for it for `PATIENCE` seconds at most. Failures are not reported: the
read that follows takes the usual way with its time-outs and replicas. A version is read so once, since the kernel has
its pages afterwards, as a rule.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial

from stripefs.errors import ServiceDown, StoreError
from stripefs.executor import Lane
from stripefs.retry import HostHealth
from stripefs.store.allocator import PAGE
from stripefs.store.base import Block, Buffer, Identity
from stripefs.store.common import Cancellation
from stripefs.store.hdfs.datanode_read import DataNodeReader, FileRange
from stripefs.store.hdfs.wire import inode_path

__all__ = ["ShortFile", "ShortFiles"]

log = logging.getLogger(__name__)

SHORT = 256 << 10
"""Bytes of the longest file that is read when it is opened: a DataNode of 40 MB/s sends them within 7 ms."""

PATIENCE = 0.5
"""Seconds for which an opening waits for the bytes."""

PAUSE = 60.0
"""Seconds for which no opening waits for a DataNode that was late."""

KEPT = 16 << 20
"""Bytes of memory for open files that were read so."""

REMEMBERED = 100_000
"""Files that are known to have been read so: 10 MiB of memory."""

THREADS = 32
"""Reads under way at once."""


@dataclass(frozen=True, slots=True)
class ShortFile:
    """Blocks of a file, and all of its bytes; None where these were not asked for or did not come."""

    blocks: Sequence[Block]
    data: Buffer | None


class ShortFiles:
    """Reads short files, and keeps the bytes of those that are open. Safe to use from many threads."""

    def __init__(self, datanodes: DataNodeReader, health: HostHealth) -> None:
        self._datanodes = datanodes
        self._health = health
        self._lane = Lane("short files", THREADS)
        self._late: dict[str, float] = {}
        self._lock = threading.Lock()
        self._known: dict[str, None] = {}  # ids of files, in the order of their openings
        self._kept: dict[Hashable, Buffer] = {}  # by open file, in the order of the openings
        self._bytes = 0

    def read(self, path: str, expect: Identity) -> ShortFile | None:
        """The file of this identity, which was seen at an HDFS path; unconfirmed. None where it is not read so."""
        if not 0 < expect.length <= SHORT or not self._datanodes.by_name or "/.snapshot/" in path:
            return None
        with self._lock:
            if not expect.file_id or expect.file_id in self._known:
                return None
            self._known[expect.file_id] = None
            if len(self._known) > REMEMBERED:
                del self._known[next(iter(self._known))]
        where = inode_path(expect.file_id)
        try:
            blocks = self._datanodes.blocks(where, 0, expect.length)
        except StoreError as error:  # the status will tell
            log.debug("locating %s: %s", path, error)
            return None
        data = self._fetched(where, blocks[0], expect.length) if len(blocks) == 1 else None
        return ShortFile(blocks, data)

    def _fetched(self, where: str, block: Block, length: int) -> Buffer | None:
        now, span = time.monotonic(), FileRange(where, block, block.offset, length)
        for host in self._health.well(block.hosts, now):
            late = now - self._late.get(host, -math.inf) < PAUSE
            if late or self._health.on_probation(host, now) or not self._datanodes.grants(host):
                continue
            watch = Cancellation()
            fetch = partial(self._datanodes.fetch_granted, span, host, watch)
            try:
                return self._lane.call(f"reading {where}", fetch, PATIENCE)
            except ServiceDown:
                self._late[host] = time.monotonic()
                watch.cancel()
            except StoreError as error:
                log.debug("reading %s: %s", where, error)
            return None
        return None

    def keep(self, owner: Hashable, data: Buffer) -> None:
        """Keep confirmed bytes of the open file that `owner` stands for; the oldest of others give way."""
        with self._lock:
            self._kept[owner] = data
            self._bytes += len(data) + PAGE
            while self._bytes > KEPT:
                self._bytes -= len(self._kept.pop(next(iter(self._kept)))) + PAGE

    def get(self, owner: Hashable) -> Buffer | None:
        return self._kept.get(owner)

    def drop(self, owner: Hashable) -> None:
        with self._lock:
            data = self._kept.pop(owner, None)
            if data is not None:
                self._bytes -= len(data) + PAGE
