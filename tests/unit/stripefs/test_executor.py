"""Lanes of threads, deadlines and repetitions."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from stripefs import executor as module
from stripefs.errors import Busy, ServiceDown, StoreError, Transient
from stripefs.executor import Executor, Lane, LaneBlocked, persist, retry_task
from stripefs.retry import RetryPolicy
from tests.support.python_api import python
from tests.support.waiting import eventually


class Gate:
    """Calls that wait until they are let go."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.begun = 0
        self.ended = 0
        self._lock = threading.Lock()

    def wait(self) -> str:
        with self._lock:
            self.begun += 1
        assert self.opened.wait(60)
        with self._lock:
            self.ended += 1
        return "late"


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.opened.set()
    eventually(lambda: made.ended == made.begun, "all calls to end")


async def begun(gate: Gate, calls: int) -> None:
    """Real threads: neither trio's clock nor an event of trio's tells when one begins."""
    while gate.begun < calls:
        await trio.lowlevel.checkpoint()


def refuse(error: BaseException) -> None:
    raise error


class Panic(BaseException):
    """As pyo3's PanicException."""


@pytest.mark.parametrize("error", [Panic("no"), KeyboardInterrupt(), SystemExit(3)])
async def test_what_is_no_exception_becomes_one(error: BaseException) -> None:
    with pytest.raises(StoreError, match="the client failed unexpectedly"):
        await Lane("test", 1).run("it", refuse, error)


async def test_hung_threads_are_replaced_up_to_a_bound_and_then_calls_fail_at_once(
    gate: Gate, mock_clock: MockClock
) -> None:
    lane = Lane("test", 2, spare=3)

    async def hang() -> None:
        with pytest.raises(ServiceDown, match="it: no answer within 1 s"):
            await lane.run("it", gate.wait, timeout=1)

    for before in range(5):
        assert await lane.run("it", int, "5", timeout=1) == 5
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hang)
            await begun(gate, before + 1)
            mock_clock.jump(1)
    with pytest.raises(LaneBlocked, match="all 5 threads for test calls hang"):
        await lane.run("it", int, "5", timeout=1)
    assert lane.busy == 5
    gate.opened.set()
    eventually(lambda: lane.busy == 0, "the threads to be free")
    assert await lane.run("it", int, "5", timeout=1) == 5


async def test_cancelled_callers_block_nothing_before_their_deadlines(gate: Gate, mock_clock: MockClock) -> None:
    """A burst of killed readers says nothing about the service: calls wait instead of failing."""
    lane = Lane("test", 1, spare=1)
    for before in range(2):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lane.run, "it", gate.wait)
            await begun(gate, before + 1)
            nursery.cancel_scope.cancel()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lane.run, "it", int, "5")
        await trio.testing.wait_all_tasks_blocked()
        gate.opened.set()


async def test_one_lane_never_takes_the_threads_of_another(gate: Gate) -> None:
    calls = Executor(30)
    async with trio.open_nursery() as nursery:
        for _ in range(module.THREADS["metadata"] + 1):
            nursery.start_soon(calls.call, "it", gate.wait)
        await begun(gate, module.THREADS["metadata"])
        assert await calls.call("it", int, "5", lane="listing") == 5
        assert calls.busy == module.THREADS["metadata"]
        gate.opened.set()


@pytest.mark.parametrize("drop", [False, True])
async def test_a_call_that_is_cancelled_before_it_begins_never_does(gate: Gate, drop: bool) -> None:
    lane, made = Lane("test", 1, spare=0), []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lane.run, "it", gate.wait)
        await begun(gate, 1)
        with trio.CancelScope() as scope:
            scope.cancel()
            await lane.run("it", made.append, 1, drop=drop)
        async with trio.open_nursery() as inner:
            inner.start_soon(lambda: lane.run("it", made.append, 2, drop=drop))
            await trio.testing.wait_all_tasks_blocked()
            inner.cancel_scope.cancel()
        gate.opened.set()
    await lane.run("it", int)
    assert not made


@pytest.mark.parametrize("options", [{"abandon": False}, {"drop": True}])
async def test_who_must_not_leave_waits_though_cancelled(gate: Gate, options: dict[str, bool]) -> None:
    lane, seen = Lane("test", 1), []

    async def call() -> None:
        seen.append(await lane.run("it", gate.wait, **options))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        await begun(gate, 1)
        nursery.cancel_scope.cancel()
        gate.opened.set()
    assert seen == ["late"]


async def test_a_call_to_drop_that_has_begun_is_left_at_its_deadline(gate: Gate, mock_clock: MockClock) -> None:
    lane, over = Lane("test", 1), trio.Event()

    async def call() -> None:
        with pytest.raises(ServiceDown, match="it: no answer within 1 s"):
            await lane.run("it", gate.wait, timeout=1, drop=True)
        over.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        await begun(gate, 1)
        nursery.cancel_scope.cancel()
        mock_clock.jump(1)
    assert over.is_set()


@settings(deadline=None)
@given(
    threads=st.integers(1, 4),
    spare=st.integers(0, 3),
    steps=st.lists(st.sampled_from(["call", "hang", "end", "leave"]), max_size=30),
)
def test_threads_stay_within_their_bound(threads: int, spare: int, steps: list[str]) -> None:
    """Calls may begin, hang, end and be left in any order."""
    lane = Lane("test", threads, spare)
    stop: list[tuple[threading.Event, trio.CancelScope]] = []

    async def hang(event: threading.Event, scope: trio.CancelScope) -> None:
        with scope:
            await lane.run("it", event.wait, 60)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for step in steps:
                if step == "hang":
                    stop.append((threading.Event(), trio.CancelScope()))
                    nursery.start_soon(hang, *stop[-1])
                elif step == "call" and len(stop) < threads:
                    assert await lane.run("it", int, "5") == 5
                elif step == "leave" and stop:
                    stop[-1][1].cancel()
                elif step == "end" and stop:
                    stop.pop(0)[0].set()
                await trio.testing.wait_all_tasks_blocked()
                assert lane.busy <= threads + spare
            for event, _ in stop:
                event.set()
        assert await lane.run("it", int, "5") == 5

    try:
        trio.run(main)
    finally:
        for event, _ in stop:
            event.set()
        lane.close()


async def test_a_service_that_is_away_is_asked_again_and_each_failure_is_told() -> None:
    answers: list[Exception | int] = [ServiceDown("away"), Transient("busy"), 5]
    told: list[str] = []
    calls = Executor(30, lambda what, error: told.append(f"{what}: {error}"))

    def ask() -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert await calls.call("asking", ask) == 5
    assert (calls.retries, told) == (2, ["asking: away", "asking: busy"])


async def test_an_attempt_that_does_not_come_back_is_cancelled_when_the_time_is_up(autojump_clock: MockClock) -> None:
    async def attempt() -> None:
        await trio.sleep(12)
        raise Transient("away")

    with pytest.raises(ServiceDown, match="asking: no answer within 20 s"):
        await persist("asking", attempt, 20)
    assert trio.current_time() == 20


async def test_a_task_states_by_which_policy_it_is_tried_again(autojump_clock: MockClock) -> None:
    told: list[tuple[str, float]] = []

    async def attempt() -> None:
        raise Busy("a writer")

    policy = RetryPolicy(5.0, first=1.0, longest=1.0, errors=(Busy,))
    with pytest.raises(Busy):
        await retry_task(attempt, policy, lambda error, pause: told.append((str(error), pause)))
    assert {error for error, _ in told} == {"a writer"}
    assert all(0.75 <= pause <= 1.0 for _, pause in told)
    assert trio.current_time() == pytest.approx(sum(pause for _, pause in told))
    assert 4.0 <= trio.current_time() < 5.0


async def test_a_blocked_lane_is_not_asked_again(autojump_clock: MockClock) -> None:
    async def attempt() -> None:
        raise LaneBlocked("all hang")

    with pytest.raises(LaneBlocked):
        await persist("asking", attempt, 20)
    assert trio.current_time() == 0


async def test_a_repetition_may_find_that_the_effect_stands() -> None:
    class Already(StoreError):
        pass

    errors = [Transient("lost"), Already("so")]
    calls = Executor(30)
    await calls.change("renaming", Already, lambda: refuse(errors.pop(0)))
    with pytest.raises(Already):
        await calls.change("renaming", Already, lambda: refuse(Already("so")))


# -- for threads that wait ---------------------------------------------------------------------------------------------


def test_a_thread_gives_up_and_further_calls_fail_at_once(gate: Gate) -> None:
    lane = Lane("test", 1)
    for _ in range(2):
        with pytest.raises(ServiceDown, match=r"NameNode: no answer within 0\.05 s"):
            lane.call("NameNode", gate.wait, 0.05)
    with pytest.raises(LaneBlocked):
        lane.call("NameNode", lambda: 5, 30)


def test_a_lane_makes_calls_by_one_thread_and_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    lane = Lane("test", 4)
    threads = {lane.call("it", threading.current_thread, 30) for _ in range(20)}
    assert len(threads) == 1
    monkeypatch.setattr(module, "IDLE", 0.01)
    one = lane.call("it", threading.current_thread, 30)
    one.join(30)
    assert not one.is_alive()
    assert lane.call("it", threading.current_thread, 30) is not one


def test_a_closed_lane_drops_what_has_not_begun(gate: Gate) -> None:
    lane = Lane("test", 1, spare=0)
    first, second = lane.submit(gate.wait), lane.submit(gate.wait)
    eventually(lambda: gate.begun == 1, "the first to begin")
    lane.close()
    assert second.cancelled()
    gate.opened.set()
    assert first.result(30) == "late"
    with pytest.raises(RuntimeError):
        lane.submit(gate.wait)


class Answer:
    pass


class Refused(Exception):
    pass


def test_an_idle_thread_holds_nothing_of_its_last_call() -> None:
    lane = Lane("test", 1)

    def refused() -> weakref.ref[Refused]:
        try:
            lane.call("it", raising, 30)
        except Refused as error:
            return weakref.ref(error)
        raise AssertionError("it was not refused")

    def raising() -> None:
        raise Refused

    made: Callable[[], Answer | None] = weakref.ref(lane.call("it", Answer, 30))
    error = refused()
    eventually(lambda: made() is None and error() is None, "both to be let go of")


def test_a_call_that_hangs_does_not_keep_the_process_from_its_end() -> None:
    program = """
import threading
from stripefs.errors import ServiceDown
from stripefs.executor import Lane
try:
    Lane("test", 1).call("it", threading.Event().wait, 0.01)
except ServiceDown as error:
    print(error.message)
"""
    assert python(program).stdout == "it: no answer within 0.01 s\n"
