"""The NameNodes by Hadoop RPC: the calls that write a file by data transfer, which WebHDFS does not have.

Source: RPC.java, RpcHeader.proto, IpcConnectionContext.proto and ClientNamenodeProtocol.proto of Hadoop 3.4. A cluster
that does not take a client's word for its name (Kerberos) is refused (CallsRefused); WebHDFS tells what it wants.

A call is one frame each way over a connection of its own thread's; idle ones are kept. A NameNode closes those after a
while: the call is sent again then under its number, for which a NameNode that has done it answers as it did.
"""

from __future__ import annotations

import itertools
import socket
import struct
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from stripefs.errors import ServiceDown, StoreError, Unsupported
from stripefs.store.hdfs import protobuf
from stripefs.store.hdfs.connection import IdlePool, connect, reason, silent_after
from stripefs.store.hdfs.namenode_failover import first_serving
from stripefs.store.hdfs.protobuf import bytes_field, delimited, number_field, signed
from stripefs.store.hdfs.wire import Replica, remote_error

__all__ = ["CallsRefused", "NameNodeRpc", "PlacedBlock"]

_T = TypeVar("_T")

_PROTOCOL = b"org.apache.hadoop.hdfs.protocol.ClientProtocol"
_PREAMBLE = b"hrpc" + bytes([9, 0, 0])  # version, service class, no authentication
_CONTEXT_CALL = -3
_FIRST_TRY = -1
_CREATE = 1  # CreateFlagProto
_LONGEST = 16 << 20  # bytes of an answer
_IDLE = 16  # connections to one NameNode that are kept


class CallsRefused(Unsupported):
    """The NameNode wants to know who we are."""


@dataclass(frozen=True, slots=True)
class PlacedBlock:
    """A block that the NameNode has made, for these DataNodes, the first of which the client writes to.

    name, token, locations: ExtendedBlockProto, TokenProto and DatanodeInfoProtos, to be passed on. storage_types and
    storage_ids: one for each DataNode, or none.
    """

    name: bytes
    token: bytes
    locations: tuple[bytes, ...]
    replicas: tuple[Replica, ...]
    storage_types: tuple[int, ...] = ()
    storage_ids: tuple[bytes, ...] = ()

    @property
    def stamp(self) -> int:
        return protobuf.field(dict(protobuf.fields(self.name)), 3, int)

    def with_length(self, length: int) -> bytes:
        """The block's name as that of one that holds `length` bytes."""
        found = dict(protobuf.fields(self.name))
        pool, number = protobuf.field(found, 1, bytes), protobuf.field(found, 2, int)
        return bytes_field(1, pool) + number_field(2, number) + number_field(3, self.stamp) + number_field(4, length)


class NameNodeRpc:
    """`addresses` are RPC addresses host:port; times in seconds. Safe to use from many threads.

    Every call raises ServiceDown when no NameNode serves, CallsRefused where it wants to know who we are, and what
    `wire.remote_error` makes of a refusal.
    """

    def __init__(self, addresses: Sequence[str], user: str, timeout: float) -> None:
        self._addresses = tuple(addresses)
        self._user = user
        self._timeout = timeout
        self._client = uuid.uuid4().bytes
        self._holder = f"stripefs-{self._client.hex()}".encode()
        """Name of the holder of our leases. Creating a file renews them; the NameNode takes files from who has done
        none of it for 20 minutes."""
        self._calls = itertools.count()
        self._active = 0
        self._idle = IdlePool[_Connection](_IDLE)

    @property
    def holder(self) -> bytes:
        """The client's name, for NameNodes and DataNodes."""
        return self._holder

    def create(self, path: str, *, mode: int, replication: int, block_size: int) -> int:
        """Make an empty file in a directory that is there, and hold its lease; its file id.

        Raises Exists, and Unsupported for a file of an erasure coded directory or an encryption zone, which is removed.
        """
        message = bytes_field(1, path.encode()) + bytes_field(2, number_field(1, mode)) + bytes_field(3, self._holder)
        message += number_field(4, _CREATE) + number_field(5, 0)
        message += number_field(6, replication) + number_field(7, block_size)
        file_id, plain = self._call("create", message, path, _created)
        if not plain:
            self._call("delete", bytes_field(1, path.encode()) + number_field(2, 0), path, bytes)
            raise Unsupported(f"{path} is encrypted or erasure coded")
        return file_id

    def add_block(
        self, path: str, file_id: int, previous: bytes, favoured: str, excluded: Sequence[bytes]
    ) -> PlacedBlock:
        """The next block of a file, `previous` is the one before, b"" for none. The DataNode `favoured` (ip:port) has
        its first replica if it can, none of `excluded` (DatanodeInfoProtos) has any."""
        message = bytes_field(1, path.encode()) + bytes_field(2, self._holder)
        message += bytes_field(3, previous) if previous else b""
        message += b"".join(bytes_field(4, each) for each in excluded)
        message += number_field(5, file_id) + bytes_field(6, favoured.encode())
        return self._call("addBlock", message, path, _placed)

    def abandon_block(self, path: str, file_id: int, block: bytes) -> None:
        message = bytes_field(1, block) + bytes_field(2, path.encode()) + bytes_field(3, self._holder)
        self._call("abandonBlock", message + number_field(4, file_id), path, bytes)

    def complete(self, path: str, file_id: int, last: bytes) -> bool:
        """The file ends with the block `last`, b"" for none. False where no DataNode has reported that yet."""
        message = bytes_field(1, path.encode()) + bytes_field(2, self._holder)
        message += (bytes_field(3, last) if last else b"") + number_field(4, file_id)
        return self._call("complete", message, path, lambda answer: bool(dict(protobuf.fields(answer)).get(1)))

    def close(self) -> None:
        self._idle.close()

    def _call(self, method: str, message: bytes, where: str, read: Callable[[bytes], _T]) -> _T:
        """The answer of the first NameNode that serves; `read` raises ValueError for one that is none."""
        number = next(self._calls)

        def ask(address: str) -> _T:
            try:
                return read(self._ask(address, number, method, message, where))
            except ValueError as error:
                raise StoreError(f"NameNode {address} answered {method} badly: {error}") from error

        self._active, answer = first_serving(self._addresses, self._active, ask)
        return answer

    def _ask(self, address: str, number: int, method: str, message: bytes, where: str) -> bytes:
        connection = self._idle.take(address)
        tries = itertools.count(_FIRST_TRY)
        while True:
            reused = connection is not None
            try:
                if connection is None:
                    connection = _Connection(address, self._user, self._client, self._timeout)
                status, answer = connection.ask(number, next(tries), method, message)
            except (OSError, ValueError) as error:
                if connection is not None:
                    connection.close()
                if not isinstance(error, OSError):
                    raise
                if reused and not isinstance(error, TimeoutError | BlockingIOError):
                    connection = None
                    continue
                raise ServiceDown(f"NameNode {address}: {reason(error, self._timeout)}") from error
            break
        if status.fatal:
            connection.close()
            raise CallsRefused(f"NameNode {address} takes no calls of ours: {status.message}")
        self._idle.keep(address, connection)
        if status.exception:
            raise remote_error(status.exception, status.message, where)
        return answer


@dataclass(frozen=True, slots=True)
class _Status:
    """Head of an answer. exception: the Java class of a refusal, "" for none."""

    exception: str = ""
    message: str = ""
    fatal: bool = False


@dataclass(slots=True)
class _Connection:
    """A connection to a NameNode, for one call at a time. Raises OSError, ValueError for what is no answer."""

    address: str
    user: str
    client: bytes
    timeout: float
    _sock: socket.socket = field(init=False)

    def __post_init__(self) -> None:
        self._sock = connect(self.address, self.timeout)
        silent_after(self._sock, self.timeout)
        context = bytes_field(2, bytes_field(1, self.user.encode())) + bytes_field(3, _PROTOCOL)
        try:
            self._sock.sendall(_PREAMBLE + _frame(self._head(_CONTEXT_CALL, _FIRST_TRY), context))
        except BaseException:
            self._sock.close()
            raise

    def ask(self, number: int, retry: int, method: str, message: bytes) -> tuple[_Status, bytes]:
        request = bytes_field(1, method.encode()) + bytes_field(2, _PROTOCOL) + number_field(3, 1)
        self._sock.sendall(_frame(self._head(number, retry), request, message))
        length = struct.unpack(">I", self._receive(4))[0]
        if length > _LONGEST:
            raise ValueError(f"an answer of {length} bytes")
        frame = self._receive(length)
        head, at = _message(frame, 0)
        found = dict(protobuf.fields(head))
        status = found.get(2, 0)
        if status:
            exception, why = (protobuf.field(found, each, bytes, b"").decode("utf-8", "replace") for each in (4, 5))
            return _Status(exception or "IOException", why, fatal=status == 2), b""
        if protobuf.field(found, 1, int) != number:
            raise ValueError("an answer to another call")
        return _Status(), _message(frame, at)[0]

    def close(self) -> None:
        self._sock.close()

    def _head(self, number: int, retry: int) -> bytes:
        """RpcRequestHeaderProto of a call by Protocol Buffers."""
        head = number_field(1, 2) + number_field(2, 0) + number_field(3, signed(number))
        return head + bytes_field(4, self.client) + number_field(5, signed(retry))

    def _receive(self, length: int) -> bytes:
        data = bytearray()
        while len(data) < length:
            more = self._sock.recv(length - len(data), socket.MSG_WAITALL)
            if not more:
                raise ConnectionAbortedError("it closed the connection instead of an answer")
            data += more
        return bytes(data)


def _frame(*messages: bytes) -> bytes:
    body = b"".join(map(delimited, messages))
    return struct.pack(">I", len(body)) + body


def _message(frame: bytes, at: int) -> tuple[bytes, int]:
    """The message with its length before it that begins there, and where it ends."""
    length, at = protobuf.read_varint(frame, at)
    if at + length > len(frame):
        raise ValueError("an answer that ends within a message")
    return frame[at : at + length], at + length


def _inner(message: bytes, number: int) -> bytes:
    return protobuf.field(dict(protobuf.fields(message)), number, bytes)


def _created(answer: bytes) -> tuple[int, bool]:
    """CreateResponseProto: the file's id, and False for one that is encrypted or erasure coded."""
    status = dict(protobuf.fields(_inner(answer, 1)))
    return protobuf.field(status, 13, int), 15 not in status and 17 not in status


def _placed(answer: bytes) -> PlacedBlock:
    """AddBlockResponseProto."""
    single: dict[int, int | bytes] = {}
    many: dict[int, list[int | bytes]] = {3: [], 7: [], 8: []}
    for number, value in protobuf.fields(_inner(answer, 1)):
        if number in many:
            many[number].append(value)
        else:
            single[number] = value
    locations = tuple(each for each in many[3] if isinstance(each, bytes))
    if not locations:
        raise ValueError("a block without DataNodes")
    types = tuple(each for each in many[7] if isinstance(each, int))
    ids = tuple(each for each in many[8] if isinstance(each, bytes))
    told = len(types) == len(ids) == len(locations)
    return PlacedBlock(
        protobuf.field(single, 1, bytes),
        protobuf.field(single, 5, bytes, b""),
        locations,
        tuple(map(_replica, locations)),
        types if told else (),
        ids if told else (),
    )


def _replica(location: bytes) -> Replica:
    """DatanodeInfoProto."""
    found = dict(protobuf.fields(_inner(location, 1)))
    ip, hostname = (protobuf.field(found, each, bytes).decode() for each in (1, 2))
    name = f"[{ip}]" if ":" in ip else ip
    return Replica(f"{name}:{protobuf.field(found, 4, int)}", ip, hostname, protobuf.field(found, 5, int, 0))
