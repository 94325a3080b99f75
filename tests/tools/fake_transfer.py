"""A DataNode's transfer port of a few lines on loopback, for the faults that a real one cannot be told to show."""

from __future__ import annotations

import io
import socket
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import crc32c

from stripefs.store.hdfs import protobuf
from stripefs.store.hdfs.protobuf import bytes_field, delimited, number_field
from tests.support.waiting import eventually
from tests.tools.listening import listening

__all__ = ["Manner", "Talk", "TransferPort", "read_delimited", "transfer_port"]


class Talk:
    """One request for a block's bytes, and the means to answer it well or badly."""

    def __init__(
        self, port: TransferPort, sock: socket.socket, stream: io.BufferedReader, offset: int, length: int
    ) -> None:
        self.port = port
        self.sock = sock
        self._stream = stream
        self.offset = offset
        self.length = length
        self.begin = offset - offset % port.chunk
        self.end = min(-(-(offset + length) // port.chunk) * port.chunk, len(port.data))

    def grant(self, *, begin: int | None = None) -> None:
        checksum = number_field(1, self.port.kind) + number_field(2, self.port.chunk)
        info = bytes_field(1, checksum) + number_field(2, self.begin if begin is None else begin)
        self.say(number_field(1, 0) + bytes_field(4, info))

    def refuse(self, status: int, message: str = "") -> None:
        self.say(number_field(1, status) + (bytes_field(5, message.encode()) if message else b""))

    def reset(self) -> None:
        """Close the connection so that the peer sees a reset."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._stream.close()
        self.sock.close()

    def say(self, message: bytes) -> None:
        self.sock.sendall(delimited(message))

    def packets(self) -> list[bytes]:
        """All packets of the answer, the empty one behind them included."""
        step = self.port.packet
        found = [
            self.packet(at, self.port.data[at : min(at + step, self.end)]) for at in range(self.begin, self.end, step)
        ]
        return [*found, self.packet(self.end, b"")]

    def packet(self, at: int, data: bytes) -> bytes:
        crc: Callable[[bytes], int] = zlib.crc32 if self.port.kind == 1 else crc32c.crc32c
        chunks = [data[k : k + self.port.chunk] for k in range(0, len(data), self.port.chunk)]
        crcs = b"".join(struct.pack(">I", crc(chunk)) for chunk in chunks)
        header = struct.pack("<BqBqB?Bi", 0x09, at, 0x11, 7, 0x18, not data, 0x25, len(data))
        return struct.pack(">iH", 4 + len(crcs) + len(data), len(header)) + header + crcs + data


Manner = Callable[[Talk], None]


def well(talk: Talk) -> None:
    talk.grant()
    talk.sock.sendall(b"".join(talk.packets()))


class TransferPort:
    """Serves `data` as the only block there is. `manners` are those of the next requests; then all are served well."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.kind = 2
        self.chunk = 512
        self.packet = 64 << 10
        self.manners: list[Manner] = []
        self.asked: list[tuple[int, int]] = []
        self.connections = 0
        self.confirmed = 0
        self.address = ""
        self.open: list[socket.socket] = []
        self._over = threading.Event()

    def hang(self) -> None:
        self._over.wait(30)

    def drop_connections(self) -> None:
        """Close what is open, as a DataNode does after a while."""
        for sock in self.open:
            sock.shutdown(socket.SHUT_RDWR)
        eventually(lambda: not self.open, "the end of the connections")

    def close(self) -> None:
        self._over.set()
        for sock in list(self.open):
            sock.close()

    def serve(self, sock: socket.socket) -> None:
        self.connections += 1
        self.open.append(sock)
        try:
            stream = sock.makefile("rb")
            while head := stream.read(3):
                assert head == struct.pack(">HB", 28, 81)
                operation = _fields(read_delimited(stream))
                header = _fields(_fields(operation[1])[1])
                assert _fields(header[1])[1] == b"pool"
                talk = Talk(self, sock, stream, operation[2], operation[3])
                self.asked.append((talk.offset, talk.length))
                manner = self.manners.pop(0) if self.manners else well
                manner(talk)
                if manner is not well:
                    return
                self.confirmed += stream.read(3) == b"\x02\x08\x06"
        except OSError:
            pass
        finally:
            self.open.remove(sock)
            sock.close()


@contextmanager
def transfer_port(data: bytes) -> Iterator[TransferPort]:
    port = TransferPort(data)
    with listening(port.serve) as port.address, closing(port):
        yield port


def read_delimited(stream: io.BufferedReader) -> bytes:
    """The next message of a stream, behind its length."""
    head = b""
    while not head or head[-1] > 0x7F:
        head += (byte := stream.read(1))
        assert byte, "the client has gone"
    return stream.read(protobuf.read_varint(head, 0)[0])


def _fields(message: bytes) -> dict[int, Any]:
    return dict(protobuf.fields(message))
