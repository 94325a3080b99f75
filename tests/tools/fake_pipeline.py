"""DataNodes that blocks are written to, and a NameNode that places them, of a few lines each: for faults on demand."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import crc32c

from stripefs.errors import Transient
from stripefs.store.hdfs import protobuf
from stripefs.store.hdfs.namenode_rpc import PlacedBlock
from stripefs.store.hdfs.protobuf import bytes_field, delimited, number_field, signed
from stripefs.store.hdfs.wire import Replica
from tests.tools.fake_transfer import read_delimited
from tests.tools.listening import listening

__all__ = ["BlockPort", "FakePlacer", "Writing", "block_port", "well"]

_LENGTHS = struct.Struct(">iH")
_HEADER = struct.Struct("<BqBqB?Bi")


class Writing:
    """One block that a client writes, and the means to take it well or badly."""

    def __init__(self, port: BlockPort, sock: socket.socket, block: int, replicas: int, chunk: int) -> None:
        self.port = port
        self.sock = sock
        self.block = block
        self.replicas = replicas
        self.chunk = chunk
        self.data = bytearray()
        self._stream = sock.makefile("rb")

    def accept(self, status: int = 0, first_bad: str = "", message: str = "") -> None:
        answer = number_field(1, status) + bytes_field(2, first_bad.encode())
        self.sock.sendall(delimited(answer + (bytes_field(5, message.encode()) if message else b"")))

    def packet(self) -> tuple[int, bytes] | None:
        """The next packet's number and data, checked; None where the client has gone."""
        head = self._stream.read(_LENGTHS.size + _HEADER.size)
        if len(head) < _LENGTHS.size + _HEADER.size:
            return None
        whole, length = _LENGTHS.unpack_from(head)
        _, offset, _, number, _, last, _, size = _HEADER.unpack_from(head, _LENGTHS.size)
        assert length == _HEADER.size
        assert last == (not size)
        assert offset == len(self.data)
        sums = self._stream.read(whole - 4 - size)
        data = self._stream.read(size)
        if len(data) < size:
            return None
        chunks = [data[at : at + self.chunk] for at in range(0, size, self.chunk)]
        assert sums == b"".join(struct.pack(">I", crc32c.crc32c(chunk)) for chunk in chunks)
        self.data += data
        return number, data

    def acknowledge(self, number: int, failed: int | None = None) -> None:
        replies = b"".join(number_field(2, int(at == failed)) for at in range(self.replicas))
        self.sock.sendall(delimited(number_field(1, signed(number)) + replies))

    def take_all(self) -> None:
        while (packet := self.packet()) is not None:
            self.acknowledge(-1)  # a sign of life
            self.acknowledge(packet[0])
            if not packet[1]:
                self.port.blocks[self.block] = bytes(self.data)
                return

    def close(self) -> None:
        self._stream.close()
        self.sock.close()


Manner = Callable[[Writing], None]


def well(writing: Writing) -> None:
    writing.accept()
    writing.take_all()


class BlockPort:
    """Takes blocks. `manners` are those of the next ones; then all are taken well.

    blocks: bytes by number. chunks: bytes of a checksum's chunk, of each block that was asked for.
    """

    def __init__(self) -> None:
        self.blocks: dict[int, bytes] = {}
        self.chunks: list[int] = []
        self.manners: list[Manner] = []
        self.address = ""
        self.errors: list[Exception] = []
        self._over = threading.Event()
        self._open: list[Writing] = []

    def hang(self) -> None:
        self._over.wait(30)

    def serve(self, sock: socket.socket) -> None:
        with sock.makefile("rb") as stream:
            assert stream.read(3) == struct.pack(">HB", 28, 80)
            operation = read_delimited(stream)
        onward = sum(number == 2 for number, _ in protobuf.fields(operation))
        found: Any = dict(protobuf.fields(operation))
        assert found[5] == onward + 1
        block: Any = dict(protobuf.fields(found[1]))
        block = dict(protobuf.fields(block[1]))
        name: Any = dict(protobuf.fields(block[1]))
        checksum: Any = dict(protobuf.fields(found[9]))
        self.chunks.append(checksum[2])
        writing = Writing(self, sock, name[2], onward + 1, checksum[2])
        self._open.append(writing)
        manner = self.manners.pop(0) if self.manners else well
        try:
            manner(writing)
        except OSError:
            pass
        except Exception as error:  # noqa: BLE001  the test shows it
            if not self._over.is_set():  # else it is that of a stream which the test's end has closed
                self.errors.append(error)
        finally:
            writing.close()

    def close(self) -> None:
        self._over.set()
        for writing in self._open:
            writing.close()


@contextmanager
def block_port() -> Iterator[BlockPort]:
    port = BlockPort()
    with listening(port.serve) as port.address, closing(port):
        yield port
    if port.errors:
        raise port.errors[0]


class FakePlacer:
    """The part of `NameNodeRpc` that a sink asks. `names`: DataNodes of the next block, but for those excluded.

    pending: answers that come before the wanted one to `complete` and, for every block but the first, `add_block`.
    """

    holder = b"somebody"

    def __init__(self, names: Sequence[str], pending: int = 0) -> None:
        self.names = list(names)
        self.calls: list[str] = []
        self.completed: list[int] | None = None
        self._pending = pending
        self._waiting = pending
        self._blocks: list[int] = []

    def create(self, path: str, *, mode: int, replication: int, block_size: int) -> int:
        self.calls.append("create")
        return 7

    def add_block(
        self, path: str, file_id: int, previous: bytes, favoured: str, excluded: Sequence[bytes]
    ) -> PlacedBlock:
        self.calls.append("add")
        assert file_id == 7
        assert bool(previous) == bool(self._blocks)
        if previous and self._waiting:
            self._waiting -= 1
            raise Transient("not replicated yet")
        self._waiting = self._pending
        names = [name for name in self.names if name.encode() not in excluded]
        number = 1000 + len(self.calls)
        self._blocks.append(number)
        name = bytes_field(1, b"pool") + number_field(2, number) + number_field(3, 1) + number_field(4, 0)
        replicas = tuple(Replica(each, each.partition(":")[0], "", 0) for each in names)
        return PlacedBlock(name, b"", tuple(each.encode() for each in names), replicas)

    def abandon_block(self, path: str, file_id: int, block: bytes) -> None:
        self.calls.append("abandon")
        self._blocks.pop()

    def complete(self, path: str, file_id: int, last: bytes) -> bool:
        self.calls.append("complete")
        if self._waiting:
            self._waiting -= 1
            return False
        self.completed = list(self._blocks)
        return True

    def close(self) -> None: ...
