"""Blocks read from one DataNode by HDFS's data transfer protocol, checked against the DataNode's checksums.

This is how `hdfs dfs -cat` and hdfs-native read. Against WebHDFS it saves a DataNode three quarters of its processor
time, since that sends its files as they are, and the NameNode two questions a request, since a block's name is enough.
Against hdfs-native it leaves the choice of the replica to the caller, and bytes come into the buffer where they stay.

A DataNode that does not grant a read in this way (`Refused`) may still serve it by WebHDFS, where it finds blocks that
were moved, and says what is wrong with a file. Where it grants none, or no DataNode does, since a firewall or SASL is
between, data transfer is left alone for a while (`Refusals`).

Where there are processors to spare, another process receives and checks the bytes (`fetch_process`).
"""

from __future__ import annotations

import math
import select
import socket
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from stripefs.errors import Abandoned, HostFailed
from stripefs.store.allocator import aligned
from stripefs.store.base import Watch
from stripefs.store.common import cancellable
from stripefs.store.hdfs.connection import IdlePool, connect, reason, shut_down, silent_after
from stripefs.store.hdfs.transfer_hosts import Refusals
from stripefs.store.hdfs.transfer_wire import (
    CHECKSUM_OK,
    HEAD,
    LONGEST,
    BlockRange,
    PacketSums,
    data_length,
    read_answer,
    read_request,
)

if TYPE_CHECKING:
    from stripefs.store.hdfs.fetch_process import FetchProcess

__all__ = [
    "UNTRIED",
    "BadChecksum",
    "BlockFetcher",
    "BrokenAnswer",
    "DataTransfer",
    "FetchRequest",
    "Refused",
    "receive_message",
]

STEP = 1 << 20
"""Bytes that one system call receives at most, and between two reports of progress."""

UNTRIED = 1.0
"""Seconds until a DataNode has to answer that has granted no read so far: a firewall may drop what is sent."""

REUSE = 3.0
"""Seconds for which a connection is kept: a DataNode closes it after 4 (dfs.datanode.socket.reuse.keepalive)."""

AT_ONCE = 256
"""Packets that one system call receives at most: it takes 1,024 buffers, and a packet has three."""


class Refused(HostFailed):
    """The DataNode does not grant this read; nothing is known of its data."""

    answered = False
    """True where the DataNode has said so: most likely it does not have the block any more."""
    of_connection = False
    """True where its connection failed, so that the block has no part in it."""
    unreadable = False
    """True where its answer is none that this protocol can read."""
    granted = False
    """True where it had granted the read before."""


class BadChecksum(HostFailed):
    """Bytes [begin, end) of the block are damaged there."""

    begin = end = 0


class FetchRequest(NamedTuple):
    """A read of `piece` from the DataNode whose transfer port is at `address`. `host`: its name, for errors.

    patience: seconds until it has answered; timeout: seconds without a byte from then on.
    """

    piece: BlockRange
    address: str
    host: str
    timeout: float
    patience: float


class DataTransfer:
    """Reads by this protocol of one store. Safe to use from many threads. elsewhere: tried first."""

    def __init__(self, elsewhere: FetchProcess | None = None) -> None:
        self._fetcher = BlockFetcher()
        self._elsewhere = elsewhere
        self.refusals = Refusals()

    def read(self, piece: BlockRange, address: str, host: str, watch: Watch | None, timeout: float) -> memoryview:
        """The bytes of `piece`, from the DataNode whose transfer port is at `address`. `host`: its name, for errors.
        `timeout`: seconds without a byte after which it counts as silent.

        Raises Refused, BadChecksum, HostFailed for everything else that speaks against the host, Abandoned.
        """
        granting = self.refusals.granting(address)
        request = FetchRequest(piece, address, host, timeout, timeout if granting else min(timeout, UNTRIED))
        try:
            data = self._fetched(request, watch)
        except Refused as error:
            if error.granted:
                self.refusals.granted(address)
            elif error.stalled and granting:  # the host is silent: asking it in another way is of no use
                self.refusals.refused(address, error.message, of_connection=True)
                raise HostFailed(error.message, host=host, stalled=True) from error
            raise
        except HostFailed:
            self.refusals.granted(address)
            raise
        self.refusals.granted(address)
        return data

    def _fetched(self, request: FetchRequest, watch: Watch | None) -> memoryview:
        if self._elsewhere is not None and (data := self._elsewhere.fetch(request, watch)) is not None:
            return data
        buffer = aligned(request.piece.length)  # so that a cache on disk takes it as it is
        self._fetcher.fetch(request, buffer, watch)
        return buffer

    def close(self) -> None:
        self._fetcher.close()
        if self._elsewhere is not None:
            self._elsewhere.close()


class BlockFetcher:
    """Fetches pieces of blocks, and keeps connections for the next ones. Safe to use from many threads."""

    def __init__(self) -> None:
        self._connections = IdlePool[socket.socket](math.inf, REUSE)

    def fetch(self, request: FetchRequest, buffer: memoryview, watch: Watch | None) -> None:
        """Fill `buffer`, as long as the piece. Raises Refused, BadChecksum, HostFailed, Abandoned."""
        asking = _Request(request)
        sock, packets = self._granted_by(asking, request.address, watch)
        if asking.receive(sock, packets, buffer, watch):
            self._connections.keep(request.address, sock)
        else:
            sock.close()

    def _granted_by(self, request: _Request, address: str, watch: Watch | None) -> tuple[socket.socket, _Packets]:
        while (kept := self._connections.take(address)) is not None:
            if _ended(kept):
                kept.close()
                continue
            try:
                return kept, request.ask(kept, watch)
            except Refused as error:
                if not isinstance(error.__cause__, ConnectionError):  # it has only ended meanwhile
                    raise
                break
        sock = request.connect(address)
        return sock, request.ask(sock, watch)

    def close(self) -> None:
        self._connections.close()


class BrokenAnswer(Exception):
    """The DataNode has not answered what it said it would."""


class _Declined(Exception):
    """The DataNode's own reason for which it does not grant a read."""


class _ChecksumMismatch(Exception):
    """Bytes [begin, end) of the block do not fit their checksums."""

    def __init__(self, begin: int, end: int) -> None:
        super().__init__(begin, end)
        self.begin = begin
        self.end = end


class _Request:
    """A read of one piece from one DataNode, step by step."""

    def __init__(self, request: FetchRequest) -> None:
        self._piece = request.piece
        self._host = request.host
        self._timeout = request.timeout
        self._patience = request.patience

    def connect(self, address: str) -> socket.socket:
        """A new connection. Raises Refused."""
        try:
            return connect(address, self._patience)
        except OSError as error:
            raise self._refusal(error) from error

    def ask(self, sock: socket.socket, watch: Watch | None) -> _Packets:
        """Packets that the DataNode has granted. Raises Refused, Abandoned; the connection is closed then."""
        try:
            silent_after(sock, self._patience)
            with cancellable(watch, partial(shut_down, sock)):
                sock.sendall(read_request(self._piece))
                granted = read_answer(receive_message(sock))
            if isinstance(granted, str):
                raise _Declined(granted)
            packets = _Packets(sock, self._piece, *granted)
            if self._patience < self._timeout:
                silent_after(sock, self._timeout)
        except (OSError, BrokenAnswer, _Declined, ValueError) as error:
            sock.close()
            self._check(watch, error)
            raise self._refusal(error) from error
        except BaseException:
            sock.close()
            raise
        return packets

    def receive(self, sock: socket.socket, packets: _Packets, buffer: memoryview, watch: Watch | None) -> bool:
        """Fill `buffer` with all bytes of the piece, checked. True if the connection may be used again.

        Raises BadChecksum, HostFailed, Refused, Abandoned; the connection is closed then.
        """
        try:
            with cancellable(watch, partial(shut_down, sock)):
                packets.receive(buffer, watch)
                reusable = _confirm(sock)
        except _ChecksumMismatch as error:
            sock.close()
            message = f"block {self._piece.block.id} fails its checksum at byte {error.begin}"
            failure = BadChecksum(f"DataNode {self._host}: {message}", host=self._host)
            failure.begin, failure.end = error.begin, error.end
            raise failure from error
        except (OSError, BrokenAnswer) as error:
            sock.close()
            self._check(watch, error)
            why, stalled = self._describe(error, self._timeout)
            raise HostFailed(why, host=self._host, stalled=stalled) from error
        except ValueError as error:
            sock.close()
            raise self._refusal(error, granted=True) from error
        except BaseException:
            sock.close()
            raise
        # One who cancelled just now may yet shut the connection down.
        return reusable and not (watch is not None and watch.cancelled)

    def _check(self, watch: Watch | None, error: Exception) -> None:
        """A connection that cancelling has shut down looks like one that broke."""
        if watch is not None and watch.cancelled:
            raise Abandoned(f"read from DataNode {self._host} was cancelled") from error

    def _refusal(self, error: Exception, *, granted: bool = False) -> Refused:
        why, stalled = self._describe(error, self._patience)
        refusal = Refused(why, host=self._host, stalled=stalled)
        refusal.answered = isinstance(error, _Declined)
        refusal.of_connection = isinstance(error, OSError)
        refusal.unreadable = isinstance(error, ValueError)
        refusal.granted = granted
        return refusal

    def _describe(self, error: Exception, waited: float) -> tuple[str, bool]:
        """The line for an error after `waited` seconds at most, and True if the host was silent."""
        why = reason(error, waited) if isinstance(error, OSError) else str(error)
        return f"DataNode {self._host}: {why}", isinstance(error, TimeoutError | BlockingIOError)


class _Packets:
    """The packets of a granted request, whose data begins at `begin` of the block.

    Raises OSError, BrokenAnswer, _ChecksumMismatch, and ValueError for what is no such answer.
    """

    def __init__(self, sock: socket.socket, piece: BlockRange, sums: PacketSums, begin: int) -> None:
        if not 0 <= piece.offset - begin < sums.chunk:
            raise ValueError("it answered other bytes than it was asked for")
        self._sock = sock
        self._piece = piece
        self._sums = sums
        self._begin = begin  # of the next packet's data

    def receive(self, buffer: memoryview, watch: Watch | None) -> None:
        """Fill `buffer` with the piece. Packets of one size come many at a time, each with the next one's head behind
        it."""
        received = 0
        head = memoryview(bytearray(HEAD))
        _fill(self._sock, [head])
        while received < len(buffer):
            size = data_length(head, self._begin, self._sums)
            skip = self._piece.offset + received - self._begin  # bytes of the same chunk before the first one
            left = len(buffer) - received
            if size <= skip:
                raise BrokenAnswer(f"its answer ended {left} bytes early")
            if size - skip - left >= self._sums.chunk:  # which is memory that no reader has accounted for
                raise ValueError("it answered more than it was asked for")
            if skip or size > left:
                whole = memoryview(bytearray(size))
                wanted = min(size - skip, left)
                head = self._take(whole, size)
                buffer[received : received + wanted] = whole[skip : skip + wanted]
                received += wanted
            else:
                number = min(max(1, min(left, STEP) // size), AT_ONCE) if size % self._sums.chunk == 0 else 1
                head = self._take(buffer[received:][: size * number], size)
                received += size * number
            if watch is not None:
                watch.progress(received)
        if data_length(head, self._begin, self._sums):
            raise ValueError("it answered more than it was asked for")

    def _take(self, data: memoryview, size: int) -> memoryview:
        """Receive the data of packets of `size` bytes, the first head of which has come. The head behind the last one.

        Several packets have whole chunks each, so that their checksums are checked as those of one.
        """
        length, number = self._sums.length(size), len(data) // size
        crcs = memoryview(bytearray(length * number))
        heads = memoryview(bytearray(HEAD * number))
        views = []
        for at in range(number):
            views += [crcs[length * at :][:length], data[size * at :][:size], heads[HEAD * at :][:HEAD]]
        _fill(self._sock, views)
        for at in range(1, number):
            if data_length(heads[HEAD * (at - 1) :], self._begin + size * at, self._sums) != size:
                raise ValueError("it sent packets of several sizes")
        if not self._sums.fit(crcs, data):
            for at in range(number):
                if not self._sums.fit(crcs[length * at :][:length], data[size * at :][:size]):
                    raise _ChecksumMismatch(self._begin + size * at, self._begin + size * (at + 1))
        self._begin += len(data)
        return heads[-HEAD:]


def _ended(sock: socket.socket) -> bool:
    """True of an idle connection once the DataNode has closed it."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def _fill(sock: socket.socket, views: list[memoryview]) -> None:
    """Receive into all of `views`, in order. Raises OSError, BrokenAnswer."""
    views = [view for view in views if view]
    missing = sum(map(len, views))
    while missing:
        count = sock.recvmsg_into(views, 0, socket.MSG_WAITALL)[0]
        if not count:
            raise BrokenAnswer(f"it broke off with {missing} bytes of a packet missing")
        missing -= count
        if not missing:
            return
        while views and count >= len(views[0]):
            count -= len(views.pop(0))
        if count:
            views[0] = views[0][count:]


def _confirm(sock: socket.socket) -> bool:
    """Tell the DataNode that all came. False where the connection has ended, which takes nothing from the bytes."""
    try:
        sock.sendall(CHECKSUM_OK)
    except OSError:
        return False
    return True


def receive_message(sock: socket.socket) -> bytes:
    """A message of Protocol Buffers with its length before it. Raises OSError, BrokenAnswer, ValueError."""
    length = shift = 0
    more = True
    while more:
        byte = sock.recv(1)
        if not byte or shift > 28:
            raise ConnectionAbortedError("it closed the connection instead of an answer")
        length |= (byte[0] & 0x7F) << shift
        shift += 7
        more = byte[0] > 0x7F
    if not 0 < length <= LONGEST:
        raise ValueError(f"a message of {length} bytes")
    message = memoryview(bytearray(length))
    _fill(sock, [message])
    return bytes(message)
