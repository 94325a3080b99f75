"""Calls to RPC ports that answer well, or badly on demand."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from stripefs.errors import Exists, ServiceDown, StoreError, Unsupported
from stripefs.store.hdfs.namenode_rpc import CallsRefused, NameNodeRpc
from stripefs.store.hdfs.protobuf import bytes_field, number_field
from tests.tools.fake_hdfs import closed_port
from tests.tools.fake_rpc import Call, RpcPort, rpc_port

TIMEOUT = 0.5
STANDBY = "org.apache.hadoop.ipc.StandbyException"


def good(call: Call) -> None:
    file = number_field(1, 2) + number_field(13, 4711)
    datanode = bytes_field(1, b"10.0.0.1") + bytes_field(2, b"dn1") + bytes_field(3, b"uuid") + number_field(4, 9866)
    block = bytes_field(1, b"pool") + number_field(2, 1001) + number_field(3, 3) + number_field(4, 0)
    located = bytes_field(1, block) + number_field(2, 0) + bytes_field(3, bytes_field(1, datanode))
    located += bytes_field(5, b"token") + number_field(7, 1) + bytes_field(8, b"storage")
    answers = {
        "create": bytes_field(1, file),
        "addBlock": bytes_field(1, located),
        "complete": number_field(1, 1),
        "abandonBlock": b"",
        "delete": number_field(1, 1),
    }
    call.answer(answers[call.method])


@pytest.fixture
def port() -> Iterator[RpcPort]:
    with rpc_port(good) as made:
        yield made


@pytest.fixture
def rpc(port: RpcPort) -> Iterator[NameNodeRpc]:
    made = NameNodeRpc([port.address], "somebody", TIMEOUT)
    yield made
    made.close()


def create(rpc: NameNodeRpc) -> int:
    return rpc.create("/file", mode=0o644, replication=1, block_size=1 << 20)


def test_a_file_from_its_creation_to_its_end(port: RpcPort, rpc: NameNodeRpc) -> None:
    assert create(rpc) == 4711
    placed = rpc.add_block("/file", 4711, b"", "10.0.0.1:9866", [])
    assert [replica.name for replica in placed.replicas] == ["10.0.0.1:9866"]
    assert (placed.token, placed.stamp, placed.storage_types, placed.storage_ids) == (b"token", 3, (1,), (b"storage",))
    assert placed.with_length(5) == placed.name[:-2] + number_field(4, 5)
    rpc.abandon_block("/file", 4711, placed.name)
    assert rpc.complete("/file", 4711, placed.with_length(5))
    assert port.users == ["somebody"]
    assert len({call.number for call in port.calls}) == len(port.calls) == 4


def test_a_connection_that_was_closed_is_asked_again_under_the_same_number(port: RpcPort, rpc: NameNodeRpc) -> None:
    create(rpc)
    port.drop_connections()
    create(rpc)
    assert [(call.number, call.retry) for call in port.calls[1:]] == [(1, 0)]
    port.manners = [lambda call: port.drop_connections()]
    create(rpc)
    assert [(call.number, call.retry) for call in port.calls[2:]] == [(2, -1), (2, 0)]


def test_a_fresh_connection_that_breaks_off_is_not_asked_again(port: RpcPort, rpc: NameNodeRpc) -> None:
    port.manners = [lambda call: port.drop_connections()]
    with pytest.raises(ServiceDown, match="closed the connection"):
        create(rpc)
    assert len(port.calls) == 1


def test_a_namenode_that_wants_to_know_who_we_are(port: RpcPort, rpc: NameNodeRpc) -> None:
    port.manners = [lambda call: call.refuse("org.apache.hadoop.security.AccessControlException", "SIMPLE", fatal=True)]
    with pytest.raises(CallsRefused, match="SIMPLE"):
        create(rpc)


@pytest.mark.parametrize("field", [15, 17])
def test_an_encrypted_or_erasure_coded_file_is_removed(port: RpcPort, rpc: NameNodeRpc, field: int) -> None:
    port.manners = [lambda call: call.answer(bytes_field(1, number_field(13, 1) + bytes_field(field, b"")))]
    with pytest.raises(Unsupported, match="erasure coded"):
        create(rpc)
    assert [call.method for call in port.calls] == ["create", "delete"]


@pytest.mark.parametrize(
    "manner",
    [
        lambda call: call.answer(b"", number=call.number + 1),
        lambda call: call.answer(b"\xff"),
        lambda call: call.send(b"\xff"),
        lambda call: call.send(b""),
        lambda call: call.sock.sendall(b"\x7f\xff\xff\xff"),
    ],
)
def test_answers_that_are_none(port: RpcPort, rpc: NameNodeRpc, manner: object) -> None:
    port.manners = [manner]  # type: ignore[list-item]
    with pytest.raises(StoreError, match="answered create badly"):
        create(rpc)
    assert create(rpc) == 4711


def test_a_block_without_datanodes(port: RpcPort, rpc: NameNodeRpc) -> None:
    port.manners = [lambda call: call.answer(bytes_field(1, bytes_field(1, b"")))]
    with pytest.raises(StoreError, match="without DataNodes"):
        rpc.add_block("/file", 1, b"", "", [])


def test_a_silent_namenode(port: RpcPort, rpc: NameNodeRpc) -> None:
    over = threading.Event()

    def hang(_call: Call) -> None:
        over.wait(10)

    port.manners = [hang]
    with pytest.raises(ServiceDown, match="no answer within"):
        create(rpc)
    over.set()


def test_the_active_namenode_is_asked_first_from_then_on() -> None:
    with rpc_port(lambda call: call.refuse(STANDBY, "standby")) as first, rpc_port(good) as second:
        rpc = NameNodeRpc([closed_port(), first.address, second.address], "somebody", TIMEOUT)
        create(rpc)
        create(rpc)
        assert (len(first.calls), len(second.calls)) == (1, 2)
        second.manners = [lambda call: call.refuse("org.apache.hadoop.fs.FileAlreadyExistsException", "there")]
        with pytest.raises(Exists):  # the last word
            create(rpc)
        assert len(first.calls) == 1
        second.otherwise = first.otherwise
        with pytest.raises(ServiceDown) as caught:
            create(rpc)
        assert caught.value.message.count("standby") == 2
        rpc.close()
