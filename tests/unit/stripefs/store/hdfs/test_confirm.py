from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from stripefs.errors import StaleVersion
from stripefs.store.hdfs.handle import GroupCommit


class Action:
    """Runs until released, counting; every run begins by taking a number."""

    def __init__(self) -> None:
        self.runs = 0
        self.begun = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)
        self.failure: Exception | None = None

    def __call__(self) -> None:
        self.runs += 1
        self.begun.release()
        self.go_on.acquire()
        if self.failure is not None:
            raise self.failure


def test_those_who_come_meanwhile_share_the_next_run() -> None:
    action = Action()
    commit = GroupCommit(action)
    with ThreadPoolExecutor(21) as pool:
        first = pool.submit(commit)
        action.begun.acquire()
        others = [pool.submit(commit) for _ in range(20)]
        while commit._next is None:  # the second run has a leader once one of them is in
            threading.Event().wait(0.001)
        action.go_on.release()
        first.result()
        action.begun.acquire()
        assert not any(other.done() for other in others)  # the run under way when they came proves them nothing
        for _ in range(20):
            action.go_on.release()
        for other in others:
            other.result()
    assert 2 <= action.runs <= 4  # a thread that the pool started late may need one more


@pytest.mark.parametrize("failure", [StaleVersion("changed", hint="look again"), ZeroDivisionError("a bug")])
def test_a_failure_reaches_all_who_waited(failure: Exception) -> None:
    action = Action()
    commit = GroupCommit(action)
    with ThreadPoolExecutor(9) as pool:
        calls = [pool.submit(commit) for _ in range(9)]
        action.begun.acquire()
        action.failure = failure
        for _ in range(9):
            action.go_on.release()
        for call in calls:
            with pytest.raises(type(failure), match=r"changed|a bug") as caught:
                call.result()
            assert getattr(caught.value, "hint", "") == getattr(failure, "hint", "")
    action.failure = None
    action.go_on.release()
    commit()
