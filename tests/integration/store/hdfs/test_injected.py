"""Faults that a real cluster cannot be told to show, from servers on loopback (tests/tools/fake_hdfs.py)."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from stripefs.errors import (
    HostFailed,
    PermissionDenied,
    ServiceDown,
    StaleVersion,
)
from stripefs.store.hdfs import HdfsStore
from tests.support.stores import cancel_on_the_way
from tests.tools.fake_hdfs import (
    DATA,
    TIMEOUT,
    FakeCluster,
    Manner,
    Request,
    closed_port,
    good,
    running,
    settings_for,
)


def silent(request: Request, wanted: bytes) -> None:
    threading.Event().wait(4 * TIMEOUT)


def silent_on_the_way(request: Request, wanted: bytes) -> None:
    request.answer(200, wanted[: len(wanted) // 2], length=len(wanted))
    request.wfile.flush()
    threading.Event().wait(4 * TIMEOUT)


def ends_early(request: Request, wanted: bytes) -> None:
    request.answer(200, wanted[:-1], length=len(wanted))


def offers_less(request: Request, wanted: bytes) -> None:
    request.answer(200, wanted[:-1])


def offers_more(request: Request, wanted: bytes) -> None:
    request.answer(200, wanted + b"x")


def resets(request: Request, wanted: bytes) -> None:
    request.answer(200, wanted[: len(wanted) // 2], length=len(wanted))
    request.wfile.flush()
    request.reset()


def resets_at_once(request: Request, wanted: bytes) -> None:
    request.reset()


def no_http(request: Request, wanted: bytes) -> None:
    request.wfile.write(b"\x00\x01\x02 nothing that looks like an answer\r\n\r\n")


def endless_head(request: Request, wanted: bytes) -> None:
    request.wfile.write(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 50_000)


def overloaded(request: Request, wanted: bytes) -> None:
    request.answer(503, b"<html>too many requests</html>", "text/html")


def nonsense(request: Request, wanted: bytes) -> None:
    request.document({"RemoteException": None}, 500)


def missing_block(request: Request, wanted: bytes) -> None:
    request.refuse("org.apache.hadoop.hdfs.BlockMissingException", "Could not obtain block: BP-1:blk_1")


def no_namenode(request: Request, wanted: bytes) -> None:
    request.refuse("java.net.ConnectException", "Call From dn/127.0.0.1 to nn:8020 failed")


def does_not_know_the_file(request: Request, wanted: bytes) -> None:
    request.refuse("java.io.FileNotFoundException", "File does not exist", 404)


def denies(request: Request, wanted: bytes) -> None:
    request.refuse("org.apache.hadoop.security.AccessControlException", "Permission denied: user=me")


def test_the_right_bytes_from_the_right_host() -> None:
    with running(good, good) as (cluster, store):
        handle = store.open(b"/file")
        [block] = handle.locate(0, len(DATA))
        assert block.hosts == tuple(datanode.name for datanode in cluster.datanodes)
        for datanode in cluster.datanodes:
            assert handle.read(5, 1_500_000, host=datanode.name) == DATA[5:1_500_005]
            [query] = datanode.served
            assert query["namenoderpcaddress"] == "logical:8020"  # the NameNode's own name and not the given one
            assert query["user.name"] == "me"


@pytest.mark.parametrize(
    ("manner", "stalled"),
    [
        (silent, True),
        (silent_on_the_way, True),
        (ends_early, False),
        (offers_less, False),
        (offers_more, False),
        (resets, False),
        (resets_at_once, False),
        (no_http, False),
        (endless_head, False),
        (overloaded, False),
        (nonsense, False),
        (missing_block, False),
    ],
)
def test_a_datanode_that_fails(manner: Manner, stalled: bool) -> None:
    with running(manner) as (cluster, store):
        name = cluster.datanodes[0].name
        with pytest.raises(HostFailed, match=name) as caught:
            store.open(b"/file").read(0, 2 << 20, host=name)
        assert (caught.value.host, caught.value.stalled) == (name, stalled)


def test_a_datanode_that_is_not_there() -> None:
    with running(good) as (cluster, store):
        cluster.namenode.replicas[0]["infoPort"] = int(closed_port().rpartition(":")[2])
        with pytest.raises(HostFailed, match="nothing listens there") as caught:
            store.open(b"/file").read(0, 10)
        assert not caught.value.stalled


def test_a_datanode_without_a_web_port() -> None:
    with running(good) as (cluster, store):
        cluster.namenode.replicas[0]["infoPort"] = 0
        with pytest.raises(HostFailed, match="no http address"):
            store.open(b"/file").read(0, 10)


def test_what_a_datanode_says_of_others() -> None:
    for manner, kind in (
        (no_namenode, ServiceDown),
        (does_not_know_the_file, StaleVersion),
        (denies, PermissionDenied),
    ):
        with running(manner) as (_, store), pytest.raises(kind):
            store.open(b"/file").read(0, 10)


def test_the_next_replica_is_read_where_none_was_chosen() -> None:
    with running(resets, overloaded, good, host_timeout=30.0) as (cluster, store):
        assert store.open(b"/file").read(0, 1000) == DATA[:1000]
        assert [len(datanode.served) for datanode in cluster.datanodes] == [1, 1, 1]


def test_a_chosen_host_is_the_only_one_asked() -> None:
    with running(resets, good) as (cluster, store):
        with pytest.raises(HostFailed):
            store.open(b"/file").read(0, 1000, host=cluster.datanodes[0].name)
        assert cluster.datanodes[1].served == []


def test_bytes_of_a_file_that_changed_while_they_came_are_refused() -> None:
    for change in ({"mtime": 5}, {"data": DATA + b"x"}, {"exists": False}):
        with FakeCluster.running(DATA, good) as cluster:

            def serve_then_change(
                request: Request, wanted: bytes, change: dict[str, object] = change, cluster: FakeCluster = cluster
            ) -> None:
                for name, value in change.items():
                    setattr(cluster.namenode, name, value)
                good(request, wanted)

            cluster.datanodes[0].manner = serve_then_change
            store = HdfsStore(settings_for(cluster))
            handle = store.open(b"/file")
            with pytest.raises(StaleVersion):
                handle.read(0, 1000)
            store.close()


def test_a_failure_of_a_host_of_a_changed_file_is_the_file_s() -> None:
    with FakeCluster.running(DATA, good) as cluster:

        def change_and_fail(request: Request, wanted: bytes) -> None:
            cluster.namenode.mtime += 1
            request.reset()

        cluster.datanodes[0].manner = change_and_fail
        store = HdfsStore(settings_for(cluster))
        with pytest.raises(StaleVersion):
            store.open(b"/file").read(0, 1000)
        store.close()


def test_cancelling_ends_a_silent_read() -> None:
    with FakeCluster.running(DATA, silent_on_the_way) as cluster:
        store = HdfsStore(settings_for(cluster, host_timeout=60.0))
        handle = store.open(b"/file")
        cancel_on_the_way(partial(handle.read, 0, 2 << 20))
        store.close()
