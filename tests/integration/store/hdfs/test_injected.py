"""Faults of DataNodes on loopback that a real cluster cannot be told to show, and blocks without an intact replica."""

from __future__ import annotations

import re
import threading
from functools import partial
from typing import Any

import pytest

from stripefs.errors import Corrupt, HostFailed, NotFound, PermissionDenied, ServiceDown, StaleVersion, StoreError
from stripefs.store.base import Buffer, Watch
from stripefs.store.hdfs.native import PinnedFile
from stripefs.store.hdfs.native_workarounds import corruption
from stripefs.store.hdfs.store import HdfsStore
from tests.support.stores import cancel_on_the_way
from tests.support.waiting import eventually
from tests.tools.fake_hdfs import (
    DATA,
    TIMEOUT,
    Manner,
    Request,
    closed_port,
    good,
    missing_block,
    no_http,
    running,
)


def silent_on_the_way(request: Request, wanted: bytes) -> None:
    request.answer(200, wanted[: len(wanted) // 2], length=len(wanted))
    request.wfile.flush()
    threading.Event().wait(4 * TIMEOUT)


def resets(request: Request, wanted: bytes) -> None:
    request.answer(200, wanted[: len(wanted) // 2], length=len(wanted))
    request.wfile.flush()
    request.reset()


def overloaded(request: Request, wanted: bytes) -> None:
    request.answer(503, b"<html>too many requests</html>", "text/html")


FAILURES: dict[str, Any] = {
    "silent": lambda request, wanted: threading.Event().wait(4 * TIMEOUT),
    "silent on the way": silent_on_the_way,
    "ends early": lambda request, wanted: request.answer(200, wanted[:-1], length=len(wanted)),
    "offers less": lambda request, wanted: request.answer(200, wanted[:-1]),
    "offers more": lambda request, wanted: request.answer(200, wanted + b"x"),
    "resets": resets,
    "resets at once": lambda request, wanted: request.reset(),
    "endless head": lambda request, wanted: request.wfile.write(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 50_000),
    "no HTTP": no_http,
    "overloaded": overloaded,
    "nonsense": lambda request, wanted: request.document({"RemoteException": None}, 500),
    "missing block": missing_block,
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_datanode_that_fails(failure: str) -> None:
    with running(FAILURES[failure]) as (cluster, store):
        name = cluster.datanodes[0].name
        with pytest.raises(HostFailed, match=name) as caught:
            store.open(b"/file").read(0, 2 << 20, host=name)
        assert (caught.value.host, caught.value.stalled) == (name, failure.startswith("silent"))


def test_a_datanode_that_is_not_there_or_has_no_web_port() -> None:
    with running(good) as (cluster, store):
        for port, why in ((0, "no http address"), (int(closed_port().rpartition(":")[2]), "nothing listens there")):
            cluster.namenode.replicas[0]["infoPort"] = port
            with pytest.raises(HostFailed, match=why) as caught:
                store.open(b"/file").read(0, 10)
            assert not caught.value.stalled


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        (("java.net.ConnectException", "Call From dn/127.0.0.1 to nn:8020 failed"), ServiceDown),
        (("java.io.FileNotFoundException", "File does not exist", 404), StaleVersion),
        (("org.apache.hadoop.security.AccessControlException", "Permission denied: user=me"), PermissionDenied),
    ],
)
def test_what_a_datanode_says_of_others(refusal: Any, kind: type[StoreError]) -> None:
    with running(lambda request, _: request.refuse(*refusal)) as (_, store), pytest.raises(kind):
        store.open(b"/file").read(0, 10)


def test_the_next_replica_is_read_where_none_was_chosen() -> None:
    with running(resets, overloaded, good, host_timeout=30.0) as (cluster, store):
        assert store.open(b"/file").read(0, 1000) == DATA[:1000]
        eventually(lambda: [len(datanode.served) for datanode in cluster.datanodes] == [1, 1, 1], "one request to each")
        [query] = cluster.datanodes[2].served
        assert query["namenoderpcaddress"] == "logical:8020"  # the NameNode's own name and not the given one
        assert query["user.name"] == "me"


def test_a_chosen_host_is_the_only_one_asked() -> None:
    with running(resets, good) as (cluster, store):
        with pytest.raises(HostFailed):
            store.open(b"/file").read(0, 1000, host=cluster.datanodes[0].name)
        assert cluster.datanodes[1].served == []


@pytest.mark.parametrize("then", [good, FAILURES["resets at once"]])
@pytest.mark.parametrize("change", [{"mtime": 5}, {"data": DATA + b"x"}, {"exists": False}])
def test_bytes_of_a_file_that_changed_while_they_came_are_refused(change: dict[str, object], then: Manner) -> None:
    """A failure of a host of a changed file is the file's."""
    with running(good) as (cluster, store):

        def change_and_go_on(request: Request, wanted: bytes) -> None:
            for name, value in change.items():
                setattr(cluster.namenode, name, value)
            then(request, wanted)

        cluster.datanodes[0].manner = change_and_go_on
        handle = store.open(b"/file")
        with pytest.raises(StaleVersion):
            handle.read(0, 1000)


def test_cancelling_ends_a_silent_read() -> None:
    with running(silent_on_the_way, host_timeout=60.0) as (_, store):
        handle = store.open(b"/file")
        cancel_on_the_way(partial(handle.read, 0, 2 << 20))


def test_one_question_for_all_of_a_file() -> None:
    with running(good) as (cluster, store):
        store.open(b"/file").read(0, 10)  # the DataNodes' name of the NameNode is known from then on
        cluster.namenode.asked.clear()
        handle = store.open_checked(b"/file", len(DATA))
        assert handle.status.length == len(DATA)
        assert cluster.namenode.asked == []
        [block] = handle.locate(0, len(DATA))
        for at in range(0, len(DATA), 1 << 20):
            assert handle.read(at, 1 << 20, host=block.hosts[0]) == DATA[at : at + (1 << 20)]
        cluster.namenode.mtime += 1  # the file that is there now is read
        assert handle.read(5, 100) == DATA[5:105]
        assert cluster.namenode.asked == ["GET_BLOCK_LOCATIONS"]


def test_a_checked_file_that_is_shorter_goes_while_it_is_read_or_is_not_there() -> None:
    with running(good) as (cluster, store):
        with pytest.raises(StaleVersion):
            store.open_checked(b"/file", len(DATA) + 1).locate(0, len(DATA) + 1)
        handle = store.open_checked(b"/file", len(DATA))
        assert handle.read(0, 10) == DATA[:10]
        cluster.datanodes[0].manner = lambda request, _: request.refuse("java.io.FileNotFoundException", "gone", 404)
        with pytest.raises(NotFound):
            handle.read(10, 10)
        handle = store.open_checked(b"/file", len(DATA))
        cluster.namenode.exists = False
        with pytest.raises(NotFound):
            handle.locate(0, 1)
        with pytest.raises(NotFound):
            handle.read(0, 10)


def test_a_host_that_fails_and_a_namenode_that_is_away() -> None:
    with running(FAILURES["resets at once"]) as (cluster, store):
        handle = store.open_checked(b"/file", len(DATA))
        [block] = handle.locate(0, 1)
        with pytest.raises(HostFailed):
            handle.read(0, 10, host=block.hosts[0])
        cluster.namenode.refusal = ("org.apache.hadoop.ipc.StandbyException", "not active")
        with pytest.raises(ServiceDown):
            handle.read(0, 10, host=block.hosts[0])


def test_a_store_that_cannot_choose_opens_as_ever() -> None:
    with running(good) as (_, store):
        store.chooses_host = False
        handle = store.open_checked(b"/file", len(DATA))
        assert handle.status.file_id


MESSAGE = (
    'DataTransferError("All DataNodes failed: ['
    r"DatanodeInfoProto { id: DatanodeIdProto { ip_addr: \"10.0.0.1\", host_name: \"a\", xfer_port: 9866 } }, "
    r"DatanodeInfoProto { id: DatanodeIdProto { ip_addr: \"10.0.0.2\", host_name: \"b\", xfer_port: 9867 } }"
    ']")'
)
HEAD = "[2026-01-01T00:00:00Z {} hdfs_native::hdfs::block_reader] "
ASKED = HEAD.format("DEBUG") + "Block read op request OpReadBlockProto { block_id: 77, num_bytes: Some(9) }\n"
SUM = HEAD.format("WARN ") + "Error occurred while reading from DataNode: ChecksumError\n"
REFUSED = HEAD.format("WARN ") + "Error occurred while connecting to DataNode: IOError(ConnectionRefused)\n"
ANNOUNCED = "the last read follows\n"


def test_a_checksum_error_of_every_replica_proves_it() -> None:
    log = ASKED + REFUSED + ANNOUNCED + ASKED + SUM + ASKED + SUM
    assert corruption(log, MESSAGE) == (77, ("10.0.0.1:9866", "10.0.0.2:9867"))


@pytest.mark.parametrize(
    ("log", "message"),
    [
        pytest.param(ANNOUNCED + ASKED + SUM + REFUSED, MESSAGE, id="one refuses the connection"),
        pytest.param(ANNOUNCED + ASKED + SUM, MESSAGE, id="one says nothing"),
        pytest.param(ANNOUNCED + ASKED + SUM + ASKED.replace("77", "78") + SUM, MESSAGE, id="two blocks"),
        pytest.param(ASKED + SUM + ASKED + SUM, MESSAGE, id="only of earlier reads"),
        pytest.param(ANNOUNCED + ASKED, 'DataTransferError("All DataNodes failed: []")', id="no replica is known"),
        pytest.param("", MESSAGE, id="no log"),
    ],
)
def test_nothing_less_proves_it(log: str, message: str) -> None:
    assert corruption(log, message) is None


def breaks_off(request: Request, wanted: bytes) -> None:
    request.answer(200, wanted[:-1], length=len(wanted))
    request.close_connection = True


class Pinned:
    """A client library whose reads end as `answer` says."""

    name = "pinned"

    def __init__(self, answer: bytes | Corrupt | HostFailed) -> None:
        self.answer = answer
        self.reads = 0

    def open(self, path: str, length: int) -> PinnedFile:
        return self

    def read(self, offset: int, length: int, watch: Watch | None) -> Buffer:
        self.reads += 1
        if isinstance(self.answer, bytes):
            return self.answer[offset : offset + length]
        raise self.answer


def pinning(store: HdfsStore, answer: bytes | Corrupt | HostFailed) -> Pinned:
    pinned = Pinned(answer)
    store._pinning = pinned
    return pinned


def test_a_block_that_no_replica_has_intact() -> None:
    with running(breaks_off, breaks_off) as (cluster, store):
        pinned = pinning(store, Corrupt("block blk_77 fails its checksum"))
        handle = store.open(b"/file")
        [block] = handle.locate(0, 1)
        with pytest.raises(HostFailed):
            handle.read(0, 10, host=block.hosts[0])
        assert pinned.reads == 0
        for _ in range(2):
            with pytest.raises(Corrupt, match=re.escape("/file: block blk_77")):
                handle.read(0, 10, host=block.hosts[1])
        assert pinned.reads == 2
        asked: list[bytes] = []
        cluster.datanodes[0].manner = lambda request, wanted: asked.append(wanted)
        with pytest.raises(Corrupt):
            handle.read(10, 10, host=block.hosts[0])
        assert asked == []


def test_the_pinned_file_may_have_what_no_web_port_gives() -> None:
    with running(breaks_off) as (_, store):
        pinning(store, DATA)
        assert store.open(b"/file").read(5, 10) == DATA[5:15]


def test_hosts_that_may_come_back_are_no_corruption() -> None:
    with running(breaks_off, breaks_off) as (cluster, store):
        pinning(store, HostFailed("all DataNodes failed"))
        handle = store.open(b"/file")
        with pytest.raises(HostFailed, match="stopped after"):
            handle.read(0, 10)
        for datanode in cluster.datanodes:
            datanode.manner = lambda request, wanted: request.answer(200, wanted)
        assert handle.read(0, 10) == DATA[:10]
