"""Reads by the data transfer protocol from a port that answers well, or badly on demand."""

from __future__ import annotations

import errno
import os
import random
import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from stripefs.errors import Abandoned, HostFailed, ServiceDown, StaleVersion
from stripefs.store.allocator import PAGE
from stripefs.store.base import Identity
from stripefs.store.hdfs import block_locations, data_transfer, namenode_failover, short_files
from stripefs.store.hdfs import store as hdfs_store
from stripefs.store.hdfs.data_transfer import DataTransfer, Refused
from stripefs.store.hdfs.fetch_process import FetchProcess
from stripefs.store.hdfs.store import HdfsStore
from stripefs.store.hdfs.transfer_wire import BlockName, BlockRange
from tests.support.caches import refusing
from tests.support.stores import RecordingWatch
from tests.support.waiting import eventually
from tests.tools.fake_hdfs import FakeCluster, Request, closed_port, good, settings_for
from tests.tools.fake_hdfs import Manner as HttpManner
from tests.tools.fake_transfer import Manner, Talk, TransferPort, transfer_port, well
from tests.tools.fetching import fetch_process

DATA = random.Random(26).randbytes((2 << 20) + 777)
TIMEOUT = 0.5


@pytest.fixture
def port() -> Iterator[TransferPort]:
    with transfer_port(DATA) as found:
        yield found


class Shared:
    """A process that outlives the store that fetches by it."""

    def __init__(self, process: FetchProcess) -> None:
        self.fetch = process.fetch

    def close(self) -> None: ...


@pytest.fixture(scope="module")
def process() -> Iterator[FetchProcess]:
    with fetch_process() as found:
        yield found


@pytest.fixture
def here() -> Iterator[DataTransfer]:
    found = DataTransfer()
    yield found
    found.close()


@pytest.fixture(params=["here", "elsewhere"])
def transfer(request: pytest.FixtureRequest, here: DataTransfer) -> Iterator[DataTransfer]:
    """Reads in this process, and in another one, which the tests of this module share."""
    if request.param == "here":
        yield here
        return
    process = request.getfixturevalue("process")
    found = DataTransfer(Shared(process))
    yield found
    found.close()
    assert process._control
    eventually(lambda: not process._buffers.used, "the end of all buffers")


def read(
    transfer: DataTransfer,
    port: TransferPort,
    offset: int,
    length: int,
    watch: RecordingWatch | None = None,
    timeout: float = TIMEOUT,
) -> memoryview:
    return transfer.read(
        BlockRange(BlockName("pool", 5, 1001, len(DATA)), offset, length), port.address, "dn:1", watch, timeout
    )


@pytest.mark.parametrize("packet", [512, 1536, 64 << 10, 4 << 20])
@pytest.mark.parametrize(
    ("offset", "length"),
    [
        (0, len(DATA)),
        (0, 1),
        (len(DATA) - 1, 1),
        (512, 1024),
        (700, 100_000),
        (1 << 20, 1 << 20),
        (1 << 20, len(DATA) - (1 << 20)),
    ],
)
def test_any_bytes(transfer: DataTransfer, port: TransferPort, packet: int, offset: int, length: int) -> None:
    port.packet = packet
    port.kind = 1 if packet == 1536 else 2
    port.chunk = 4096 if packet == 64 << 10 else 4 if length == 1024 else 512
    assert read(transfer, port, offset, length) == DATA[offset : offset + length]
    assert port.asked == [(offset, length)]


def test_one_connection_for_one_read_after_the_other(transfer: DataTransfer, port: TransferPort) -> None:
    for at in range(5):
        assert read(transfer, port, at << 18, 1 << 18) == DATA[at << 18 :][: 1 << 18]
    port.drop_connections()
    assert (port.connections, port.confirmed) == (1, 5)


@pytest.mark.parametrize("used", [False, True])
def test_a_kept_connection_that_ended_is_replaced(transfer: DataTransfer, port: TransferPort, used: bool) -> None:
    """Before it is used, and as it is."""
    read(transfer, port, 0, 1000)
    if used:
        port.manners = [lambda talk: None]
    else:
        port.drop_connections()
    assert read(transfer, port, 1000, 1000) == DATA[1000:2000]
    assert port.connections == 2
    assert not transfer.refusals.reason()


def test_connections_are_kept_for_a_while(here: DataTransfer, port: TransferPort) -> None:
    connections = here._fetcher._connections
    connections.seconds = 0.2
    read(here, port, 0, 1000)
    connections.seconds = 0.0
    read(here, port, 0, 1000)
    assert port.connections == 2
    connections.seconds = 0.05
    eventually(lambda: not port.open, "the end of one that nobody takes")


def _flipped(at: int) -> Manner:
    def answer(talk: Talk) -> None:
        packets = bytearray(b"".join(talk.packets()))
        packets[at] ^= 4
        talk.grant()
        talk.sock.sendall(packets)

    return answer


@pytest.mark.parametrize("at", [31, 31 + 511, 31 + 512 + 5, (64 << 10) + 512 + 31 + 31 + 9])
def test_a_checksum_that_fails(transfer: DataTransfer, port: TransferPort, at: int) -> None:
    """At a checksum, at the last one, in the data, in the second packet."""
    port.manners = [_flipped(at)]
    with pytest.raises(HostFailed, match="block 5 fails its checksum at byte") as caught:
        read(transfer, port, 0, 200_000)
    assert caught.value.host == "dn:1"
    assert not isinstance(caught.value, Refused)
    assert read(transfer, port, 0, 200_000) == DATA[:200_000]


def _breaking_off(talk: Talk) -> None:
    talk.grant()
    talk.sock.sendall(b"".join(talk.packets())[:100_000])


def _ending_early(talk: Talk) -> None:
    talk.grant()
    talk.sock.sendall(talk.packets()[0] + talk.packet(128 << 10, b""))


@pytest.mark.parametrize(
    ("manner", "why"), [(_breaking_off, "broke off with"), (_ending_early, "ended 68928 bytes early")]
)
def test_an_answer_that_is_not_whole(transfer: DataTransfer, port: TransferPort, manner: Manner, why: str) -> None:
    port.packet = 128 << 10
    port.manners = [manner]
    with pytest.raises(HostFailed, match=why) as caught:
        read(transfer, port, 0, 200_000)
    assert not isinstance(caught.value, Refused)


def _refusing(talk: Talk) -> None:
    talk.refuse(1, "Replica not found for BP-1:blk_5")


def _of_no_such_protocol(talk: Talk) -> None:
    talk.sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def _of_other_bytes(talk: Talk) -> None:
    talk.grant(begin=1 << 20)


def _of_two_sizes(talk: Talk) -> None:
    talk.grant()
    data = talk.port.data
    talk.sock.sendall(talk.packet(0, data[:8192]) + talk.packet(8192, data[8192:9216]) + bytes(200_000))


def _of_too_much(talk: Talk) -> None:
    talk.grant()
    talk.sock.sendall(b"".join(talk.packets()[:-1]) + talk.packet(talk.end, bytes(512)))


def _of_one_large_packet(talk: Talk) -> None:
    talk.grant()
    talk.sock.sendall(talk.packet(0, talk.port.data[: 1 << 20]) + talk.packet(1 << 20, b""))


@pytest.mark.parametrize(
    ("manner", "why"),
    [
        (_refusing, "Replica not found for"),
        (lambda talk: talk.refuse(5), "status 5"),
        (lambda talk: None, "closed the connection instead of an answer"),
        (lambda talk: talk.say(b""), "a message of 0 bytes"),
        (lambda talk: talk.sock.sendall(b"\xff" * 5), "instead of an answer"),
        (_of_no_such_protocol, "field|message|broke off"),
        (_of_other_bytes, "other bytes than it was asked for"),
        (_of_two_sizes, "several sizes"),
        (_of_one_large_packet, "more than it was asked for"),
        (_of_too_much, "more than it was asked for"),
    ],
)
def test_reads_that_are_not_granted(transfer: DataTransfer, port: TransferPort, manner: Manner, why: str) -> None:
    port.manners = [manner]
    with pytest.raises(Refused, match=why):
        read(transfer, port, 0, 131_072)
    assert not transfer.refusals.reason()
    assert read(transfer, port, 0, 131_072) == DATA[:131_072]


def test_a_port_where_nothing_listens(transfer: DataTransfer, port: TransferPort) -> None:
    port.address, real = closed_port(), port.address
    with pytest.raises(Refused, match="nothing listens there"):
        read(transfer, port, 0, 1000)
    port.address = real


def test_a_silent_port(transfer: DataTransfer, port: TransferPort, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any read was granted it may be a firewall's; later it is a host that hangs."""
    monkeypatch.setattr(data_transfer, "UNTRIED", 0.05)
    silent: Manner = lambda talk: talk.port.hang()  # noqa: E731
    port.manners = [silent]
    with pytest.raises(Refused, match=r"no answer within 0\.05 s"):
        read(transfer, port, 0, 1000)
    read(transfer, port, 0, 1000)
    port.manners = [silent]
    with pytest.raises(HostFailed, match=r"no answer within 0\.5 s") as caught:
        read(transfer, port, 0, 1000)
    assert caught.value.stalled
    assert not isinstance(caught.value, Refused)


def _pausing(then: Callable[[Talk], None]) -> Manner:
    def answer(talk: Talk) -> None:
        talk.grant()
        talk.sock.sendall(b"".join(talk.packets())[:100_000])
        then(talk)

    return answer


def test_a_datanode_that_falls_silent(transfer: DataTransfer, port: TransferPort) -> None:
    port.manners = [_pausing(lambda talk: talk.port.hang())]
    with pytest.raises(HostFailed, match=r"no answer within 0\.5 s") as caught:
        read(transfer, port, 0, 200_000)
    assert caught.value.stalled


def test_the_first_bytes_may_come_slowly_once_they_are_granted(
    here: DataTransfer, port: TransferPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_transfer, "UNTRIED", 0.05)

    def pause(talk: Talk) -> None:
        select.select([talk.sock], [], [], 0.2)  # one that gives up ends the connection
        talk.sock.sendall(b"".join(talk.packets())[100_000:])

    port.manners = [_pausing(pause)]
    assert read(here, port, 0, 200_000, timeout=30.0) == DATA[:200_000]


def test_a_datanode_that_ends_before_it_hears_that_all_came(here: DataTransfer, port: TransferPort) -> None:
    gone = threading.Event()

    def reset(talk: Talk) -> None:
        talk.grant()
        talk.sock.sendall(b"".join(talk.packets()))
        talk.reset()
        gone.set()

    class Waiting(RecordingWatch):
        def progress(self, received: int) -> None:
            assert gone.wait(10)

    port.manners = [reset]
    assert read(here, port, 0, 1000, Waiting()) == DATA[:1000]
    assert read(here, port, 0, 1000) == DATA[:1000]
    assert port.connections == 2


def test_a_read_that_is_cancelled_when_all_is_here(here: DataTransfer, port: TransferPort) -> None:
    """Its connection may yet be shut down, and is not to be another read's."""

    class Late(RecordingWatch):
        def progress(self, received: int) -> None:
            self.whole = True

        def on_cancel(self, close: Callable[[], None] | None) -> None:
            self.cancelled = close is None and hasattr(self, "whole")

    assert read(here, port, 0, 1000, Late()) == DATA[:1000]
    assert read(here, port, 0, 1000) == DATA[:1000]
    assert port.connections == 2


def test_a_read_that_is_cancelled(transfer: DataTransfer, port: TransferPort) -> None:
    watch = RecordingWatch()
    held = threading.Event()

    def hold(talk: Talk) -> None:
        held.set()
        talk.port.hang()

    port.manners = [_pausing(hold)]

    def cancel() -> None:
        assert held.wait(30)
        while watch.close is None:  # between the answer and its bytes
            time.sleep(0.001)
        watch.cancel()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    with pytest.raises(Abandoned):
        read(transfer, port, 0, 200_000, watch, timeout=30.0)
    canceller.join()
    assert read(transfer, port, 0, 1000) == DATA[:1000]
    assert port.connections == 2


def test_progress_is_told(here: DataTransfer, port: TransferPort) -> None:
    watch = RecordingWatch()
    read(here, port, 0, len(DATA), watch)
    assert watch.received[-1] == len(DATA)
    assert len(watch.received) >= 3


# The store that chooses between this and WebHDFS.


@contextmanager
def hdfs(
    port: TransferPort, *manners: HttpManner, fetch_process: bool = False, **more: object
) -> Iterator[tuple[FakeCluster, HdfsStore]]:
    """`manners` of the DataNodes by WebHDFS, one that answers well unless given. The first one has the port."""
    with FakeCluster.running(DATA, *(manners or [good])) as cluster:
        fake = cluster.namenode
        cluster.datanodes[0].name = fake.replicas[0]["name"] = port.address
        defaults = {"blockSize": 1, "replication": 1, **more}
        fake.operations["GETSERVERDEFAULTS"] = lambda request: request.document({"FsServerDefaults": defaults})
        name = {"blockPoolId": "pool", "blockId": 5, "generationStamp": 1001, "numBytes": len(DATA)}

        def locate(request: Request) -> None:
            block = {"startOffset": 0, "block": name, "locations": fake.replicas}
            request.document({"LocatedBlocks": {"locatedBlocks": [block]}})

        fake.operations["GET_BLOCK_LOCATIONS"] = locate
        # hdfs-native cannot be had of a fake NameNode; WebHDFS alone has no data transfer but what is given to it.
        with closing(HdfsStore(settings_for(cluster)._replace(fetch_process=fetch_process))) as store:
            store._connect_data_transfer()
            yield cluster, store


def read_file(store: HdfsStore, host: str, offset: int, length: int) -> bytes:
    with closing(store.open(b"/file")) as handle:
        return bytes(handle.read_on(offset, length, len(DATA) - offset - length, host=host))


def test_memory_cannot_be_shared(port: TransferPort, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "memfd_create", refusing(errno.EPERM))
    with hdfs(port, fetch_process=True) as (_, store):
        assert read_file(store, port.address, 100, 1 << 20) == DATA[100:][: 1 << 20]
        assert "Operation not permitted" in store.describe()["off: a process that fetches"]


def test_small_reads_come_from_any_replica(port: TransferPort) -> None:
    with hdfs(port) as (cluster, store):
        replicas = cluster.namenode.replicas
        replicas.append(replicas[0] | {"name": closed_port()})
        handle = store.open(b"/file")
        assert handle.read(700, 1000) == DATA[700:1700]
        assert port.asked == [(700, 1000)]
        port.manners = [_flipped(31 + 5)]
        assert handle.read(700, 1000) == DATA[700:1700]  # by WebHDFS of the other one
        assert cluster.datanodes[0].served
        handle.close()


def test_what_is_refused_comes_by_webhdfs(port: TransferPort) -> None:
    with hdfs(port) as (cluster, store):
        port.manners = [_refusing] * 3
        for at in range(4):
            assert read_file(store, port.address, at << 19, 1 << 19) == DATA[at << 19 :][: 1 << 19]
        assert len(port.asked) == 3
        assert len(cluster.datanodes[0].served) == 4
        facts = store.describe()
        assert facts["transport"] == "webhdfs"
        assert "Replica not found" in facts["off: data transfer"]


def test_a_file_without_checksums_is_asked_for_once(port: TransferPort) -> None:
    with hdfs(port) as (_, store), closing(store.open(b"/file")) as handle:
        port.kind = 0
        for at in range(4):
            assert handle.read_on(at << 19, 1 << 19, 0, host=port.address) == DATA[at << 19 :][: 1 << 19]
        assert len(port.asked) == 1


@pytest.mark.parametrize("more", [{"encryptDataTransfer": True}, {"keyProviderUri": "kms://http@kms:9600/kms"}])
def test_clusters_that_webhdfs_is_for(port: TransferPort, more: dict[str, object]) -> None:
    with hdfs(port, **more) as (_, store):
        assert read_file(store, port.address, 0, 1 << 20) == DATA[: 1 << 20]
        assert not port.asked
        assert store.describe()["off: data transfer"]


@contextmanager
def two_replicas(port: TransferPort) -> Iterator[tuple[FakeCluster, HdfsStore, TransferPort]]:
    """The same store with the block on a second DataNode too."""
    with transfer_port(DATA) as other, hdfs(port, good, good) as (cluster, store):
        cluster.datanodes[1].name = cluster.namenode.replicas[1]["name"] = other.address
        yield cluster, store, other


def test_a_namenode_that_goes_away_at_the_last_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left of the store that could not be made."""
    closed = []

    class Native:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        def close(self) -> None:
            closed.append(self)

    monkeypatch.setattr(hdfs_store, "NativeClient", Native)
    with FakeCluster.running(DATA, good) as cluster:
        refusal = ("org.apache.hadoop.ipc.StandbyException", "Operation category READ is not supported")
        cluster.namenode.operations["GETSERVERDEFAULTS"] = lambda request: request.refuse(*refusal)
        with pytest.raises(ServiceDown, match="StandbyException"):
            HdfsStore(settings_for(cluster, transport="auto"))
    assert len(closed) == 1


AWAY = ("org.apache.hadoop.ipc.StandbyException", "Operation category READ is not supported in state standby")


@contextmanager
def short(port: TransferPort, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[FakeCluster, HdfsStore, Identity]]:
    """A store whose file is short, and the identity of that. Its DataNode has granted a read already."""
    monkeypatch.setattr(short_files, "SHORT", len(DATA))
    with hdfs(port) as (cluster, store):
        read_file(store, port.address, 0, 9)
        expected = store.stat(b"/file").identity
        cluster.namenode.asked.clear()
        port.asked.clear()
        yield cluster, store, expected


def test_a_short_file_is_read_when_it_is_opened(port: TransferPort, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once: a kernel that opens it again has its pages, as a rule, and nothing to read."""
    with short(port, monkeypatch) as (cluster, store, expected):
        handle = store.open(b"/file", expected)
        assert handle.read_now(1 << 20, len(DATA) - (1 << 20)) == DATA[1 << 20 :]
        assert handle.read_now(7, 1000) == DATA[7:1007]
        assert cluster.namenode.asked == ["GET_BLOCK_LOCATIONS", "GETFILESTATUS"]
        assert handle.read(5, 10) == DATA[5:15]
        assert cluster.namenode.asked == ["GET_BLOCK_LOCATIONS", "GETFILESTATUS", "GETFILESTATUS"]
        handle.close()
        assert handle.read_now(7, 1000) is None
        again = store.open(b"/file", expected)
        assert again.read_now(0, 1) is None
        assert port.asked == [(0, len(DATA)), (5, 10)]
        assert again.read(0, 1) == DATA[:1]
        again.close()


def test_files_that_are_not_read_when_they_are_opened(port: TransferPort, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short one of a DataNode that has granted nothing yet, or refuses, and a longer one."""
    with hdfs(port) as (_, store):
        expected = store.stat(b"/file").identity
        for length in (len(DATA), len(DATA) - 1):
            monkeypatch.setattr(short_files, "SHORT", length)
            with closing(store.open(b"/file", expected)) as handle:
                assert handle.read_now(0, 1) is None
            assert len(port.asked) == (length < len(DATA))
            read_file(store, port.address, 0, 9)


def test_a_short_file_that_changes_while_it_is_opened(port: TransferPort, monkeypatch: pytest.MonkeyPatch) -> None:
    with short(port, monkeypatch) as (cluster, store, expected):

        def change(talk: Talk) -> None:
            cluster.namenode.mtime += 1
            well(talk)

        port.manners = [change]
        with pytest.raises(StaleVersion):
            store.open(b"/file", expected)
        assert port.asked == [(0, len(DATA))]


def _slowly(talk: Talk) -> None:
    """One byte after the other, each within any limit for a silent DataNode."""
    talk.grant()
    for byte in b"".join(talk.packets()):
        talk.sock.sendall(bytes([byte]))
        time.sleep(0.01)


@pytest.mark.parametrize(
    "manner", [_flipped(31 + 512 + 5), _pausing(lambda talk: talk.port.hang()), _slowly], ids=["bad", "silent", "slow"]
)
def test_a_short_file_whose_replica_does_not_bring_it(
    port: TransferPort, monkeypatch: pytest.MonkeyPatch, manner: Manner
) -> None:
    """It is not asked again at the next opening."""
    monkeypatch.setattr(short_files, "PATIENCE", 0.3)
    with short(port, monkeypatch) as (_, store, expected):
        port.manners = [manner]
        handle = store.open(b"/file", expected)
        assert handle.read_now(0, 1000) is None
        assert handle.read(0, 1000, host=port.address) == DATA[:1000]
        store.open(b"/file", expected).close()
        assert port.asked == [(0, len(DATA)), (0, 1000)]
        handle.close()


def test_a_datanode_that_was_late_delays_no_opening_of_another_file(
    port: TransferPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(short_files, "PATIENCE", 0.3)
    monkeypatch.setattr(short_files, "REMEMBERED", 0)  # the same file counts as another
    with short(port, monkeypatch) as (_, store, expected):
        port.manners = [_pausing(lambda talk: talk.port.hang())]
        for _ in range(3):
            handle = store.open(b"/file", expected)
            assert handle.read_now(0, 1000) is None
            handle.close()
        assert port.asked == [(0, len(DATA))]


def test_a_file_of_an_encryption_zone(port: TransferPort, monkeypatch: pytest.MonkeyPatch) -> None:
    """DataNodes have other bytes than it by data transfer. It may be the first one, long after the store was made."""
    with short(port, monkeypatch) as (cluster, store, expected):
        status = cluster.namenode.status() | {"encBit": True}
        cluster.namenode.operations["GETFILESTATUS"] = lambda request: request.document({"FileStatus": status})
        handle = store.open(b"/file", expected)
        assert handle.status.encrypted
        assert handle.read_now(0, 1000) is None
        handle.close()
        assert read_file(store, port.address, 0, 1 << 20) == DATA[: 1 << 20]
        assert port.asked == [(0, len(DATA))]  # before the NameNode said so


def test_a_short_file_whose_blocks_no_namenode_tells(port: TransferPort, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in safe mode, when the kernel may have its pages."""
    with short(port, monkeypatch) as (cluster, store, expected):
        cluster.namenode.operations["GET_BLOCK_LOCATIONS"] = lambda request: request.refuse(
            "org.apache.hadoop.hdfs.server.namenode.SafeModeException", "Zero blocklocations"
        )
        handle = store.open(b"/file", expected)
        assert handle.status.identity == expected
        handle.close()


def test_the_oldest_short_files_give_way(port: TransferPort, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(short_files, "KEPT", 2 * (len(DATA) + PAGE))
    monkeypatch.setattr(short_files, "REMEMBERED", 0)
    with short(port, monkeypatch) as (_, store, expected):
        handles = [store.open(b"/file", expected) for _ in range(3)]
        assert [handle.read_now(0, 9) for handle in handles] == [None, DATA[:9], DATA[:9]]
        handles[1].close()
        handles.append(store.open(b"/file", expected))
        assert [handle.read_now(0, 9) for handle in handles] == [None, None, DATA[:9], DATA[:9]]
        for handle in handles:
            handle.close()


def test_open_files_are_read_while_no_namenode_serves(port: TransferPort, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namenode_failover, "_BETWEEN", 0.0)  # it is looked for at every call
    with hdfs(port) as (cluster, store):
        handle = store.open(b"/file")
        cluster.namenode.refusal = AWAY
        for at in (0, 1 << 20):
            assert handle.locate(at, 1)
            assert handle.read(at, 1 << 20, host=port.address) == DATA[at : at + (1 << 20)]
            assert handle.read(at, 1 << 20) == DATA[at : at + (1 << 20)]
        assert not cluster.datanodes[0].served
        with pytest.raises(ServiceDown):
            handle.confirm()
        port.manners = [_refusing]
        with pytest.raises(HostFailed):  # by WebHDFS the DataNode would ask the NameNode
            handle.read(0, 1 << 20, host=port.address)
        cluster.namenode.refusal = None
        cluster.namenode.mtime += 1
        with pytest.raises(StaleVersion):
            handle.read(0, 1 << 20, host=port.address)
        handle.close()


def test_bytes_of_one_read_after_the_other_are_confirmed_later(
    port: TransferPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as a NameNode serves; while none does they may be used as they are."""
    monkeypatch.setattr(namenode_failover, "_BETWEEN", 0.0)
    with hdfs(port) as (cluster, store):
        handle = store.open(b"/file")
        watch = LaterWatch()
        handle.read_unconfirmed(0, 1 << 20, 0, host=port.address, watch=watch)
        assert watch.told == 1
        cluster.namenode.refusal = AWAY
        with pytest.raises(ServiceDown):
            handle.confirm()
        assert handle.read_unconfirmed(0, 1 << 20, 0, host=port.address, watch=watch) == DATA[: 1 << 20]
        assert watch.told == 1
        handle.close()


class LaterWatch(RecordingWatch):
    told = 0

    def unconfirmed(self) -> None:
        self.told += 1


def test_the_datanode_of_a_corrupt_replica_is_led_to_the_damage(port: TransferPort) -> None:
    """It reports damage that its own client meets. Once for all reads that meet it."""
    with two_replicas(port) as (cluster, store, other):
        port.manners = [_flipped((64 << 10) + 512 + 31 + 31 + 512 + 9)] * 2
        for _ in range(2):
            with pytest.raises(HostFailed, match="fails its checksum"):
                read_file(store, port.address, 0, 1 << 20)
        [query] = eventually(lambda: cluster.datanodes[0].served, "the request to the DataNode")
        assert (int(query["offset"]), int(query["length"])) == (64 << 10, 64 << 10)
        assert not cluster.datanodes[1].served
        assert read_file(store, other.address, 0, 1 << 20) == DATA[: 1 << 20]
        assert len(cluster.datanodes[0].served) == 1


def test_a_block_that_was_moved_is_read_where_it_is_now(port: TransferPort, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_locations, "_FRESH", -1.0)
    with two_replicas(port) as (cluster, store, other):
        replicas = cluster.namenode.replicas
        here, there = replicas
        replicas[:] = [here]
        handle = store.open(b"/file")
        assert [block.hosts for block in handle.locate(0, len(DATA))] == [(port.address,)]
        replicas[:] = [there]
        port.manners = [_refusing] * 2
        for round_ in range(3):
            watch = RecordingWatch()
            assert handle.read_on(0, 5000, 0, host=port.address, watch=watch) == DATA[:5000]
            assert watch.served == [other.address] * (round_ > 0)
        handle.close()
        assert len(cluster.datanodes[0].served) == 1, "the first read, by WebHDFS, which finds the block"
        assert len(port.asked) == 1
        assert len(other.asked) == 2


@pytest.mark.parametrize("frozen", [False, True])
def test_a_datanode_that_was_away_is_read_by_data_transfer_again(port: TransferPort, frozen: bool) -> None:
    """However long it was: a closed port says nothing of data transfer while the web port is closed too."""
    with hdfs(port) as (cluster, store):
        if frozen:
            read_file(store, port.address, 0, 1000)
        port.manners = [(lambda talk: talk.port.hang()) if frozen else (lambda talk: None)] * 3
        cluster.datanodes[0].manner = lambda request, wanted: request.reset()
        for _ in range(3 + frozen):  # of a frozen one the last by WebHDFS
            with pytest.raises(HostFailed):
                read_file(store, port.address, 0, 1000)
        assert not frozen or len(cluster.datanodes[0].served) == 1
        assert read_file(store, port.address, 0, 1000) == DATA[:1000]
        assert len(port.asked) == 4 + frozen


def test_a_datanode_that_is_left_alone_is_told_of(port: TransferPort) -> None:
    with two_replicas(port) as (_, store, other):
        read_file(store, other.address, 0, 1000)
        port.manners = [lambda talk: None] * 3
        for _ in range(4):
            assert read_file(store, port.address, 0, 1000) == DATA[:1000]
        assert len(port.asked) == 3
        facts = store.describe()
        assert facts["transport"] == "data transfer"
        assert "closed the connection" in facts["off: data transfer from some DataNodes"]
