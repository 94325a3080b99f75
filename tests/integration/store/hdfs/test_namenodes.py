"""NameNodes that say odd things, are slow, on standby or away, wrong addresses, and requests of the writing half."""

from __future__ import annotations

import json
import socket
import threading

import pytest

from stripefs.errors import (
    ConfigError,
    PermissionDenied,
    ServiceDown,
    StoreError,
)
from stripefs.settings import StoreSettings
from stripefs.store.hdfs import block_locations
from stripefs.store.hdfs.connection import IdlePool, check_rpc
from stripefs.store.hdfs.namenode_failover import Unanswered
from stripefs.store.hdfs.namenode_webhdfs import NameNodeRest
from stripefs.store.hdfs.store import HdfsStore
from tests.tools.fake_hdfs import (
    DATA,
    FILE_ID,
    TIMEOUT,
    FakeCluster,
    FakeNameNode,
    Request,
    closed_port,
    good,
    running,
    serving,
    settings_for,
)
from tests.tools.listening import listening


def test_a_namenode_that_closes_idle_connections_is_asked_again() -> None:
    with running(good) as (cluster, store):

        def close_after(request: Request) -> None:
            request.document({"FileStatus": cluster.namenode.status()})
            request.close_connection = True  # without saying so

        cluster.namenode.operations["GETFILESTATUS"] = close_after
        for _ in range(5):
            assert store.stat(b"/file").file_id == str(FILE_ID)


@pytest.mark.parametrize(
    "answer",
    [
        lambda request: request.answer(200, b"<html>", "text/html"),
        lambda request: request.answer(200, b"{", "application/json"),
        lambda request: request.answer(200, b"[]", "application/json"),
        lambda request: request.answer(404, b"not found", "text/plain"),
        lambda request: request.document({"other": 1}, 500),
        lambda request: request.reset(),
        lambda request: request.refuse("org.apache.hadoop.ipc.StandbyException", "not supported in state standby"),
        lambda request: request.refuse("org.apache.hadoop.ipc.RetriableException", "starting up"),
    ],
)
def test_answers_that_are_none(answer: object) -> None:
    with running(good) as (cluster, store):
        cluster.namenode.operations["GETFILESTATUS"] = answer  # type: ignore[assignment]
        with pytest.raises(ServiceDown):
            store.stat(b"/file")


def test_documents_of_another_shape() -> None:
    with running(good) as (cluster, store):
        handle = store.open(b"/file")
        for operation in ("GETFILESTATUS", "GET_BLOCK_LOCATIONS", "LISTSTATUS_BATCH"):
            cluster.namenode.operations[operation] = lambda request: request.document({"surprise": []})
        for ask in (lambda: store.stat(b"/file"), lambda: handle.locate(0, 10), lambda: list(store.scandir(b"/"))):
            with pytest.raises(StoreError):
                ask()


def test_who_must_authenticate_is_told_so() -> None:
    with running(good) as (cluster, store):
        cluster.namenode.operations["GETFILESTATUS"] = lambda request: request.answer(401, b"", "text/html")
        with pytest.raises(PermissionDenied, match="Kerberos"):
            store.stat(b"/file")


def test_a_namenode_slow_to_greet() -> None:
    with FakeCluster.running(DATA, good) as cluster:
        silences = [True, True]

        def sleepy(request: Request) -> None:
            if silences:
                silences.pop()
                threading.Event().wait(2 * TIMEOUT)
            request.document({"FileStatus": cluster.namenode.status() | {"type": "DIRECTORY"}})

        cluster.namenode.operations["GETFILESTATUS"] = sleepy
        HdfsStore(settings_for(cluster)).close()
        assert not silences


def test_jmx_tells_of_datanodes_where_it_is_not_closed_to_us(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(good, good) as (cluster, store):
        assert store.hosts() == []
        assert store.space() is None
        store.open(b"/file").locate(0, 1)
        assert [(host.name, host.reachable_as) for host in store.hosts()] == [
            (datanode.name, datanode.address) for datanode in cluster.datanodes
        ]
        cluster.namenode.operations["GETSTATUS"] = lambda request: request.document(
            {"FsStatus": {"used": 1, "remaining": 2, "capacity": 3}}
        )
        space = store.space()
        assert space is not None
        assert (space.capacity, space.free) == (3, 2)
        node = {"xferaddr": "10.0.0.9:9866", "infoAddr": "10.0.0.9:9864", "adminState": "In Service"}
        nodes = {"LiveNodes": {"dn9:9866": node}, "DeadNodes": {"dn": {"xferaddr": cluster.datanodes[0].name}}}
        bean = {kind: json.dumps(each) for kind, each in nodes.items()}
        cluster.namenode.operations[""] = lambda request: request.document({"beans": [bean]})
        monkeypatch.setattr(block_locations, "_REFRESH", -1.0)
        live = {host.name: host.live for host in store.hosts()}
        assert live == {"10.0.0.9:9866": True, cluster.datanodes[0].name: False, cluster.datanodes[1].name: True}


def test_datanodes_by_their_names() -> None:
    with FakeCluster.running(DATA, good) as cluster:
        store = HdfsStore(settings_for(cluster, use_datanode_hostname=True))
        cluster.namenode.replicas[0]["ipAddr"] = "192.0.2.1"  # of no use, as in a cloud's inner network
        handle = store.open(b"/file")
        assert handle.read(0, 10) == DATA[:10]
        [host] = store.hosts()
        assert host.reachable_as.startswith("localhost:")
        store.close()


# Changes


def test_a_change_is_asked_for_once() -> None:
    """A reset or silence instead of an answer leaves open what became of it."""
    namenode = FakeNameNode(b"")
    for operation in ("MKDIRS", "RENAME"):
        namenode.operations[operation] = lambda request: request.reset()
    namenode.operations["DELETE"] = lambda request: setattr(request, "close_connection", True)
    with serving(namenode):
        rest = NameNodeRest([namenode.address], "me", TIMEOUT)
        rest.ask("GETFILESTATUS", "/")  # leaves a connection that a change must not use
        for method, operation in (("PUT", "MKDIRS"), ("PUT", "RENAME"), ("DELETE", "DELETE")):
            with pytest.raises(Unanswered):
                rest.change(method, operation, "/file")
        rest.close()
    assert namenode.asked == ["GETFILESTATUS", "MKDIRS", "RENAME", "DELETE"]


def test_a_change_goes_to_the_namenode_that_serves() -> None:
    standby, active = FakeNameNode(b""), FakeNameNode(b"")
    standby.refusal = ("org.apache.hadoop.ipc.StandbyException", "not supported in state standby")
    active.operations["DELETE"] = lambda request: request.document({"boolean": True})
    active.operations["RENAME"] = lambda request: request.answer(200, b"", "application/octet-stream")
    with serving(standby, active):
        rest = NameNodeRest([closed_port(), standby.address, active.address], "me", TIMEOUT)
        assert rest.change("DELETE", "DELETE", "/file") == {"boolean": True}
        assert rest.change("PUT", "RENAME", "/file") == {}
        assert rest.active == active.address
        rest.close()


# Wrong addresses


def test_a_transport_that_is_none() -> None:
    with pytest.raises(ConfigError, match="carrier"):
        HdfsStore(StoreSettings(url="hdfs://nn/", transport="carrier pigeon"))


def test_where_nothing_listens() -> None:
    address = closed_port()
    for transport in ("auto", "native"):
        settings = StoreSettings(url=f"hdfs://{address}/", transport=transport, webhdfs_port=1, host_timeout=TIMEOUT)
        with pytest.raises(ServiceDown, match=f"{address}: nothing listens there"):
            HdfsStore(settings)


def test_a_name_that_does_not_resolve() -> None:
    with pytest.raises(ServiceDown, match=r"does not resolve.*--hadoop-conf"):
        HdfsStore(StoreSettings(url="hdfs://no-such-host.invalid/", transport="native", host_timeout=TIMEOUT))


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH_9.2p1\r\n", b""])
def test_a_port_that_speaks_something_else(answer: bytes) -> None:
    def speak(connection: socket.socket) -> None:
        with connection:
            connection.recv(1000)
            connection.sendall(answer)

    with (
        listening(speak) as address,
        pytest.raises(ServiceDown, match=f"{address} is not a NameNode's RPC port"),
    ):
        check_rpc(address, 10.0)


def test_a_connection_that_outlives_its_pool_is_closed() -> None:
    pool, (ours, theirs) = IdlePool[socket.socket](2), socket.socketpair()
    pool.close()
    pool.keep("namenode", ours)
    assert ours.fileno() == -1
    theirs.close()
