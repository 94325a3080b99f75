"""A DataNode that takes a file refuses, falls silent or goes away, at every point of the conversation."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from stripefs.errors import Exists, HostFailed, NotFound, QuotaExceeded, ServiceDown, StoreError
from stripefs.store.base import Kind, Status
from stripefs.store.hdfs import sink as module
from stripefs.store.hdfs.sink import PlacedSink
from tests.store.hdfs_fakes import closed_port
from tests.store.material import content

MIB = 1 << 20
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
CREATED = b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Conversation:
    """What a fake DataNode does with one connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.received = b""

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


class Place:
    """A DataNode of one `manner`, and a NameNode of two functions."""

    def __init__(self, manner: Manner) -> None:
        self.stands = -1  # bytes of the file, as the NameNode tells
        self.discarded: list[int] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, args=(manner,))
        self._thread.start()

    def sink(self, length: int | None = None) -> PlacedSink:
        return PlacedSink(
            f"127.0.0.1:{self._listener.getsockname()[1]}",
            "/webhdfs/v1/file?op=CREATE",
            "/file",
            name="dn:9866",
            timeout=0.3,
            length=length,
            confirm=self._confirm,
            discard=self.discarded.append,
        )

    def close(self) -> None:
        self._listener.close()
        self._thread.join()

    def _confirm(self) -> Status:
        if self.stands < 0:
            raise NotFound("/file")
        return Status(b"file", Kind.FILE, self.stands)

    def _serve(self, manner: Manner) -> None:
        with contextlib.suppress(OSError, EOFError):
            sock, _ = self._listener.accept()
            sock.settimeout(10)  # for a test that fails and lets nothing go
            with sock:
                manner(Conversation(sock))


@contextlib.contextmanager
def place(manner: Manner) -> Iterator[Place]:
    with contextlib.closing(Place(manner)) as running:
        yield running


def write_on(sink: PlacedSink) -> None:
    for _ in range(10_000):
        sink.write(bytes(MIB))


def write_and_close(sink: PlacedSink, size: int) -> None:
    sink.write(bytes(size))
    sink.close()


@pytest.mark.parametrize("told", [True, False])
def test_the_body_arrives_as_it_was_written(told: bool) -> None:
    heads, bodies = [], []

    def good(talk: Conversation) -> None:
        heads.append(talk.head())
        talk.say(CONTINUE)
        bodies.append(talk.body(heads[0]))
        talk.say(CREATED)

    data = content(5 * MIB)
    with place(good) as running:
        running.stands = len(data)
        sink = running.sink(len(data) if told else None)
        for start in range(0, len(data), 777_777):
            sink.write(memoryview(data)[start : start + 777_777])
            sink.write(b"")
        assert sink.close().length == len(data)
        sink.abort()
    assert bodies == [data]
    assert ("Content-Length" in heads[0]) == told
    assert running.discarded == []


def test_a_refusal_in_the_middle_is_told_and_what_stands_is_removed() -> None:
    def full(talk: Conversation) -> None:
        talk.head()
        talk.say(CONTINUE)
        talk.refuse("org.apache.hadoop.hdfs.protocol.DSQuotaExceededException", "The DiskSpace quota of /q\n\tat a.b")
        talk.until_the_end()

    with place(full) as running:
        sink = running.sink()
        with pytest.raises(QuotaExceeded, match=r"/file: The DiskSpace quota of /q$"):
            write_on(sink)
        sink.abort()
        assert len(running.discarded) == 1


@pytest.mark.parametrize("size", [1, 8 * MIB])
def test_a_file_that_exists_is_not_taken_away(size: int) -> None:
    def taken(talk: Conversation) -> None:
        talk.head()
        talk.say(CONTINUE)
        talk.refuse("org.apache.hadoop.fs.FileAlreadyExistsException", "/file for client already exists")
        talk.until_the_end()

    with place(taken) as running:
        sink = running.sink()
        with pytest.raises(Exists):
            write_and_close(sink, size)
        sink.abort()
        assert running.discarded == []
        with pytest.raises(StoreError, match="exists"):
            sink.write(b"more")


def test_a_file_that_was_refused_and_is_given_up_unasked() -> None:
    def taken(talk: Conversation) -> None:
        talk.head()
        talk.refuse("org.apache.hadoop.fs.FileAlreadyExistsException", "/file for client already exists")

    with place(taken) as running:
        running.sink().abort()
        assert running.discarded == []


def test_an_abort_waits_until_the_datanode_has_let_go() -> None:
    let_go = threading.Event()

    def careful(talk: Conversation) -> None:
        talk.until_the_end()
        let_go.set()

    with place(careful) as running:
        sink = running.sink()
        sink.write(b"some")
        sink.abort()
        assert let_go.is_set()
        assert running.discarded == [4]
        with pytest.raises(StoreError):
            sink.close()


@pytest.mark.parametrize("how", ["end", "reset"])
@pytest.mark.parametrize("size", [1, 8 * MIB])
def test_a_datanode_that_goes_away(how: str, size: int) -> None:
    def leave(talk: Conversation) -> None:
        talk.head()
        talk.say(CONTINUE)
        if how == "reset":
            talk.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with place(leave) as running:
        sink = running.sink()
        with pytest.raises(HostFailed) as caught:
            write_and_close(sink, size)
        assert caught.value.host == "dn:9866"
        sink.abort()
        assert len(running.discarded) == 1


def test_a_datanode_that_falls_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 1)
    over = threading.Event()

    def silent(talk: Conversation) -> None:
        over.wait(10)

    with place(silent) as running:
        writing, closing = running.sink(), None
        with pytest.raises(HostFailed) as caught:
            writing.write(bytes(64 * MIB))
        assert caught.value.stalled
        closing = running.sink()
        closing.write(b"x")
        with pytest.raises(HostFailed) as caught:
            closing.close()
        assert caught.value.stalled
        writing.abort()
        closing.abort()
        assert len(running.discarded) == 2
        over.set()


@pytest.mark.parametrize("stands", [-1, 3])
def test_a_201_that_the_namenode_knows_nothing_of(stands: int) -> None:
    def hasty(talk: Conversation) -> None:
        talk.body(talk.head())
        talk.say(CREATED)

    with place(hasty) as running:
        running.stands = stands
        sink = running.sink()
        sink.write(b"1234")
        with pytest.raises((HostFailed, NotFound)):
            sink.close()
        sink.abort()
        assert running.discarded == [4]


def test_a_namenode_that_the_datanode_cannot_reach() -> None:
    def standby(talk: Conversation) -> None:
        talk.body(talk.head())
        talk.refuse("org.apache.hadoop.ipc.StandbyException", "Operation category WRITE is not supported")

    with place(standby) as running:
        sink = running.sink()
        with pytest.raises(ServiceDown):
            sink.close()
        sink.abort()


def test_what_no_datanode_says() -> None:
    def other(talk: Conversation) -> None:
        talk.body(talk.head())
        talk.say(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")

    with place(other) as running:
        sink = running.sink()
        sink.write(b"x")
        with pytest.raises(HostFailed, match="HTTP"):
            sink.close()
        sink.abort()


def test_nothing_listens() -> None:
    with pytest.raises(HostFailed, match="nothing listens"):
        PlacedSink(closed_port(), "/", "/file", name="dn", timeout=1, length=None, confirm=lambda: 1 / 0, discard=print)  # type: ignore[arg-type,return-value]


def test_the_length_that_was_announced_is_kept_to() -> None:
    def good(talk: Conversation) -> None:
        talk.until_the_end()

    with place(good) as running:
        sink = running.sink(10)
        sink.write(b"12345")
        with pytest.raises(StoreError, match="5 bytes were written where 10"):
            sink.close()
        with pytest.raises(StoreError, match="more is written"):
            sink.write(b"123456")
        sink.abort()
