"""Reads from chosen DataNodes: by data transfer, and by WebHDFS where a DataNode does not grant that.

`where` is an HDFS path in plain text, of an inode mostly (`wire.inode_path`).

**Small reads** (documents, manifests, sums: a few KiB) go on at other replicas when one falls silent. hdfs-native picks
the replica of a read by itself. It waits for a silent DataNode until its time-out is over, it keeps no record of that,
and no request can leave a DataNode out. So a small read by hdfs-native that has no answer after PATIENCE seconds is
asked of every replica by itself, and the first answer counts. A replica that sends nothing for SILENT seconds is noted
as failed. While any DataNode is avoided, small files with a replica there are read from their other replicas at once.
A file of one replica has nowhere else to be read from, so its read takes as long as the time-out.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import math
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TypeVar

from stripefs.errors import HostFailed, ServiceDown, StaleVersion, StoreError
from stripefs.executor import Lane
from stripefs.retry import HostHealth
from stripefs.store.base import Block, Buffer, Status, Watch
from stripefs.store.hdfs.block_locations import DataNodes
from stripefs.store.hdfs.connection import Answer
from stripefs.store.hdfs.data_transfer import BadChecksum, DataTransfer, Refused
from stripefs.store.hdfs.namenode_webhdfs import NameNodeRest
from stripefs.store.hdfs.native import NativeClient
from stripefs.store.hdfs.read_streams import Ask, ReadStreams
from stripefs.store.hdfs.transfer_wire import BlockName, BlockRange
from stripefs.store.hdfs.wire import inode_path, located_of, request_target

__all__ = ["PATIENCE", "SILENT", "SMALL", "DataNodeReader", "FileRange", "SmallReader"]

REPORT_EVERY = 60.0
"""Seconds between two reports of one damaged replica; a NameNode has it replaced within some."""

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
class FileRange:
    """`length` > 0 bytes from `offset`, which lies in `block`, of the file at the HDFS path `where`."""

    where: str
    block: Block
    offset: int
    length: int

    @property
    def piece(self) -> BlockRange | None:
        """The same of the block; None where it has no name, or not all of them."""
        begin = self.offset - self.block.offset
        if not isinstance(self.block.name, BlockName) or begin + self.length > self.block.length:
            return None
        return BlockRange(self.block.name, begin, self.length)


class DataNodeReader:
    """`timeout`: seconds without a byte after which a DataNode counts as silent. Safe to use from many threads."""

    def __init__(self, rest: NameNodeRest, datanodes: DataNodes, user: str, timeout: float) -> None:
        self._rest = rest
        self._datanodes = datanodes
        self._user = user
        self._timeout = timeout
        self.streams = ReadStreams()
        self.transfer: DataTransfer | None = None
        """Reads by the data transfer protocol, where the cluster has that."""
        self._reported: dict[tuple[str, object], float] = {}
        """By host and block of a damaged replica: when it was reported last."""
        self._web_only: set[str] = set()
        """Open files that data transfer cannot read: they have no checksums (dfs.checksum.type NULL)."""

    @property
    def by_name(self) -> bool:
        """True if DataNodes serve blocks by their names, so that no NameNode is needed."""
        return self.transfer is not None and not self.transfer.refusals.reason()

    def blocks(self, where: str, offset: int, length: int, *, named: bool = True) -> Sequence[Block]:
        """The blocks that overlap a range, in order, with all their replicas. Raises what NameNodeRest.ask does.

        named: False for those that WebHDFS alone can read.
        """
        located = located_of(self._rest.ask("GET_BLOCK_LOCATIONS", where, offset=offset, length=length))
        for block in located:
            self._datanodes.learn(block.replicas)
        return [
            Block(
                block.offset,
                block.length,
                tuple(replica.name for replica in block.replicas),
                block.name if named else None,
            )
            for block in located
        ]

    def fetch(
        self, owner: Hashable, span: FileRange, end: int, host: str, watch: Watch | None, moved: Callable[[], None]
    ) -> Buffer:
        """The bytes of `span`, from `host` alone. Raises what `connection.Answer.take` raises.

        `owner` stands for the open file; `end`: up to where its reader will go on at this host, see `ReadStreams.read`.
        `moved` is called where the host seems not to have the block any more.
        """

        def by_web() -> memoryview:
            ask = self._asking(span.where, host, self._timeout)
            return self.streams.read((owner, host), ask, span.offset, span.length, end, watch)

        return self._read(span, host, watch, self._timeout, by_web, moved)

    def fetch_once(self, span: FileRange, host: str, timeout: float) -> Buffer:
        """As `fetch`, by a request of its own; `timeout`: seconds without a byte after which the host is silent."""

        def by_web() -> memoryview:
            return self._once(span.where, span.offset, span.length, host, timeout)

        return self._read(span, host, None, timeout, by_web, lambda: None)

    def _read(
        self,
        span: FileRange,
        host: str,
        watch: Watch | None,
        timeout: float,
        by_web: Callable[[], memoryview],
        moved: Callable[[], None],
    ) -> memoryview:
        """By data transfer, and where that is refused by WebHDFS."""
        piece = span.piece
        if self.transfer is None or piece is None or span.where in self._web_only:
            return by_web()
        address = self._datanodes.transfer_address(host)
        refused: tuple[str, bool] | None = None  # not the exception, which keeps what it has read
        if not self.transfer.refusals.reason(address):
            try:
                return self.transfer.read(piece, address, host, watch, timeout)
            except Refused as refusal:
                refused = refusal.message, refusal.of_connection
                if refusal.answered:
                    moved()
                if refusal.unreadable:
                    self._web_only.add(span.where)
            except BadChecksum as damage:
                self._report(span, damage)
                raise
        try:
            data = by_web()
        except HostFailed:
            self.transfer.refusals.forgive(address)
            raise
        if refused is not None:
            self.transfer.refusals.refused(address, refused[0], of_connection=refused[1])
        return data

    def grants(self, host: str) -> bool:
        """True if `host` has granted a read by data transfer, and has not been given up since."""
        return self.transfer is not None and self.transfer.refusals.granting(self._datanodes.transfer_address(host))

    def fetch_granted(self, span: FileRange, host: str, watch: Watch) -> Buffer:
        """From a host that `grants`, by data transfer alone. Raises HostFailed, Abandoned."""
        piece = span.piece
        if self.transfer is None or piece is None or span.where in self._web_only:
            raise HostFailed("data transfer does not read this block", host=host)
        try:
            return self.transfer.read(piece, self._datanodes.transfer_address(host), host, watch, self._timeout)
        except Refused as refusal:
            raise HostFailed(refusal.message, host=host) from refusal
        except BadChecksum as damage:
            self._report(span, damage)
            raise

    def _once(self, where: str, offset: int, length: int, host: str, timeout: float) -> memoryview:
        with closing(self._asking(where, host, timeout)(offset, length, 0)) as answer:
            return answer.take(length, None)

    def _report(self, span: FileRange, damage: BadChecksum) -> None:
        """Let the DataNode meet the damage itself, by WebHDFS in a thread: as a client of HDFS it tells the NameNode,
        which replaces the replica. WebHDFS has no operation that tells it directly."""
        block = span.block
        replica, now = (damage.host, block.name), time.monotonic()
        if len(block.hosts) < 2 or now - self._reported.get(replica, -math.inf) < REPORT_EVERY:
            return
        self._reported[replica] = now
        length = min(damage.end, block.length) - damage.begin

        def read() -> None:
            with contextlib.suppress(StoreError):  # another read will meet the damage and report it
                self._once(span.where, block.offset + damage.begin, length, damage.host, self._timeout)

        threading.Thread(target=read, name="report of damage", daemon=True).start()

    def _asking(self, where: str, host: str, timeout: float) -> Ask:
        address = self._datanodes.address(host)
        rpc = self._rest.rpc_address(lambda: self._rest.ask("OPEN", where, noredirect="true"))

        def ask(offset: int, length: int, window: int) -> Answer:
            parameters: dict[str, str | int] = {"namenoderpcaddress": rpc, "offset": offset, "length": length}
            target = request_target(where, "OPEN", self._user, parameters)
            return Answer(address, target, length, name=host, timeout=timeout, window=window)

        return ask

    def release(self, owner: Hashable, where: str) -> None:
        """The file is closed: end what is kept open for it, and forget what is known of it."""
        self._web_only.discard(where)
        self.streams.drop(owner)

    def close(self) -> None:
        self.streams.close()
        if self.transfer is not None:
            self.transfer.close()


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

    def elsewhere(self, place: FileRange, *, late: bool) -> Buffer | None:
        """The bytes, from a replica that is not avoided; None where there is none to try, or none answers.

        late: a read of them by hdfs-native has failed or has no answer yet; otherwise None where no replica is avoided.
        Raises what a DataNode says about the file.
        """
        well = self._health.well(place.block.hosts, time.monotonic())
        if not well or len(place.block.hosts) < 2 or (not late and len(well) == len(place.block.hosts)):
            return None
        try:
            return self.race(place, well, 0.0)
        except HostFailed:
            return None

    def race(self, place: FileRange, hosts: Sequence[str], patience: float) -> Buffer:
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
                data = self.elsewhere(FileRange(where, blocks[0], 0, status.length), late=late)
                if data is not None:
                    return data
        except StoreError as error:
            return error
        [answer] = native.read_small_files([path], length)
        return answer

    def _ask(self, place: FileRange, host: str) -> Buffer:
        try:
            data = self._web.fetch_once(place, host, self._silent)
        except HostFailed as error:
            self._health.failed(host, time.monotonic(), error.message)
            raise
        self._health.worked(host)
        return data
