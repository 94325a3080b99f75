"""A DataNode that takes a file refuses or goes away, at every point of the conversation."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable

import pytest

from stripefs.errors import Exists, HostFailed, NotFound, QuotaExceeded, ServiceDown, StoreError
from tests.integration.store.hdfs.talk import CONTINUE, CREATED, MIB, Conversation, place, write_and_close, write_on
from tests.support.stores import content
from tests.tools.fake_hdfs import closed_port


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


@pytest.mark.parametrize(
    ("answer", "kind", "says"),
    [
        (lambda talk: talk.refuse("org.apache.hadoop.ipc.StandbyException", "no WRITE"), ServiceDown, "no WRITE"),
        (lambda talk: talk.say(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"), HostFailed, "HTTP"),
    ],
    ids=["a standby NameNode behind it", "no HTTP"],
)
def test_answers_that_are_none(answer: Callable[[Conversation], None], kind: type[StoreError], says: str) -> None:
    def other(talk: Conversation) -> None:
        talk.body(talk.head())
        answer(talk)

    with place(other) as running:
        sink = running.sink()
        sink.write(b"x")
        with pytest.raises(kind, match=says):
            sink.close()
        sink.abort()


def test_nothing_listens() -> None:
    with place(Conversation.until_the_end) as running:
        with pytest.raises(HostFailed, match="nothing listens"):
            running.sink_at(closed_port())
        running.sink().abort()


def test_the_length_that_was_announced_is_kept_to() -> None:
    with place(Conversation.until_the_end) as running:
        sink = running.sink(10)
        sink.write(b"12345")
        with pytest.raises(StoreError, match="5 bytes were written where 10"):
            sink.close()
        with pytest.raises(StoreError, match="more is written"):
            sink.write(b"123456")
        sink.abort()
