"""A DataNode that takes a file refuses, falls silent or goes away, at every point of the conversation."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator

import pytest

from stripefs.errors import Exists, HostFailed, NotFound, QuotaExceeded, ServiceDown, StoreError
from stripefs.store.base import Kind, Status
from stripefs.store.hdfs import sink as module
from stripefs.store.hdfs.sink import PATIENCE, PlacedSink
from tests.store.hdfs_fakes import closed_port
from tests.store.material import content

MIB = 1 << 20
CONNECTIONS = 3
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


OTHER = "other:9866"


class Doubts:
    """What `Pipelines` may answer. blocks: of the file, one after the other, the last one again and again."""

    def __init__(self) -> None:
        self.doubted = False
        self.blocks: list[tuple[int, tuple[str, ...]]] = [(0, ())]
        self.down: list[str] = []
        self.asked = 0
        self.aside: list[socket.socket] = []
        self.on_asked: Callable[[int], None] = lambda _: None

    def of(self, path: str) -> tuple[int, tuple[str, ...]]:
        assert path == "/file"
        return self.blocks.pop(0) if len(self.blocks) > 1 else self.blocks[0]

    def silent(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if name in self.down]

    def culprits(self, path: str, first: str) -> list[str]:
        assert (path, first) == ("/file", "dn:9866")
        self.asked += 1
        self.on_asked(self.asked)
        return self.down

    def lay_aside(self, sock: socket.socket) -> None:
        self.aside.append(sock)


class Place:
    """A DataNode of one `manner` that takes so many connections, and a NameNode of two functions."""

    def __init__(self, manner: Manner, connections: int) -> None:
        self.pipelines = Doubts()
        self.stands = -1  # bytes of the file, as the NameNode tells
        self.discarded: list[int] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._serve, args=(manner,)) for _ in range(connections)]
        for thread in self._threads:
            thread.start()

    def sink(self, length: int | None = None, block_size: int = 0) -> PlacedSink:
        return self.sink_at(f"127.0.0.1:{self._listener.getsockname()[1]}", length, block_size)

    def sink_at(self, address: str, length: int | None = None, block_size: int = 0) -> PlacedSink:
        return PlacedSink(
            address,
            "/webhdfs/v1/file?op=CREATE",
            "/file",
            name="dn:9866",
            timeout=0.3,
            length=length,
            block_size=block_size,
            pipelines=self.pipelines,  # type: ignore[arg-type]  # what a sink asks of `Pipelines`
            confirm=self._confirm,
            discard=self.discarded.append,
        )

    def close(self) -> None:
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
                manner(Conversation(sock))


@contextlib.contextmanager
def place(manner: Manner, connections: int = 1) -> Iterator[Place]:
    with contextlib.closing(Place(manner, connections)) as running:
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


def test_a_datanode_that_falls_silent() -> None:
    over = threading.Event()

    def silent(talk: Conversation) -> None:
        over.wait(10)

    with place(silent) as running:
        writing, closing = running.sink(), None
        with pytest.raises(HostFailed) as caught:
            writing.write(bytes(64 * MIB))
        assert (caught.value.host, caught.value.stalled) == ("dn:9866", True)
        assert running.pipelines.asked == PATIENCE
        closing = running.sink()
        closing.write(b"x")
        with pytest.raises(HostFailed) as caught:
            closing.close()
        assert caught.value.stalled
        writing.abort()
        closing.abort()
        assert len(running.discarded) == 2
        over.set()


def test_a_datanode_that_gives_no_sign_of_life() -> None:
    """No more than one time-out is waited for it."""
    over = threading.Event()
    with place(lambda _: over.wait(10)) as running:  # type: ignore[arg-type]
        running.pipelines.down = ["dn:9866", OTHER]
        sink = running.sink(1)
        sink.write(b"x")
        with pytest.raises(HostFailed) as caught:
            sink.close()
        assert (caught.value.host, caught.value.stalled) == ("dn:9866", True)
        assert running.pipelines.asked == 1
        sink.abort()
        assert running.pipelines.aside == []
        over.set()


@pytest.mark.parametrize("size", [1, 64 * MIB])
def test_a_datanode_that_waits_for_another_one(size: int) -> None:
    over = threading.Event()
    with place(lambda _: over.wait(10)) as running:  # type: ignore[arg-type]
        running.pipelines.down = [OTHER]
        sink = running.sink(size)
        with pytest.raises(HostFailed, match=f"waits for {OTHER}") as caught:
            write_and_close(sink, size)
        assert (caught.value.host, caught.value.stalled) == (OTHER, True)
        assert running.pipelines.asked == 1
        sink.abort()
        assert running.discarded == [size]
        assert len(running.pipelines.aside) == 1
        over.set()


def test_a_stream_waits_until_its_datanode_does_without_the_silent_one() -> None:
    """Much longer than for one of which nothing is known: nobody could write it anew."""
    mended = threading.Event()

    def slow(talk: Conversation) -> None:
        head = talk.head()
        mended.wait(10)
        talk.body(head)
        talk.say(CREATED)

    with place(slow) as running:
        running.pipelines.down = [OTHER]
        running.pipelines.on_asked = lambda times: mended.set() if times > 2 * PATIENCE else None
        running.stands = 64 * MIB
        sink = running.sink()
        sink.write(bytes(64 * MIB))
        assert sink.close().length == 64 * MIB


@pytest.mark.parametrize("size", [1, MIB])
def test_who_begins_a_block_with_a_silent_datanode_begins_anew(size: int) -> None:
    """As soon as the block is allocated."""
    over = threading.Event()

    def silent(talk: Conversation) -> None:
        talk.say(CONTINUE)
        over.wait(10)

    with place(silent) as running:
        running.pipelines.doubted = True
        running.pipelines.blocks = [(0, ()), (0, ()), (1, ("dn:9866", OTHER))]
        running.pipelines.down = [OTHER]
        sink = running.sink(size)
        with pytest.raises(HostFailed) as caught:
            write_and_close(sink, size)
        assert caught.value.host == OTHER
        assert running.pipelines.asked == 0
        sink.abort()
        assert running.discarded == [size]
        assert len(running.pipelines.aside) == 1
        over.set()


def test_each_block_is_looked_at_once() -> None:
    def good(talk: Conversation) -> None:
        head = talk.head()
        talk.say(CONTINUE)
        talk.body(head)
        talk.say(CREATED)

    with place(good) as running:
        running.pipelines.doubted = True
        blocks = [(number, ("dn:9866", OTHER)) for number in (1, 2, 3)]
        running.pipelines.blocks = [*blocks, (0, ())]
        running.stands = 5 * MIB
        sink = running.sink(5 * MIB, block_size=2 * MIB)
        for _ in range(40):
            sink.write(bytes(MIB // 8))
        assert running.pipelines.blocks == [(0, ())]
        assert sink.close().length == 5 * MIB


@pytest.mark.parametrize("hanging", [1, CONNECTIONS])
@pytest.mark.parametrize("known", ["before", "later"])
def test_threads_of_a_datanode_that_hang(monkeypatch: pytest.MonkeyPatch, hanging: int, known: str) -> None:
    """Another connection lands on another thread; when all hang the part goes elsewhere."""
    monkeypatch.setattr(module, "_CONTINUED", 0.2)
    over = threading.Event()

    def some(talk: Conversation) -> None:
        nonlocal hanging
        hanging -= 1
        if hanging >= 0:
            over.wait(10)
            return
        head = talk.head()
        talk.say(CONTINUE)
        talk.body(head)
        talk.say(CREATED)

    def begin() -> PlacedSink:
        running.pipelines.doubted = known == "before"
        sink = running.sink(1)
        running.pipelines.doubted = True
        sink.write(b"x")
        return sink

    all_hang = hanging == CONNECTIONS
    with place(some, connections=min(hanging + 1, CONNECTIONS)) as running:
        running.stands = 1
        if all_hang:
            with pytest.raises(HostFailed, match="does not go on") as caught:
                begin()
            assert (caught.value.host, caught.value.stalled) == ("dn:9866", True)
        else:
            assert begin().close().length == 1
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
    with place(Conversation.until_the_end) as running:
        with pytest.raises(HostFailed, match="nothing listens"):
            running.sink_at(closed_port())
        running.sink().abort()


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
