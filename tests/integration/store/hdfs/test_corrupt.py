"""Blocks without an intact replica: what hdfs-native's log proves, and reads whose DataNodes all break off."""

from __future__ import annotations

import re

import pytest

from stripefs.errors import Corrupt, HostFailed
from stripefs.store.base import Buffer, Watch
from stripefs.store.hdfs.native import PinnedFile
from stripefs.store.hdfs.native_workarounds import corruption
from stripefs.store.hdfs.store import HdfsStore
from tests.tools.fake_hdfs import DATA, Request, running

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


def test_one_host_that_breaks_off_between_answers_is_no_corruption() -> None:
    with running(breaks_off, lambda request, wanted: request.answer(200, wanted)) as (_, store):
        pinned = pinning(store, Corrupt("not asked"))
        handle = store.open(b"/file")
        for _ in range(3):
            assert handle.read(0, 10) == DATA[:10]
        assert pinned.reads == 0
