"""Files written by data transfer to ports that take blocks well, or badly on demand."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stripefs.errors import HostFailed, StoreError
from stripefs.store.base import Kind, Sink, Status
from stripefs.store.hdfs.data_transfer import DataTransfer
from stripefs.store.hdfs.namenode_rpc import PlacedBlock
from stripefs.store.hdfs.transfer_wire import ChunkSums
from stripefs.store.hdfs.transfer_write import PRIVATE_CHUNK, Placement, TransferSink
from tests.integration.store.hdfs.talk import Doubts
from tests.tools.fake_hdfs import closed_port
from tests.tools.fake_pipeline import BlockPort, FakePlacer, Writing, block_port, well

DATA = random.Random(27).randbytes((1 << 20) + 777)
TIMEOUT = 0.3


class FakeAddresses:
    def learn(self, replicas: object) -> None: ...

    def transfer_address(self, name: str) -> str:
        return name


class Memory(Sink):
    """The other way to write a file."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.aborted = False

    def write(self, data: Any) -> None:
        self.data += data

    def close(self) -> Status:
        return status(len(self.data))

    def abort(self) -> None:
        self.aborted = True


def status(length: int) -> Status:
    return Status(name=b"file", kind=Kind.FILE, length=length, mtime_ns=1)


class Bench:
    """A port, and sinks that write to it."""

    def __init__(self, port: BlockPort) -> None:
        self.port = port
        self.pipelines = Doubts()
        self.transfer = DataTransfer()
        self.placer = FakePlacer([port.address])
        self.discarded: list[int] = []
        self.other = Memory()

    def sink(
        self, length: int = len(DATA), block_size: int = 64 << 20, patience: int = 2, private: bool = False
    ) -> TransferSink:
        placement: Any = Placement(
            self.placer,  # type: ignore[arg-type]
            self.transfer,
            FakeAddresses(),
            self.pipelines,  # type: ignore[arg-type]
            ChunkSums(2, 512),
            ChunkSums(2, PRIVATE_CHUNK),
            TIMEOUT,
        )
        return TransferSink(
            placement,
            "/file",
            host=self.port.address,
            length=length,
            block_size=block_size,
            replication=1,
            patience=patience,
            private=private,
            confirm=lambda: status(length),
            discard=self.discarded.append,
            instead=lambda: self.other,
        )

    @property
    def written(self) -> bytes:
        """The bytes of the file that the NameNode has closed."""
        assert self.placer.completed is not None
        return b"".join(self.port.blocks[number] for number in self.placer.completed)


@pytest.fixture
def bench() -> Iterator[Bench]:
    with block_port() as port:
        made = Bench(port)
        yield made
        made.transfer.close()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pieces=st.lists(st.integers(0, 3000), max_size=12),
    block_size=st.sampled_from([1024, 4096, 1 << 20]),
    pending=st.integers(0, 2),
    private=st.booleans(),
)
def test_any_pieces_become_the_file(
    bench: Bench, pieces: list[int], block_size: int, pending: int, private: bool
) -> None:
    data = DATA[: sum(pieces)]
    bench.placer = FakePlacer([bench.port.address], pending)
    sink = bench.sink(len(data), block_size, private=private)
    at = 0
    for size in pieces:
        sink.write(bytearray(data[at : at + size]))
        at += size
    assert sink.close().length == len(data)
    assert bench.written == data
    assert not bench.discarded
    sink.abort()
    assert not bench.discarded


def test_the_chunks_of_checksums(bench: Bench) -> None:
    """Those that the NameNode wants, but for a file that nobody else reads and whose blocks are whole longer ones."""
    for private, block_size in ((False, 1 << 20), (True, 1 << 20), (True, 512 * 9)):
        bench.placer = FakePlacer([bench.port.address])
        bench.sink(512 * 9, block_size, private=private).complete([DATA[: 512 * 9]])
        assert bench.written == DATA[: 512 * 9]
    assert bench.port.chunks == [512, PRIVATE_CHUNK, 512]


def test_more_or_less_than_was_announced(bench: Bench) -> None:
    sink = bench.sink(10)
    with pytest.raises(StoreError, match="more is written than the 10 bytes"):
        sink.write(bytes(11))
    sink.abort()
    sink = bench.sink(10)
    sink.write(bytes(9))
    with pytest.raises(StoreError, match="9 bytes were written where 10"):
        sink.close()
    sink.abort()
    with pytest.raises(StoreError, match="it was given up"):
        sink.write(b"x")


def fails_at(number: int, replica: int) -> Any:
    def manner(writing: Writing) -> None:
        writing.accept()
        while (packet := writing.packet()) is not None:
            writing.acknowledge(packet[0], replica if packet[0] == number else None)

    return manner


def breaks_off(writing: Writing) -> None:
    writing.accept()
    writing.packet()


def says_nothing_more(writing: Writing) -> None:
    writing.accept()
    writing.port.hang()


def talks_nonsense(writing: Writing) -> None:
    writing.accept()
    writing.packet()
    writing.sock.sendall(b"\x02\x10\x00")
    writing.port.hang()


@pytest.mark.parametrize(
    ("manner", "message"),
    [
        (fails_at(1, 0), "failed to write a block"),
        (breaks_off, "broke off a block|reset|Broken pipe"),
        (says_nothing_more, "no answer within 1 s"),
        (talks_nonsense, "an acknowledgement of nothing"),
    ],
)
def test_a_block_that_fails_fails_the_file(bench: Bench, manner: Any, message: str) -> None:
    bench.port.manners = [manner]
    sink = bench.sink()
    with pytest.raises(HostFailed, match=message) as caught:
        sink.complete([DATA])
    assert caught.value.host == bench.port.address
    assert bench.placer.completed is None
    assert bench.discarded == [len(DATA)]
    assert not bench.other.data


@pytest.mark.parametrize("silent", [False, True])
def test_the_replica_that_failed_or_is_silent_is_the_one_that_is_named(bench: Bench, silent: bool) -> None:
    bench.placer = FakePlacer([bench.port.address, "other:1"])
    bench.pipelines.dead = ["other:1"] if silent else []
    bench.port.manners = [says_nothing_more if silent else fails_at(0, 1)]
    with pytest.raises(HostFailed) as caught:
        bench.sink(patience=100).complete([DATA])
    assert (caught.value.host, caught.value.stalled) == ("other:1", silent)


@pytest.mark.parametrize("silent", [False, True])
def test_a_block_is_begun_without_a_replica_that_cannot_be_reached(bench: Bench, silent: bool) -> None:
    bench.placer = FakePlacer([bench.port.address, "bad:1", "good:1"])
    if silent:  # which is known
        bench.pipelines.any_silent, bench.pipelines.down = True, ["bad:1"]
    else:
        bench.port.manners = [lambda writing: writing.accept(1, "bad:1")]
    bench.sink().complete([DATA])
    assert bench.written == DATA
    assert bench.placer.calls == ["create", "add", "abandon", "add", "complete"]


class ForgetfulPlacer(FakePlacer):
    """Places blocks at DataNodes that were excluded."""

    def add_block(
        self, path: str, file_id: int, previous: bytes, favoured: str, excluded: Sequence[bytes]
    ) -> PlacedBlock:
        return super().add_block(path, file_id, previous, favoured, ())


def test_no_other_replicas_are_to_be_had(bench: Bench) -> None:
    bench.placer = ForgetfulPlacer([bench.port.address, "silent:1"])
    bench.pipelines.any_silent, bench.pipelines.down = True, ["silent:1"]
    with pytest.raises(HostFailed, match="silent:1 is silent"):
        bench.sink().complete([DATA])


def declines(writing: Writing) -> None:
    writing.accept(5, message="no token")


def wants_sasl(writing: Writing) -> None:
    """Ends the connection instead of an answer."""


@pytest.mark.parametrize("manner", [declines, wants_sasl, lambda writing: writing.port.hang()])
def test_a_datanode_that_takes_no_block_gets_the_file_in_the_other_way(bench: Bench, manner: Any) -> None:
    bench.port.manners = [manner] * 3
    for _ in range(3):
        bench.other, bench.placer = Memory(), FakePlacer([bench.port.address])
        bench.sink().complete([DATA[:1000], DATA[1000:]])
        assert bench.other.data == DATA
        assert bench.placer.completed is None
    assert bench.discarded == [0, 0, 0]
    assert bench.transfer.refusals.reason(bench.port.address)


def test_a_datanode_that_is_down_fails_in_both_ways(bench: Bench) -> None:
    address = closed_port()
    bench.placer = FakePlacer([address])

    def instead() -> Sink:
        raise HostFailed("down", host=address)

    sink = bench.sink()
    sink._instead = instead
    with pytest.raises(HostFailed, match="down"):
        sink.complete([DATA])
    assert not bench.transfer.refusals.reason(address)


def test_a_later_block_is_not_written_in_the_other_way(bench: Bench) -> None:
    bench.port.manners = [well, declines]
    with pytest.raises(HostFailed, match="no token"):
        bench.sink(block_size=1 << 19).complete([DATA])
    assert not bench.other.data
    assert bench.discarded == [len(DATA)]


def test_a_block_that_no_datanode_reports(bench: Bench) -> None:
    bench.placer = FakePlacer([bench.port.address], pending=10**6)
    bench.placer._waiting = 10**6
    with pytest.raises(HostFailed, match="no replica was reported within"):
        bench.sink(patience=1).complete([DATA])
