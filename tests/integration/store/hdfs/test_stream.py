"""Streams from DataNodes on loopback: what is asked for, who takes which bytes of an answer, and how they end."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from stripefs.errors import Abandoned, HostFailed, StaleVersion
from stripefs.store.base import Handle
from stripefs.store.hdfs import read_streams
from stripefs.store.hdfs.store import HdfsStore
from tests.support.stores import RecordingWatch
from tests.support.waiting import eventually
from tests.tools.fake_hdfs import TIMEOUT, FakeCluster, FakeDataNode, Manner, Request, settings_for

MIB = 1 << 20
DATA = random.Random(8).randbytes(24 * MIB)
RANGE = 256 << 10
STEP = 64 << 10


class Flow:
    """A DataNode that sends what is asked for, in steps, and then waits until the client has closed.

    `hold_at`: bytes after which it sends nothing more before `go` is set. `then` happens there instead of the rest.
    """

    def __init__(self, *, hold_at: int | None = None, then: Callable[[Request, bytes], None] | None = None) -> None:
        self.hold_at = hold_at
        self.then = then
        self.held = threading.Event()
        self.go = threading.Event()
        self.open_now = 0
        self._lock = threading.Lock()

    def __call__(self, request: Request, wanted: bytes) -> None:
        with self._lock:
            self.open_now += 1
        try:
            if self._send(request, wanted):
                request.connection.settimeout(30)
                request.rfile.read()
        except OSError:
            pass
        finally:
            with self._lock:
                self.open_now -= 1

    def _send(self, request: Request, wanted: bytes) -> bool:
        request.answer(200, b"", "application/octet-stream", length=len(wanted))
        for at in range(0, len(wanted), STEP):
            if self.hold_at is not None and at >= self.hold_at:
                self.held.set()
                self.go.wait(30)
                if self.then is not None:
                    self.then(request, wanted[at:])
                    return False
            request.wfile.write(wanted[at : at + STEP])
        return True


class World:
    def __init__(self, cluster: FakeCluster, store: HdfsStore, pool: ThreadPoolExecutor) -> None:
        self.cluster = cluster
        self.store = store
        self.pool = pool
        self.handle: Handle = store.open(b"/file")

    @property
    def node(self) -> FakeDataNode:
        return self.cluster.datanodes[0]

    @property
    def asked(self) -> list[tuple[int, int]]:
        return [(int(query["offset"]), int(query["length"])) for query in self.node.served]

    @property
    def open(self) -> int:
        return len(self.store.reads.streams.all())

    def read(self, offset: int, *, ahead: int = len(DATA), watch: RecordingWatch | None = None) -> bool:
        """True if the right bytes came."""
        ahead = min(ahead, len(DATA) - offset - RANGE)
        data = self.handle.read_on(offset, RANGE, ahead, host=self.node.name, watch=watch)
        return data == DATA[offset : offset + RANGE]

    def begin(self, offset: int, *, watch: RecordingWatch | None = None) -> Future[bool]:
        return self.pool.submit(self.read, offset, watch=watch)


@contextmanager
def world(*manners: Callable[[Request, bytes], None], timeout: float = 30.0) -> Iterator[World]:
    with FakeCluster.running(DATA, *manners) as cluster, ThreadPoolExecutor(8) as pool:
        store = HdfsStore(settings_for(cluster, host_timeout=timeout))
        try:
            yield World(cluster, store, pool)
        finally:
            for manner in manners:
                if isinstance(manner, Flow):
                    manner.go.set()
            store.close()


def in_line(one: World, offset: int) -> bool:
    """True if a read that ends at `offset` is the last in line."""
    return any(found.tail == offset for found in one.store.reads.streams.all())


def test_reads_that_follow_one_another_are_one_request() -> None:
    flow = Flow()
    with world(flow) as one:
        assert all(one.read(offset) for offset in range(0, len(DATA), RANGE))
        assert one.asked == [(0, len(DATA))]
        assert one.open == 0  # its last byte was taken
        eventually(lambda: flow.open_now == 0, "the end of the connections")


def test_a_request_ends_where_its_reader_is_expected_to_and_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    with world(Flow()) as one:
        assert one.read(0, ahead=0)
        assert one.asked == [(0, RANGE)]
        assert all(one.read(RANGE + n * RANGE, ahead=3 * RANGE - n * RANGE) for n in range(4))
        assert one.asked[1:] == [(RANGE, 4 * RANGE)]
        monkeypatch.setattr("stripefs.store.hdfs.handle.STREAM", 2 * RANGE)
        assert one.read(16 * MIB)
        assert one.asked[2:] == [(16 * MIB, 3 * RANGE)]


def test_every_range_is_confirmed() -> None:
    with world(Flow()) as one:
        assert one.read(0)
        one.cluster.namenode.mtime += 1
        with pytest.raises(StaleVersion):
            one.read(RANGE)
        assert len(one.asked) == 1  # they had come, and were thrown away


def test_a_read_that_came_too_early_waits_for_those_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_streams, "ORDER", 30.0)
    with world(Flow()) as one:
        assert one.read(0)
        early = [one.begin(3 * RANGE), one.begin(2 * RANGE)]
        assert one.read(RANGE)
        assert all(read.result(30) for read in early)
        assert one.asked == [(0, len(DATA))]


def test_a_gap_that_nobody_fills_ends_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_streams, "ORDER", 0.01)
    flow = Flow()
    with world(flow) as one:
        assert one.read(0)
        assert one.read(2 * RANGE)
        assert one.asked == [(0, len(DATA)), (2 * RANGE, RANGE)]
        assert one.open == 0
        eventually(lambda: flow.open_now == 0, "the end of the connections")


def test_the_first_of_several_comes_last() -> None:
    with world(Flow()) as one:
        assert one.read(RANGE)
        assert one.read(0)
        assert one.read(2 * RANGE)
        assert one.asked == [(RANGE, len(DATA) - RANGE), (0, RANGE)]


def test_an_idle_stream_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_streams, "IDLE", 0.05)
    flow = Flow(hold_at=RANGE // 2)
    with world(flow) as one:
        slow = one.begin(0)
        assert flow.held.wait(30)
        time.sleep(0.2)  # several looks of the one that closes
        flow.go.set()
        assert slow.result(30), "one that is taken is not idle"
        assert len(one.asked) == 1
        eventually(lambda: one.open == 0 and flow.open_now == 0, "the end of the connections")
        assert one.read(RANGE)
        assert len(one.asked) == 2


def test_no_more_than_so_many_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_streams, "MOST", 2)
    with world(Flow()) as one:
        for offset in (0, 8 * MIB, 16 * MIB):
            assert one.read(offset)
            assert one.open <= 2
        assert one.read(16 * MIB + RANGE)
        assert one.read(8 * MIB + RANGE)
        assert len(one.asked) == 3
        assert one.read(RANGE)  # that one was idle longest, and gone
        assert len(one.asked) == 4
        assert one.open == 2


def test_no_place_is_taken_from_who_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_streams, "MOST", 1)
    flow = Flow(hold_at=RANGE // 2)
    with world(flow) as one:
        slow = one.begin(0)
        assert flow.held.wait(30)
        flow.go.set()
        flow.hold_at = None
        assert one.read(12 * MIB)
        assert slow.result(30)
        assert all(one.read(offset) for offset in range(RANGE, 4 * RANGE, RANGE))
        assert one.asked[0] == (0, len(DATA))
        assert {offset for offset, _ in one.asked} == {0, 12 * MIB}


def test_those_in_line_show_that_bytes_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_streams, "ALIVE", 0.01)
    flow = Flow(hold_at=RANGE // 2)
    with world(flow) as one:
        watch = RecordingWatch()
        first = one.begin(0)
        assert flow.held.wait(30)
        second = one.begin(RANGE, watch=watch)
        eventually(lambda: 0 in watch.received, "word that bytes come")
        flow.go.set()
        assert first.result(30)
        assert second.result(30)
        assert watch.received[-1] == RANGE
        assert one.asked == [(0, len(DATA))]


def test_cancelling_who_takes_ends_the_stream_alone() -> None:
    flow = Flow(hold_at=RANGE // 2)
    with world(flow) as one:
        watch = RecordingWatch()
        taking = one.begin(0, watch=watch)
        assert flow.held.wait(30)
        waiting = one.begin(RANGE)
        eventually(lambda: in_line(one, 2 * RANGE), "the place in line")
        flow.hold_at = None
        watch.cancel()
        with pytest.raises(Abandoned):
            taking.result(30)
        assert waiting.result(30)  # by a request of its own
        assert one.asked == [(0, len(DATA)), (RANGE, RANGE)]
        assert one.open == 0
        flow.go.set()
        eventually(lambda: flow.open_now == 0, "the end of the connections")


def test_cancelling_who_waits_ends_the_line_there() -> None:
    flow = Flow(hold_at=RANGE // 2)
    with world(flow) as one:
        watch = RecordingWatch()
        reads = [one.begin(0)]
        assert flow.held.wait(30)
        for offset, its in ((RANGE, watch), (2 * RANGE, None)):
            reads.append(one.begin(offset, watch=its))
            eventually(lambda: in_line(one, offset + RANGE), "the place in line")  # noqa: B023  # asked at once
        flow.hold_at = None
        watch.cancel()
        with pytest.raises(Abandoned):
            reads[1].result(30)
        assert reads[2].result(30)  # without the bytes that nobody takes any more
        flow.go.set()
        assert reads[0].result(30)
        assert one.asked == [(0, len(DATA)), (2 * RANGE, RANGE)]
        assert one.open == 0


def test_one_cancelled_before_it_began() -> None:
    with world(Flow()) as one:
        with pytest.raises(Abandoned):
            one.read(0, watch=RecordingWatch(cancelled=True))
        assert one.open == 0
        assert one.asked == []


def ends(request: Request, rest: bytes) -> None:
    request.close_connection = True
    request.connection.shutdown(2)


@pytest.mark.parametrize(
    ("then", "stalled"),
    [
        (lambda request, _: request.reset(), False),
        (ends, False),
        (lambda request, _: threading.Event().wait(12 * TIMEOUT), True),
    ],
    ids=["resets", "ends", "is silent"],
)
def test_a_datanode_that_fails_on_the_way(then: Manner, stalled: bool) -> None:
    """All in line are told at once; what was taken before is right, and the next read begins anew."""
    flow = Flow(hold_at=RANGE + RANGE // 2, then=then)
    with world(flow, timeout=4 * TIMEOUT if stalled else 30.0) as one:
        assert one.read(0)
        reads = [one.begin(RANGE)]
        assert flow.held.wait(30)
        eventually(lambda: in_line(one, 2 * RANGE), "the place in line")
        reads.append(one.begin(2 * RANGE))
        eventually(lambda: in_line(one, 3 * RANGE), "the place in line")
        flow.go.set()
        for read in reads:
            with pytest.raises(HostFailed, match=one.node.name) as caught:
                read.result(30)
            assert (caught.value.host, caught.value.stalled) == (one.node.name, stalled)
        assert one.asked == [(0, len(DATA))]
        assert one.open == 0
        flow.hold_at = None
        assert one.read(RANGE)
        assert one.read(2 * RANGE)
        assert len(one.asked) == 2


def test_closing_a_file_ends_its_streams_and_closing_the_store_all() -> None:
    flow = Flow()
    with world(flow) as one:
        other = one.store.open(b"/file")
        assert one.read(0)
        assert other.read_on(0, RANGE, MIB, host=one.node.name) == DATA[:RANGE]
        one.handle.close()
        assert one.open == 1
        assert other.read_on(RANGE, RANGE, MIB, host=one.node.name) == DATA[RANGE : 2 * RANGE]
        assert len(one.asked) == 2
        one.store.close()
        assert one.open == 0
        eventually(lambda: flow.open_now == 0, "the end of the connections")


def test_closing_a_file_that_is_read() -> None:
    flow = Flow(hold_at=RANGE // 2)
    with world(flow) as one:
        taking = one.begin(0)
        assert flow.held.wait(30)
        one.handle.close()
        with pytest.raises(HostFailed):
            taking.result(30)
        flow.go.set()
        eventually(lambda: flow.open_now == 0, "the end of the connections")
