"""Reads of a few KiB (documents, manifests, sums) go on at other replicas when one falls silent.

hdfs-native picks the replica of a read by itself. It waits for a silent DataNode until its time-out is over, it keeps
no record of that, and no request can leave a DataNode out. So a small read by hdfs-native that has no answer after
PATIENCE seconds is asked of every replica by itself, and the first answer counts. A replica that sends nothing for
SILENT seconds is noted as failed. While any DataNode is avoided, small files with a replica there are read from their
other replicas at once.

A file of one replica has nowhere else to be read from, so its read takes as long as the time-out.
"""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from stripefs.errors import HostFailed, ServiceDown, StaleVersion, StoreError
from stripefs.executor import Lane
from stripefs.retry import HostHealth
from stripefs.store.base import Block, Buffer, Status
from stripefs.store.hdfs.datanode_read import DataNodeReader
from stripefs.store.hdfs.native import NativeClient
from stripefs.store.hdfs.wire import inode_path

__all__ = ["PATIENCE", "SILENT", "SMALL", "SmallRange", "SmallReader"]

PATIENCE = 0.5
"""Seconds before a second replica is asked. hdfs-native answers a small read in 2 ms, within 0.1 s on busy cores."""

SILENT = 1.0
"""Seconds without a byte after which a replica that was asked for a small read counts as failed."""

SMALL = 1 << 20
"""Bytes of the longest read that is asked of several replicas: a DataNode of 40 MB/s sends them within 25 ms."""

THREADS = 32
"""Reads by hdfs-native, and as many by WebHDFS, that are under way at once in one store."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class SmallRange:
    """`length` bytes from `offset` of the file at the HDFS path `where`, all in one block."""

    where: str
    block: Block
    offset: int
    length: int

    @property
    def hosts(self) -> Sequence[str]:
        return self.block.hosts


class SmallReader:
    """Safe to use from many threads. timeout: seconds without a byte after which a DataNode counts as silent."""

    def __init__(self, web: DataNodeReader, health: HostHealth, stat: Callable[[str], Status], timeout: float) -> None:
        self._web = web
        self._health = health
        self._stat = stat
        self._silent = min(SILENT, timeout)
        self._first = Lane("small reads", THREADS)
        self._others = Lane("replicas", THREADS)

    @property
    def avoiding(self) -> bool:
        """Tells whether any DataNode is avoided now."""
        return self._health.any_avoided(time.monotonic())

    def try_first(self, what: str, read: Callable[[], _T]) -> _T:
        """`read()`, with ServiceDown after PATIENCE seconds; it goes on without its caller. Raises what it raises."""
        return self._first.call(what, read, PATIENCE)

    def read_small_files(self, native: NativeClient, paths: Sequence[str], length: int) -> list[Buffer | StoreError]:
        """See `Store.read_small_files`."""
        answers: list[Buffer | StoreError] = []
        while len(answers) < len(paths):
            rest = paths[len(answers) :]
            if self.avoiding:
                answers.append(self._read_elsewhere(native, rest[0], length, late=False))
                continue
            for path, answer in zip(rest, native.read_some_small(rest, length, PATIENCE), strict=False):
                failed = isinstance(answer, HostFailed | ServiceDown)
                answers.append(self._read_elsewhere(native, path, length, late=True) if failed else answer)
        return answers

    def elsewhere(self, place: SmallRange, *, late: bool) -> Buffer | None:
        """The bytes, from a replica that is not avoided; None where there is none to try, or none answers.

        late: a read of them by hdfs-native has failed or has no answer yet; otherwise None where no replica is avoided.
        Raises what a DataNode says about the file.
        """
        well = self._health.well(place.hosts, time.monotonic())
        if not well or len(place.hosts) < 2 or (not late and len(well) == len(place.hosts)):
            return None
        try:
            return self.race(place, well, 0.0)
        except HostFailed:
            return None

    def race(self, place: SmallRange, hosts: Sequence[str], patience: float) -> Buffer:
        """The bytes from the first of `hosts`, and after `patience` seconds, or when it fails, from any of them.

        Raises what a DataNode says about the file, and HostFailed when all of them fail.
        """
        first = self._others.submit(self._ask, place, hosts[0])
        if patience:
            concurrent.futures.wait([first], patience)
            if first.done() and first.exception() is None:
                return first.result()
        failure: HostFailed | None = None
        others = [self._others.submit(self._ask, place, host) for host in hosts[1:]]
        for future in concurrent.futures.as_completed([first, *others]):
            try:
                return future.result()
            except HostFailed as error:
                failure = error
        raise failure or HostFailed(f"{place.where}: no DataNode has the block at byte {place.offset}")

    def _read_elsewhere(self, native: NativeClient, path: str, length: int, *, late: bool) -> Buffer | StoreError:
        """See `elsewhere`; by hdfs-native, for as long as the time-out, where that answers nothing."""
        try:
            status = self._stat(path)
            if status.length > length:
                return StaleVersion(f"{path} has {status.length} bytes, more than the {length} that were expected")
            where = inode_path(status.file_id)
            blocks = self._web.blocks(where, 0, status.length) if status.length else ()
            if len(blocks) == 1:
                data = self.elsewhere(SmallRange(where, blocks[0], 0, status.length), late=late)
                if data is not None:
                    return data
        except StoreError as error:
            return error
        [answer] = native.read_small_files([path], length)
        return answer

    def _ask(self, place: SmallRange, host: str) -> Buffer:
        try:
            data = self._web.fetch_once(place.where, place.block, place.offset, place.length, host, self._silent)
        except HostFailed as error:
            self._health.failed(host, time.monotonic(), error.message)
            raise
        self._health.worked(host)
        return data
