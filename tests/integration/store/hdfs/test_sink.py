"""A DataNode that takes a file refuses, goes away or falls silent, or waits for another one that does."""

from __future__ import annotations

import socket
import struct
import threading

import pytest

from stripefs.errors import Exists, HostFailed, NotFound, QuotaExceeded, StoreError
from stripefs.store.hdfs import datanode_write as module
from stripefs.store.hdfs.datanode_write import PATIENCE, DataNodeSink
from tests.integration.store.hdfs.talk import (
    CONNECTIONS,
    CONTINUE,
    CREATED,
    MIB,
    OTHER,
    Conversation,
    place,
    write_and_close,
    write_on,
)
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


def test_a_datanode_that_falls_silent() -> None:
    with place(Conversation.be_silent) as running:
        writing = running.sink()
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


@pytest.mark.parametrize(
    ("size", "down", "blamed"), [(1, [OTHER], OTHER), (64 * MIB, [OTHER], OTHER), (1, ["dn:9866", OTHER], "dn:9866")]
)
def test_a_datanode_that_is_silent_or_waits_for_another_one(size: int, down: list[str], blamed: str) -> None:
    """No more than one time-out is waited for one that gives no sign of life."""
    with place(Conversation.be_silent) as running:
        running.pipelines.down = down
        sink = running.sink(size)
        with pytest.raises(HostFailed, match=f"waits for {OTHER}" if blamed == OTHER else None) as caught:
            write_and_close(sink, size)
        assert (caught.value.host, caught.value.stalled) == (blamed, True)
        assert running.pipelines.asked == 1
        sink.abort()
        assert running.discarded == [size]
        assert len(running.pipelines.aside) == (blamed == OTHER)


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

    def silent(talk: Conversation) -> None:
        talk.say(CONTINUE)
        talk.be_silent()

    with place(silent) as running:
        running.pipelines.any_silent = True
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


@pytest.mark.parametrize("hanging", [1, CONNECTIONS])
@pytest.mark.parametrize("known", ["before", "later"])
def test_threads_of_a_datanode_that_hang(monkeypatch: pytest.MonkeyPatch, hanging: int, known: str) -> None:
    """Another connection lands on another thread; when all hang the part goes elsewhere."""
    monkeypatch.setattr(module, "_CONTINUED", 0.2)

    def some(talk: Conversation) -> None:
        nonlocal hanging
        hanging -= 1
        if hanging >= 0:
            talk.be_silent()
        else:
            talk.take()

    def begin() -> DataNodeSink:
        running.pipelines.any_silent = known == "before"
        sink = running.sink(1)
        running.pipelines.any_silent = True
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
