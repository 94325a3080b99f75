"""A NameNode's RPC port of a few lines on loopback, for answers that a real one cannot be told to give."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from stripefs.store.hdfs import protobuf
from stripefs.store.hdfs.protobuf import bytes_field, delimited, number_field
from tests.tools.listening import listening

__all__ = ["Call", "RpcPort", "rpc_port"]


class Call:
    """One call, and the means to answer it."""

    def __init__(self, sock: socket.socket, number: int, retry: int, method: str, message: bytes) -> None:
        self.sock = sock
        self.number = number
        self.retry = retry
        self.method = method
        self.message = message

    def answer(self, message: bytes, *, number: int | None = None) -> None:
        head = number_field(1, self.number if number is None else number) + number_field(2, 0)
        self.send(delimited(head) + delimited(message))

    def refuse(self, exception: str, message: str, *, fatal: bool = False) -> None:
        head = number_field(1, self.number) + number_field(2, 2 if fatal else 1)
        self.send(delimited(head + bytes_field(4, exception.encode()) + bytes_field(5, message.encode())))

    def send(self, frame: bytes) -> None:
        for byte in struct.pack(">I", len(frame)) + frame:  # in as many pieces as there can be
            self.sock.sendall(bytes([byte]))


class RpcPort:
    """`manners` answer the next calls; then every call is answered by `otherwise`."""

    def __init__(self, otherwise: Callable[[Call], None]) -> None:
        self.otherwise = otherwise
        self.manners: list[Callable[[Call], None]] = []
        self.calls: list[Call] = []
        self.users: list[str] = []
        self.address = ""
        self.open: list[socket.socket] = []

    def drop_connections(self) -> None:
        dropped, self.open = self.open, []  # first: a client that learns of it comes back at once
        for sock in dropped:
            sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for sock in self.open:
            sock.close()

    def serve(self, sock: socket.socket) -> None:
        self.open.append(sock)
        try:
            with sock, sock.makefile("rb") as stream:
                assert stream.read(7) == b"hrpc\x09\x00\x00"
                while head := stream.read(4):
                    self._take(sock, stream.read(struct.unpack(">I", head)[0]))
        except OSError:
            pass  # the client has gone, or the test has dropped it

    def _take(self, sock: socket.socket, frame: bytes) -> None:
        length, at = protobuf.read_varint(frame, 0)
        head: Any = dict(protobuf.fields(frame[at : at + length]))
        parts = []
        at += length
        while at < len(frame):
            length, at = protobuf.read_varint(frame, at)
            parts.append(frame[at : at + length])
            at += length
        first: Any = dict(protobuf.fields(parts[0]))
        if len(parts) == 1:  # the context of the connection
            user: Any = dict(protobuf.fields(first[2]))
            self.users.append(user[1].decode())
            return
        retry = (head[5] >> 1) ^ -(head[5] & 1)
        call = Call(sock, head[3] >> 1, retry, first[1].decode(), parts[1])
        self.calls.append(call)
        (self.manners.pop(0) if self.manners else self.otherwise)(call)


@contextmanager
def rpc_port(otherwise: Callable[[Call], None]) -> Iterator[RpcPort]:
    port = RpcPort(otherwise)
    with listening(port.serve) as port.address, closing(port):
        yield port
