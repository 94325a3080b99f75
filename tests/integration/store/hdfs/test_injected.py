"""Faults that a real cluster cannot be told to show, from servers on loopback (tests/tools/fake_hdfs.py)."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest

from stripefs.errors import HostFailed, PermissionDenied, ServiceDown, StaleVersion, StoreError
from stripefs.store.hdfs.store import HdfsStore
from tests.support.stores import cancel_on_the_way
from tests.tools.fake_hdfs import (
    DATA,
    TIMEOUT,
    FakeCluster,
    Request,
    closed_port,
    good,
    missing_block,
    no_http,
    running,
    settings_for,
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


@pytest.mark.parametrize("failure", FAILURES)
def test_a_datanode_that_fails(failure: str) -> None:
    with running(FAILURES[failure]) as (cluster, store):
        name = cluster.datanodes[0].name
        with pytest.raises(HostFailed, match=name) as caught:
            store.open(b"/file").read(0, 2 << 20, host=name)
        assert (caught.value.host, caught.value.stalled) == (name, failure.startswith("silent"))


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
