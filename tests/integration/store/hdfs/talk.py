"""A DataNode that takes files in a manner of its own, and what a sink asks of the NameNode about it."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator

from stripefs.errors import NotFound
from stripefs.store.base import Kind, Status
from stripefs.store.hdfs.datanode_write import DataNodeSink

MIB = 1 << 20
CONNECTIONS = 3
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
CREATED = b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Conversation:
    """A fake DataNode's end of one connection."""

    def __init__(self, sock: socket.socket, over: threading.Event) -> None:
        self.sock = sock
        self.received = b""
        self._over = over

    def head(self) -> str:
        while b"\r\n\r\n" not in self.received:
            self._more()
        head, _, self.received = self.received.partition(b"\r\n\r\n")
        return head.decode()

    def body(self, head: str) -> bytes:
        """All of it, by whichever of the two ways the head announces."""
        if "chunked" not in head:
            length = int(head.partition("Content-Length: ")[2].split("\r\n")[0])
            while len(self.received) < length:
                self._more()
            return self.received
        whole = b""
        while True:
            while b"\r\n" not in self.received:
                self._more()
            size, _, self.received = self.received.partition(b"\r\n")
            while len(self.received) < int(size, 16) + 2:
                self._more()
            if not int(size, 16):
                return whole
            whole += self.received[: int(size, 16)]
            self.received = self.received[int(size, 16) + 2 :]

    def say(self, data: bytes) -> None:
        self.sock.sendall(data)

    def refuse(self, exception: str, message: str) -> None:
        document = {"RemoteException": {"exception": exception.rpartition(".")[2], "message": message}}
        body = json.dumps(document | {"javaClassName": exception}).encode()
        self.say(b"HTTP/1.1 403 Forbidden\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(body), body))

    def take(self) -> None:
        """A file, as a DataNode should."""
        head = self.head()
        self.say(CONTINUE)
        self.body(head)
        self.say(CREATED)

    def be_silent(self) -> None:
        """Until the test is over."""
        self._over.wait(10)

    def until_the_end(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                self._more()

    def _more(self) -> None:
        more = self.sock.recv(1 << 20)
        if not more:
            raise EOFError
        self.received += more


Manner = Callable[[Conversation], None]


OTHER = "other:9866"


class Doubts:
    """A fake of `PipelineHealth`. blocks: of the file, one after the other, the last one again and again."""

    def __init__(self) -> None:
        self.any_silent = False
        self.blocks: list[tuple[int, tuple[str, ...]]] = [(0, ())]
        self.down: list[str] = []
        """Known to be silent."""
        self.dead: list[str] = []
        """Those that give no sign of life when they are asked."""
        self.asked = 0
        self.aside: list[socket.socket] = []
        self.on_asked: Callable[[int], None] = lambda _: None

    def of(self, path: str) -> tuple[int, tuple[str, ...]]:
        assert path == "/file"
        return self.blocks.pop(0) if len(self.blocks) > 1 else self.blocks[0]

    def silent(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if name in self.down]

    def without_sign(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if name in self.dead]

    def silent_hosts(self, path: str, first: str) -> list[str]:
        assert (path, first) == ("/file", "dn:9866")
        self.asked += 1
        self.on_asked(self.asked)
        return self.down

    def close_later(self, sock: socket.socket) -> None:
        self.aside.append(sock)


class Place:
    """A DataNode of one `manner` that takes so many connections, and a NameNode of two functions."""

    def __init__(self, manner: Manner, connections: int) -> None:
        self.pipelines = Doubts()
        self.stands = -1  # bytes of the file, as the NameNode tells
        self.discarded: list[int] = []
        self._over = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._serve, args=(manner,)) for _ in range(connections)]
        for thread in self._threads:
            thread.start()

    def sink(self, length: int | None = None, block_size: int = 0) -> DataNodeSink:
        return self.sink_at(f"127.0.0.1:{self._listener.getsockname()[1]}", length, block_size)

    def sink_at(self, address: str, length: int | None = None, block_size: int = 0) -> DataNodeSink:
        return DataNodeSink(
            address,
            "/webhdfs/v1/file?op=CREATE",
            "/file",
            name="dn:9866",
            timeout=0.3,
            length=length,
            block_size=block_size,
            pipelines=self.pipelines,  # type: ignore[arg-type]  # the part of `PipelineHealth` that a writer calls
            confirm=self._confirm,
            discard=self.discarded.append,
        )

    def close(self) -> None:
        self._over.set()
        for sock in self.pipelines.aside:
            sock.close()
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def _confirm(self) -> Status:
        if self.stands < 0:
            raise NotFound("/file")
        return Status(b"file", Kind.FILE, self.stands)

    def _serve(self, manner: Manner) -> None:
        with contextlib.suppress(OSError, EOFError):
            sock, _ = self._listener.accept()
            sock.settimeout(10)  # for a test that fails and lets nothing go
            with sock:
                manner(Conversation(sock, self._over))


@contextlib.contextmanager
def place(manner: Manner, connections: int = 1) -> Iterator[Place]:
    with contextlib.closing(Place(manner, connections)) as running:
        yield running


def write_on(sink: DataNodeSink) -> None:
    for _ in range(10_000):
        sink.write(bytes(MIB))


def write_and_close(sink: DataNodeSink, size: int) -> None:
    sink.write(bytes(size))
    sink.close()
