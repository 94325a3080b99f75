"""Blocks read from one DataNode by HDFS's data transfer protocol, checked against the DataNode's checksums.

This is how `hdfs dfs -cat` and hdfs-native read. Against WebHDFS it saves a DataNode three quarters of its processor
time, since that sends its files as they are, and the NameNode two questions a request, since a block's name is enough.
Against hdfs-native it leaves the choice of the replica to the caller, and bytes come into the buffer where they stay.

A DataNode that does not grant a read in this way (`Refused`) may still serve it by WebHDFS, where it finds blocks that
were moved, and says what is wrong with a file. Where no DataNode grants any, since a firewall or SASL is between, data
transfer is left alone for a while (`DataTransfer.refused`).
"""

from __future__ import annotations

import select
import socket
import threading
import time

from stripefs.errors import Abandoned, HostFailed
from stripefs.retry import Backoff
from stripefs.store.allocator import aligned
from stripefs.store.base import Watch
from stripefs.store.hdfs.datanode import cancellable, silent_after
from stripefs.store.hdfs.probe import connect, reason
from stripefs.store.hdfs.transfer_wire import (
    CHECKSUM_OK,
    HEAD,
    LONGEST,
    PacketSums,
    Piece,
    data_length,
    read_answer,
    read_request,
)

__all__ = ["DataTransfer", "Refused"]

REUSE = 3.0
"""Seconds for which a connection is kept: a DataNode closes it after 4 (dfs.datanode.socket.reuse.keepalive)."""

STEP = 1 << 20
"""Bytes that one system call receives at most, and between two reports of progress."""

UNTRIED = 1.0
"""Seconds for which an answer is waited for as long as no read was ever granted: a firewall may drop what is sent."""

REFUSALS = 3
"""Refusals in a row after which no read is tried in this way for a while."""

PAUSE, LONGEST_PAUSE = 60.0, 3600.0
"""Seconds of the first such while, and of the longest one."""


AT_ONCE = 256
"""Packets that one system call receives at most: it takes 1,024 buffers, and a packet has three."""


class Refused(HostFailed):
    """The DataNode does not grant this read; nothing is known of its data."""


class DataTransfer:
    """Reads by this protocol of one store. Safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connections = _Connections()
        self._granted = False
        self._refusals = 0
        self._pause = Backoff(PAUSE, LONGEST_PAUSE)
        self._reason = ""

    def refused(self) -> str:
        """The reason for which no read is tried now, "" for none."""
        return self._reason if self._refusals >= REFUSALS and self._pause.paused(time.monotonic()) else ""

    def read(self, piece: Piece, address: str, host: str, watch: Watch | None, timeout: float) -> memoryview:
        """The bytes of `piece`, from the DataNode whose transfer port is at `address`. `host`: its name, for errors.
        `timeout`: seconds without a byte after which it counts as silent.

        Raises Refused, HostFailed for everything else that speaks against the host, Abandoned.
        """
        request = _Request(piece, host, timeout, timeout if self._granted else min(timeout, UNTRIED))
        try:
            sock, packets = self._granted_by(request, address, watch)
        except Refused as error:
            self._note_refusal(error)
            if error.stalled and self._granted:  # the host is silent: asking it in another way is of no use
                raise HostFailed(error.message, host=host, stalled=True) from error
            raise
        self._note_granted()
        data = request.receive(sock, packets, watch)
        self._connections.keep(address, sock)
        return data

    def _granted_by(self, request: _Request, address: str, watch: Watch | None) -> tuple[socket.socket, _Packets]:
        kept = self._connections.take(address)
        if kept is not None:
            try:
                return kept, request.ask(kept, watch)
            except Refused as error:
                if not isinstance(error.__cause__, ConnectionError):  # it has only ended meanwhile
                    raise
        sock = request.connect(address)
        return sock, request.ask(sock, watch)

    def close(self) -> None:
        self._connections.close()

    def _note_granted(self) -> None:
        with self._lock:
            self._granted = True
            self._refusals = 0
            self._pause.worked()

    def _note_refusal(self, error: Refused) -> None:
        with self._lock:
            self._refusals += 1
            self._reason = error.message
            now = time.monotonic()
            if self._refusals >= REFUSALS and not self._pause.paused(now):
                self._pause.failed(now)


class _Connections:
    """Idle connections to DataNodes. Safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[str, list[tuple[float, socket.socket]]] = {}
        self._closed = False

    def take(self, address: str) -> socket.socket | None:
        """One that the DataNode has not closed, None where there is none."""
        now = time.monotonic()
        while True:
            with self._lock:
                idle = self._idle.get(address)
                if not idle:
                    return None
                since, sock = idle.pop()
            if now - since < REUSE and not _readable(sock):
                return sock
            sock.close()

    def keep(self, address: str, sock: socket.socket) -> None:
        now = time.monotonic()
        with self._lock:
            if self._closed:
                expired = [sock]
            else:
                idle = self._idle.setdefault(address, [])
                expired = [one for since, one in idle if now - since >= REUSE]
                idle[:] = [(since, one) for since, one in idle if now - since < REUSE] + [(now, sock)]
        for one in expired:
            one.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle = [sock for each in self._idle.values() for _, sock in each]
            self._idle.clear()
        for sock in idle:
            sock.close()


class _BrokenAnswer(Exception):
    """The DataNode has not answered what it said it would."""


class _Request:
    """A read of one piece from one DataNode. Seconds without a byte: `patience` until it has answered, then
    `timeout`."""

    def __init__(self, piece: Piece, host: str, timeout: float, patience: float) -> None:
        self._piece = piece
        self._host = host
        self._timeout = timeout
        self._patience = patience

    def connect(self, address: str) -> socket.socket:
        """A new connection. Raises Refused."""
        try:
            return connect(address, self._patience)
        except OSError as error:
            raise self._failure(Refused, error) from error

    def ask(self, sock: socket.socket, watch: Watch | None) -> _Packets:
        """Packets that the DataNode has granted. Raises Refused, Abandoned; the connection is closed then."""
        try:
            silent_after(sock, self._patience)
            with cancellable(sock, watch):
                sock.sendall(read_request(self._piece))
                granted = read_answer(_message(sock))
            if isinstance(granted, str):
                raise _BrokenAnswer(granted)
            return _Packets(sock, self._piece, *granted)
        except (OSError, _BrokenAnswer, ValueError) as error:
            sock.close()
            self._check(watch, error)
            raise self._failure(Refused, error) from error
        except BaseException:
            sock.close()
            raise

    def receive(self, sock: socket.socket, packets: _Packets, watch: Watch | None) -> memoryview:
        """All bytes of the piece, checked. Raises HostFailed, Refused, Abandoned; the connection is closed then."""
        try:
            if self._patience != self._timeout:
                silent_after(sock, self._timeout)
                self._patience = self._timeout
            with cancellable(sock, watch):
                data = packets.receive(watch)
                sock.sendall(CHECKSUM_OK)
            return data
        except (OSError, _BrokenAnswer, ValueError) as error:
            sock.close()
            self._check(watch, error)
            raise self._failure(Refused if isinstance(error, ValueError) else HostFailed, error) from error
        except BaseException:
            sock.close()
            raise

    def _check(self, watch: Watch | None, error: Exception) -> None:
        """A connection that cancelling has shut down looks like one that broke."""
        if watch is not None and watch.cancelled:
            raise Abandoned(f"read from DataNode {self._host} was cancelled") from error

    def _failure(self, kind: type[HostFailed], error: Exception) -> HostFailed:
        stalled = isinstance(error, TimeoutError | BlockingIOError)
        why = reason(error, self._patience) if isinstance(error, OSError) else str(error)
        return kind(f"DataNode {self._host}: {why}", host=self._host, stalled=stalled)


class _Packets:
    """The packets of a granted request, whose data begins at `begin` of the block. Raises OSError, _BrokenAnswer, and
    ValueError for what is no such answer."""

    def __init__(self, sock: socket.socket, piece: Piece, sums: PacketSums, begin: int) -> None:
        if not 0 <= piece.offset - begin < sums.chunk:
            raise ValueError("it answered other bytes than it was asked for")
        self._sock = sock
        self._piece = piece
        self._sums = sums
        self._begin = begin  # of the next packet's data

    def receive(self, watch: Watch | None) -> memoryview:
        """The bytes of the piece. Packets of one size come many at a time, each with the next one's head behind it."""
        buffer = aligned(self._piece.length)  # so that a cache on disk takes it as it is
        received = 0
        head = memoryview(bytearray(HEAD))
        _fill(self._sock, [head])
        while received < len(buffer):
            size = data_length(head, self._begin, self._sums)
            skip = self._piece.offset + received - self._begin  # bytes of the same chunk before the first one
            left = len(buffer) - received
            if size <= skip:
                raise _BrokenAnswer(f"its answer ended {left} bytes early")
            if skip or size > left:
                whole = memoryview(bytearray(size))
                wanted = min(size - skip, left)
                head = self._take([whole])
                buffer[received : received + wanted] = whole[skip : skip + wanted]
                received += wanted
            else:
                number = min(max(1, min(left, STEP) // size), AT_ONCE)
                head = self._take([buffer[received + size * at :][:size] for at in range(number)])
                received += size * number
            if watch is not None:
                watch.progress(received)
        if data_length(head, self._begin, self._sums):
            raise ValueError("it answered more than it was asked for")
        return buffer

    def _take(self, parts: list[memoryview]) -> memoryview:
        """Receive the data of packets of one size, the first head of which has come. The head behind the last one."""
        size = len(parts[0])
        length = self._sums.length(size)
        crcs = memoryview(bytearray(length * len(parts)))
        heads = memoryview(bytearray(HEAD * len(parts)))
        views = []
        for number, part in enumerate(parts):
            views += [crcs[length * number :][:length], part, heads[HEAD * number :][:HEAD]]
        _fill(self._sock, views)
        for number, part in enumerate(parts):
            if not self._sums.fit(crcs[length * number :][:length], part):
                raise _BrokenAnswer(f"block {self._piece.block.id} fails its checksum at byte {self._begin}")
            self._begin += size
            head = heads[HEAD * number :][:HEAD]
            if number < len(parts) - 1 and data_length(head, self._begin, self._sums) != size:
                raise ValueError("it sent packets of several sizes")
        return head


def _readable(sock: socket.socket) -> bool:
    """True of an idle connection once the DataNode has closed it."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def _fill(sock: socket.socket, views: list[memoryview]) -> None:
    """Receive into all of `views`, in order. Raises OSError, _BrokenAnswer."""
    views = [view for view in views if view]
    missing = sum(map(len, views))
    while missing:
        count = sock.recvmsg_into(views, 0, socket.MSG_WAITALL)[0]
        if not count:
            raise _BrokenAnswer(f"it broke off with {missing} bytes of a packet missing")
        missing -= count
        while views and count >= len(views[0]):
            count -= len(views.pop(0))
        if count:
            views[0] = views[0][count:]


def _message(sock: socket.socket) -> bytes:
    """A message of Protocol Buffers with its length before it. Raises OSError, _BrokenAnswer, ValueError."""
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
