"""Bytes that have to be confirmed are shown after a question that began when they were here; one serves for many."""

import itertools
import threading
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from stripefs.errors import ServiceDown, StaleVersion
from stripefs.executor import Executor
from stripefs.read import attempts
from stripefs.read.attempts import Confirmations
from stripefs.read.planner import Attempt, Range, RangeState
from stripefs.store.wrapper import WrappedHandle, WrappedStore
from tests.support.uploads import until
from tests.unit.stripefs.read.reading import MIB, opened, settled


class AskedStore(WrappedStore):
    """Its files are confirmed, but for the questions that end with one of `errors`."""

    NAME = "asked"
    PARAMETERS = {}  # noqa: RUF012

    def __init__(self, inner):
        super().__init__(inner)
        self.errors = iter(())
        self.asked = 0

    def handle(self, path, inner):
        return AskedHandle(self, inner)


class AskedHandle(WrappedHandle):
    def __init__(self, store, inner):
        super().__init__(inner)
        self.store = store
        self.lock = threading.Lock()
        self.landed = set()
        self.confirmed = set()

    def read_unconfirmed(self, offset, length, ahead, *, host, watch):
        data = self.inner.read(offset, length, host=host, watch=watch)
        watch.unconfirmed()
        with self.lock:
            self.landed.add(offset)
        return data

    def confirm(self):
        with self.lock:
            here = set(self.landed)
        self.store.asked += 1
        for error in self.store.errors:
            raise error
        self.confirmed |= here


@pytest.fixture
def asked(local):
    return AskedStore(local)


async def read_through(file, content):
    """All of it; each MiB is checked, and lies in a range that was confirmed."""
    for offset in range(0, len(content), MIB):
        assert await file.read(offset, MIB) == content[offset : offset + MIB]
        assert any(begin <= offset for begin in file.handle.confirmed)
        range_ = file.plan.ranges.get(offset)
        assert range_ is None or range_.offset in file.handle.confirmed


async def test_few_questions_confirm_many_ranges(asked, content):
    async with opened(asked, range_size=MIB) as (_, file):
        await read_through(file, content)
        assert 0 < asked.asked < len(file.handle.landed) / 2
        await file.aclose()


async def test_a_reader_waits_while_more_read_ahead_is_on_its_way_than_has_come(monkeypatch, nursery):
    monkeypatch.setattr(attempts, "TOGETHER_FIRST", 1e6)
    monkeypatch.setattr(attempts, "TOGETHER", 1e6)
    asked, answered, file = [], [], SimpleNamespace(ranges={})
    handle = SimpleNamespace(confirm=lambda: asked.append(len(answered)))

    def start(_what, work):
        nursery.start_soon(work)

    def ended(attempt, data):
        answered.append(data)

    def fetching(*, demanded=False, waiters=0):
        """The attempt for one more range."""
        at = len(file.ranges)
        state = RangeState.FETCHING
        file.ranges[at] = Range(file, at, at + 1, (), state=state, demanded=demanded, waiters=waiters)
        attempt = Attempt(file.ranges[at], "", 0.0)
        file.ranges[at].attempts.append(attempt)
        return attempt

    def lands(attempt):
        attempt.received_at = 1.0
        one.add(attempt, attempt.range.offset)

    async def settle(count):
        await until(lambda: len(answered) >= count)
        await trio.testing.wait_all_tasks_blocked()
        for offset in answered:
            file.ranges.pop(offset, None)

    one = Confirmations("file", handle, Executor(5.0), start, ended, 5.0)
    head, *ahead = [fetching(demanded=True), *(fetching() for _ in range(5))]
    lands(head)
    await settle(1)
    ahead[0].range.waiters = 1
    lands(ahead[0])
    lands(ahead[1])
    await settle(1)
    assert asked == [0]
    lands(ahead[2])
    await settle(4)
    assert asked == [0, 1]
    lands(ahead[3])
    fetching(demanded=True)
    fetching(waiters=1)
    ahead[4].range.state = RangeState.FAILED
    await settle(4)
    assert asked == [0, 1]
    one.hurry()
    await settle(5)
    assert asked == [0, 1, 4]
    assert answered == [0, 1, 2, 3, 4]


async def test_questions_come_closer_together_when_read_ahead_begins(autojump_clock, nursery):
    """A reader of a short file need not wait for the second question as long as one of a long file may."""
    asked, file = [], SimpleNamespace(ranges={})

    async def run(_what, question, *, timeout):
        assert timeout == 5.0
        question()

    def start(_what, work):
        nursery.start_soon(work)

    executor = SimpleNamespace(lane=lambda _name: SimpleNamespace(run=run))
    handle = SimpleNamespace(confirm=lambda: asked.append(trio.current_time()))
    one = Confirmations("file", handle, executor, start, lambda attempt, _: file.ranges.pop(attempt.range.offset), 5.0)
    for at in range(400):
        file.ranges[at] = Range(file, at, at + 1, (), state=RangeState.FETCHING, demanded=at == 0)
        file.ranges[at].attempts.append(Attempt(file.ranges[at], "", 0.0))
    for range_ in list(file.ranges.values())[:200]:
        one.add(range_.attempts[0], b"")
        range_.attempts[0].received_at = 1.0
        one.hurry()
        await trio.sleep(1 / 64)
    gaps = [late - early for early, late in itertools.pairwise(asked)]
    assert len(gaps) > 5
    assert gaps == pytest.approx([1 / 16, 1 / 8, 1 / 4] + [1 / 2] * (len(gaps) - 3), abs=1 / 32)


async def test_bytes_of_another_version_are_not_shown(asked, content):
    asked.errors = itertools.repeat(StaleVersion("replaced"))
    async with opened(asked, range_size=MIB) as (reader, file):
        with pytest.raises(StaleVersion):
            await file.read(0, MIB)
        with pytest.raises(StaleVersion):
            await file.read(len(content) - MIB, MIB)
        await settled(reader)


async def test_a_question_without_an_answer_is_asked_again_with_its_bytes(asked, content):
    asked.errors = iter([ServiceDown("away")] * 2)
    async with opened(asked, range_size=MIB) as (reader, file):
        await read_through(file, content)
        assert reader.snapshot()["errors"]["ServiceDown"] > 0
        assert reader.snapshot()["retries"] > 0
