"""A new file by HDFS's data transfer protocol, its blocks placed at a chosen DataNode.

Against WebHDFS it saves DataNodes more than half of their processor time, since no Hadoop client runs in them and no
byte passes their web server, and what a block waits for is known here: the NameNode tells all DataNodes of a block, and
is told which are not wanted. A block that could not be begun is placed anew without the DataNode that failed; one that
breaks off is not mended, since whoever writes the file has its bytes and writes it anew.

The file counts once every replica's DataNode has acknowledged every packet and the NameNode has closed it. One that is
given up is removed; that of a process that died lies under its hidden name until gc takes it.

A cluster that lets no client write so (a firewall, SASL, erasure coding) gets the file by WebHDFS (`instead`).
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from stripefs.errors import HostFailed, StoreError, Transient
from stripefs.store.base import Buffer, Sink, Status
from stripefs.store.common import ConfirmedSink
from stripefs.store.hdfs import protobuf
from stripefs.store.hdfs.block_locations import DataNodes
from stripefs.store.hdfs.connection import connect, reason, silent_after
from stripefs.store.hdfs.data_transfer import UNTRIED, BrokenAnswer, DataTransfer, receive_message
from stripefs.store.hdfs.datanode_write import send_pieces, unsent_bytes
from stripefs.store.hdfs.namenode_rpc import NameNodeRpc, PlacedBlock
from stripefs.store.hdfs.pipeline_health import PipelineHealth
from stripefs.store.hdfs.transfer_wire import ChunkSums, acknowledged, packet_head, write_answer, write_request

__all__ = ["Placement", "TransferSink"]

_T = TypeVar("_T")

_PACKET = 256 << 10
"""Bytes of data in a packet. DataNodes took as long for packets of 64 KiB and 1 MiB, the client a fifth more and as
long, and a further replica is sent a packet once all of it is there."""

PRIVATE_CHUNK = 4096
"""Bytes of a checksum's chunk in files that nobody else reads. With the usual 512 bytes checksums take 0.5 to 0.7 CPU s
for a GB, with these 0.15 (AMD EPYC), and DataNodes keep and send an eighth of them. Tools that compare the checksums of
a file and its copy, such as distcp, want the same chunks in both."""

_PLACED_ANEW = 4
"""DataNodes of one block that may fail before it is begun."""

_LOOKS = 5
"""Looks in a time-out at whether a DataNode that takes no more has taken something."""

_AGAIN_FIRST, _AGAIN_LONGEST = 0.005, 0.4
"""Seconds between two questions whether the NameNode has heard of a block's replicas."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The services that files are written by.

    sums: the NameNode's default for clients; private_sums: those of files that nobody
    else reads. timeout: seconds for which one DataNode may be silent.
    """

    rpc: NameNodeRpc
    transfer: DataTransfer
    datanodes: DataNodes
    pipelines: PipelineHealth
    sums: ChunkSums
    private_sums: ChunkSums
    timeout: float


class TransferSink(ConfirmedSink):
    """A new file of `length` bytes at `path`, each block's first replica at `host` where the NameNode agrees.

    patience: time-outs that may pass in silence. private: as `Store.create` has it. instead makes a sink that writes
    the same file in another way. Raises what `NameNodeRpc.create` raises.
    """

    def __init__(
        self,
        placement: Placement,
        path: str,
        *,
        host: str,
        length: int,
        block_size: int,
        replication: int,
        patience: int,
        private: bool,
        confirm: Callable[[], Status],
        discard: Callable[[int], None],
        instead: Callable[[], Sink],
    ) -> None:
        super().__init__(path, confirm, discard)
        self._by = placement
        self._host = host
        self._length = length
        self._block_size = block_size
        self._waits = patience * placement.timeout
        self._instead = instead
        whole = block_size % placement.private_sums.chunk == 0  # blocks of the file end with a chunk
        self._sums = placement.private_sums if private and whole else placement.sums
        self._other: Sink | None = None
        self._block: _BlockStream | None = None
        self._previous = b""
        self._part = bytearray()  # of a chunk
        self._id = placement.rpc.create(path, mode=0o644, replication=replication, block_size=block_size)

    def write(self, data: Buffer) -> None:
        self._check_open()
        view = memoryview(data).cast("B")
        self._check_more(len(view), self._length)
        self._written += len(view)
        chunk = self._sums.chunk
        if self._part:
            missing = min(chunk - len(self._part), len(view))
            self._part += view[:missing]
            view = view[missing:]
            if len(self._part) == chunk:
                self._flush()
        if self._part:
            return
        whole = len(view) - len(view) % chunk
        self._send(view[:whole])
        self._part += view[whole:]

    def close(self) -> Status:
        self._check_open()
        self._check_whole(self._length)
        self._flush()
        if self._other is not None:
            status = self._other.close()
        else:
            self._end_block()
            self._until_reported(lambda: self._by.rpc.complete(self._path, self._id, self._previous))
            status = self._confirm()
        return self._closed(status, self._host)

    def abort(self) -> None:
        if self._over:
            return
        self._end("it was given up")
        if self._block is not None:
            self._block.drop()
        if self._other is not None:
            self._other.abort()
        else:
            self._discard(self._written)

    def _flush(self) -> None:
        part, self._part = self._part, bytearray()
        self._send(memoryview(part))

    def _send(self, view: memoryview) -> None:
        """Whole chunks, but for the file's last one."""
        while view:
            if self._block is None and self._other is None:
                self._begin_block()
            if self._block is None:
                assert self._other is not None
                self._other.write(view)
                return
            length = min(len(view), _PACKET, self._block_size - self._block.length)
            self._block.send(view[:length])
            view = view[length:]
            if self._block.length == self._block_size:
                self._end_block()

    def _end_block(self) -> None:
        if self._block is not None:
            self._block.finish()
            self._previous = self._block.name()
            self._block = None

    def _begin_block(self) -> None:
        """The next block, or the other sink where its DataNode does not take the file's first one so."""
        excluded: list[bytes] = []
        failure: HostFailed | None = None
        for _ in range(_PLACED_ANEW):
            placed = self._placed(excluded)
            names = [replica.name for replica in placed.replicas]
            silent = self._by.pipelines.silent(names) if self._by.pipelines.any_silent else []
            if not silent:
                address = self._by.datanodes.transfer_address(names[0])
                try:
                    self._block = self._opened(placed, names, address)
                    return
                except HostFailed as error:
                    failure = error
                    silent = [error.host]
                    if error.host == names[0]:
                        if self._previous:
                            raise
                        self._fall_back(address, error)
                        return
            else:
                failure = HostFailed(f"DataNode {silent[0]} is silent", host=silent[0], stalled=True)
            self._by.rpc.abandon_block(self._path, self._id, placed.name)
            excluded += [location for location, name in zip(placed.locations, names, strict=True) if name in silent]
        assert failure is not None
        raise failure

    def _placed(self, excluded: list[bytes]) -> PlacedBlock:
        def place() -> PlacedBlock | None:
            try:
                return self._by.rpc.add_block(self._path, self._id, self._previous, self._host, excluded)
            except Transient as error:
                if type(error) is Transient:  # the block before has not been reported
                    return None
                raise
            except StoreError as error:
                # An error without a class of ours: no DataNode takes the block.
                raise HostFailed(error.message, host=self._host) if type(error) is StoreError else error from error

        placed = self._until_reported(place)
        self._by.datanodes.learn(placed.replicas)
        return placed

    def _until_reported(self, ask: Callable[[], _T | None]) -> _T:
        """The first answer of `ask` that is one."""
        end, pause = time.monotonic() + self._waits, _AGAIN_FIRST
        while not (answer := ask()):
            if time.monotonic() > end:
                raise HostFailed(f"{self._path}: no replica was reported within {self._waits:.0f} s", host=self._host)
            time.sleep(pause)
            pause = min(2 * pause, _AGAIN_LONGEST)
        return answer

    def _opened(self, placed: PlacedBlock, names: list[str], address: str) -> _BlockStream:
        """Raises HostFailed of the DataNode that failed."""
        by = self._by
        known = by.transfer.refusals.granting(address)
        block = _BlockStream(placed, names, self._sums, by.pipelines, by.timeout, self._waits)
        block.open(address, by.rpc.holder, by.timeout if known else min(by.timeout, UNTRIED))
        by.transfer.refusals.granted(address)
        return block

    def _fall_back(self, address: str, error: HostFailed) -> None:
        """Write the file in the other way. Raises HostFailed where the DataNode takes it in none."""
        if error.stalled and self._by.transfer.refusals.granting(address):
            raise error
        self._discard(0)
        try:
            self._other = self._instead()
        except HostFailed:
            self._by.transfer.refusals.forgive(address)
            raise
        # A DataNode that declines a block, as one with full disks does, may still serve what it has.
        self._by.transfer.refusals.refused(address, error.message, of_connection=error.__cause__ is not None)


class _BlockStream:
    """A block being written to the first of `names`, which passes it on. Raises HostFailed of whichever failed.

    waits: seconds of silence after which the first is given up although all of them give signs of life.
    """

    def __init__(
        self,
        placed: PlacedBlock,
        names: list[str],
        sums: ChunkSums,
        pipelines: PipelineHealth,
        timeout: float,
        waits: float,
    ) -> None:
        self.length = 0
        self._placed = placed
        self._names = names
        self._sums = sums
        self._pipelines = pipelines
        self._timeout = timeout
        self._waits = waits
        self._sock: socket.socket | None = None
        self._packets = 0
        self._acknowledged = 0
        self._received = b""

    def name(self) -> bytes:
        """The block's name with the bytes that it has."""
        return self._placed.with_length(self.length)

    def open(self, address: str, client: bytes, patience: float) -> None:
        """Connect, and have the DataNodes begin the block, within `patience` seconds for each answer."""
        placed = self._placed
        request = write_request(
            placed.name,
            placed.stamp,
            placed.token,
            client,
            placed.locations[1:],
            self._sums,
            placed.storage_types,
            placed.storage_ids,
        )
        try:
            self._sock = connect(address, patience)
            silent_after(self._sock, patience)
            self._sock.sendall(request)
            refusal, first_bad = write_answer(receive_message(self._sock))
        except (OSError, BrokenAnswer, ValueError) as error:
            self.drop()
            stalled = isinstance(error, TimeoutError | BlockingIOError)
            host = self._names[0]
            if stalled and len(self._names) > 1:  # it may wait for the next one
                host = next(iter(self._pipelines.without_sign(self._names)), host)
            why = reason(error, patience) if isinstance(error, OSError) else str(error)
            raise HostFailed(f"DataNode {self._names[0]}: {why}", host=host, stalled=stalled) from error
        if refusal:
            self.drop()
            host = first_bad if first_bad in self._names else self._names[0]
            raise HostFailed(f"DataNode {self._names[0]}: {refusal}", host=host)

    def send(self, data: memoryview) -> None:
        """A packet of whole chunks, but for the block's last one."""
        sums = self._sums.of(data)
        self._send([packet_head(self._packets, self.length, len(data), len(sums)), sums, data])
        self.length += len(data)
        self._take_acknowledgements()

    def finish(self) -> None:
        """Return when all DataNodes have acknowledged all of the block."""
        self._send([packet_head(self._packets, self.length, 0, 0)])
        while self._acknowledged < self._packets:
            self._wait(select.POLLIN)
            self._take_acknowledgements()
        self.drop()

    def drop(self) -> None:
        if self._sock is not None:
            self._sock.close()

    def _send(self, pieces: list[Buffer]) -> None:
        assert self._sock is not None
        self._packets += 1
        try:
            send_pieces(self._sock, pieces, self._wait_until_writable)
        except OSError as error:
            raise self._broken(error) from error

    def _wait_until_writable(self) -> None:
        self._wait(select.POLLOUT | select.POLLIN)
        self._take_acknowledgements()

    def _wait(self, events: int) -> None:
        """Until one of `events` may have come."""
        assert self._sock is not None
        poll = select.poll()
        poll.register(self._sock, events)
        began = moved = time.monotonic()
        left = unsent_bytes(self._sock)
        while not poll.poll(self._timeout / _LOOKS * 1000):
            now, before, left = time.monotonic(), left, unsent_bytes(self._sock)
            if left < before:
                began = moved = now
            elif now - moved >= self._timeout:
                moved = now
                self._check_signs(now - began)

    def _check_signs(self, silent_for: float) -> None:
        """A time-out has passed in which nothing moved: raise as soon as it is known of whom."""
        silent = self._pipelines.without_sign(self._names)
        if silent or silent_for >= self._waits:
            host = silent[0] if silent else self._names[0]
            raise HostFailed(
                f"DataNode {host}, writing a block: no answer within {silent_for:.0f} s", host=host, stalled=True
            )

    def _take_acknowledgements(self) -> None:
        """Take the acknowledgements that have come."""
        assert self._sock is not None
        try:
            more = self._sock.recv(4096, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError as error:
            raise self._broken(error) from error
        if not more:
            raise HostFailed(f"DataNode {self._names[0]} broke off a block", host=self._names[0])
        self._received += more
        self._note_acknowledgements()

    def _note_acknowledgements(self) -> None:
        while True:
            try:
                length, at = protobuf.read_varint(self._received, 0)
            except ValueError:
                return  # not all of it has come
            if len(self._received) < at + length:
                return
            message, self._received = self._received[at : at + length], self._received[at + length :]
            try:
                number, failed = acknowledged(message)
            except ValueError as error:
                raise HostFailed(f"DataNode {self._names[0]}: {error}", host=self._names[0]) from error
            if failed is not None:
                host = self._names[min(failed, len(self._names) - 1)]
                raise HostFailed(f"DataNode {host} failed to write a block", host=host)
            if number == self._acknowledged:  # others are signs of life
                self._acknowledged += 1

    def _broken(self, error: OSError) -> HostFailed:
        return HostFailed(f"DataNode {self._names[0]}: {reason(error, self._timeout)}", host=self._names[0])
