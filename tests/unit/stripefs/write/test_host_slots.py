"""Parts that go to the same host: one flows at a time, and none waits for one that will not end."""

import threading

import pytest

from stripefs.errors import Abandoned, HostFailed
from stripefs.write.parts import HostSlots, UploadAttempt
from tests.support.waiting import PATIENCE, eventually


class Sending:
    """A thread that takes its turn at `slots` and keeps it until it is told to `end`."""

    def __init__(self, slots):
        self.attempt = UploadAttempt(b"/part", "h1", 0.0, slots)
        self.flows = threading.Event()
        self.end = threading.Event()
        self.error = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        try:
            with self.attempt.slots.use(self.attempt):
                self.flows.set()
                assert self.end.wait(PATIENCE)
        except (Abandoned, HostFailed) as error:
            self.error = error

    def waits(self):
        """Return once it stands in the line."""
        eventually(lambda: self.attempt.waiting, "its place in the line")

    def over(self):
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


@pytest.fixture
def sending():
    """Makes senders; all of them are over afterwards."""
    made = []

    def make(slots):
        made.append(Sending(slots))
        return made[-1]

    yield make
    for each in made:
        each.end.set()
    for each in made:
        each.over()


def line_of(sending, slots, count):
    """One that flows and `count` that wait behind it, in order."""
    first = sending(slots)
    assert first.flows.wait(PATIENCE)
    rest = []
    for _ in range(count):
        rest.append(sending(slots))
        rest[-1].waits()
    return first, *rest


@pytest.mark.parametrize("at_once", [1, 2])
def test_so_many_flow_at_a_time_and_the_first_that_came_is_next(sending, at_once):
    slots = HostSlots(at_once)
    flowing = [sending(slots) for _ in range(at_once)]
    assert all(each.flows.wait(PATIENCE) for each in flowing)
    waiting = [sending(slots)]
    waiting[0].waits()
    waiting.append(sending(slots))
    waiting[1].waits()
    assert not waiting[0].flows.is_set()
    flowing[-1].end.set()
    assert waiting[0].flows.wait(PATIENCE)
    assert waiting[1].attempt.waiting
    waiting[0].end.set()
    assert waiting[1].flows.wait(PATIENCE)


def test_nobody_waits_for_one_that_was_given_up_with_its_thread(sending):
    first, second = line_of(sending, HostSlots(), 1)
    first.attempt.cancel()
    assert second.flows.wait(PATIENCE)
    first.end.set()
    first.over()
    third = sending(second.attempt.slots)
    third.waits()
    assert not third.flows.is_set()


def test_one_that_waits_can_be_given_up_and_one_that_was_before_does_not_wait(sending):
    first, second, third = line_of(sending, HostSlots(), 2)
    second.attempt.cancel()
    second.over()
    assert isinstance(second.error, Abandoned)
    late = UploadAttempt(b"/part", "h1", 0.0, first.attempt.slots)
    late.cancel()
    with pytest.raises(Abandoned), late.slots.use(late):
        pass
    assert third.attempt.waiting
    first.end.set()
    assert third.flows.wait(PATIENCE)


def test_a_host_that_fails_fails_all_that_wait_for_it_at_once(sending):
    first, second, third = line_of(sending, HostSlots(), 2)
    first.attempt.slots.failed()
    second.over()
    third.over()
    assert isinstance(second.error, HostFailed)
    assert isinstance(third.error, HostFailed)
    first.end.set()
    first.over()
    assert first.error is None
    assert sending(first.attempt.slots).flows.wait(PATIENCE)


def test_waiting_for_a_turn_is_no_stall():
    attempt = UploadAttempt(b"/part", "h1", 0.0, HostSlots())
    attempt.waiting = True
    assert not attempt.stalled(100.0, 20.0)
    attempt.waiting = False
    assert not attempt.stalled(119.0, 20.0)
    assert attempt.stalled(121.0, 20.0)
