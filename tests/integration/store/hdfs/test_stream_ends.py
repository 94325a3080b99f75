"""Ends of a stream from a DataNode before its last byte, and the results of those in line."""

from __future__ import annotations

import threading

import pytest

from stripefs.errors import Abandoned, HostFailed
from tests.integration.store.hdfs.flow import DATA, MIB, RANGE, Flow, in_line, world
from tests.support.stores import RecordingWatch
from tests.support.waiting import eventually
from tests.tools.fake_hdfs import TIMEOUT, Manner, Request, missing_block, no_http


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


def offers_less(request: Request, wanted: bytes) -> None:
    request.answer(200, wanted[:-1])


@pytest.mark.parametrize("manner", [offers_less, no_http, missing_block])
def test_a_stream_that_does_not_begin(manner: Manner) -> None:
    with world(manner) as one:
        with pytest.raises(HostFailed, match=one.node.name):
            one.read(0)
        assert one.open == 0


def test_closing_a_file_ends_its_streams_and_no_others() -> None:
    flow = Flow()
    with world(flow) as one:
        other = one.store.open(b"/file")
        assert one.read(0)
        assert other.read_on(0, RANGE, MIB, host=one.node.name) == DATA[:RANGE]
        one.handle.close()
        assert one.open == 1
        assert other.read_on(RANGE, RANGE, MIB, host=one.node.name) == DATA[RANGE : 2 * RANGE]
        assert len(one.asked) == 2
        other.close()
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


def test_closing_the_store_ends_all() -> None:
    flow = Flow()
    with world(flow) as one:
        assert one.read(0)
        assert one.read(12 * MIB)
        one.store.close()
        assert one.open == 0
        eventually(lambda: flow.open_now == 0, "the end of the connections")
