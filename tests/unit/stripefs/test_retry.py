"""When calls are tried again; the one table of hosts that are avoided: how long, what ends it, who shares it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stripefs.errors import HostFailed, ServiceDown, StoreError, Transient
from stripefs.read.planner import HostTable
from stripefs.retry import (
    AVOID_FIRST,
    AVOID_LONGEST,
    FORGOTTEN,
    Attempts,
    HostHealth,
    RetryClock,
    RetryPolicy,
    retry,
)
from stripefs.store.base import Host
from stripefs.write.uploader import SendHosts


class Trial:
    """A call that fails with `errors` in turn, then answers; its clock moves by its pauses alone."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.tries = 0
        self.pauses: list[float] = []
        self.clock = RetryClock(lambda: sum(self.pauses), self.pauses.append)

    def call(self) -> int:
        self.tries += 1
        if self.errors:
            raise self.errors.pop(0)
        return self.tries


@given(st.floats(0.001, 5.0), st.floats(1.0, 50.0), st.integers(1, 12), st.floats(0.0, 200.0), st.integers(0, 14))
def test_a_call_is_tried_until_its_tries_or_its_time_are_up(
    first: float, growth: float, tries: int, seconds: float, failures: int
) -> None:
    trial = Trial(*(Transient(f"try {number}") for number in range(1, failures + 1)))
    policy = RetryPolicy(seconds, tries, first, first * growth)
    answer, failed = None, None
    try:
        answer = retry(trial.call, policy, trial.clock)
    except Transient as error:
        failed = error
    if failed is None:
        assert answer == failures + 1
    else:
        assert failed.message == f"try {trial.tries}"
        latest = sum(trial.pauses) + min(first * 2 ** len(trial.pauses), first * growth)
        assert trial.tries == tries or latest >= seconds
    assert trial.tries == len(trial.pauses) + 1 <= tries
    assert not trial.pauses or sum(trial.pauses) < seconds
    for number, pause in enumerate(trial.pauses):
        longest = min(first * 2**number, first * growth)
        assert 0.75 * longest <= pause <= longest


@pytest.mark.parametrize(
    "error", [StoreError("damaged"), HostFailed("away"), KeyError("a bug")], ids=["other", "fatal", "unexpected"]
)
def test_other_errors_stand_at_once(error: Exception) -> None:
    trial = Trial(ServiceDown("away"), error)
    with pytest.raises(type(error)):
        retry(trial.call, RetryPolicy(fatal=(HostFailed,)), trial.clock)
    assert trial.tries == 2


def test_progress_begins_the_time_the_tries_and_the_pauses_anew() -> None:
    attempts = Attempts(RetryPolicy(10.0, 2, first=4.0), 0.0)
    first = attempts.failed(Transient("away"), 1.0)
    assert first is not None
    attempts.restart(9.0)
    assert attempts.deadline == 19.0
    again = attempts.failed(Transient("away"), 9.0)
    assert again is not None
    assert 3.0 <= again <= 4.0
    assert attempts.failed(Transient("away"), 10.0) is None


@given(st.lists(st.tuples(st.sampled_from("fws"), st.floats(0.1, 400.0)), max_size=30))
def test_a_host_is_avoided_for_twice_as_long_each_time(steps: list[tuple[str, float]]) -> None:
    health = HostHealth()
    now, end, length = 0.0, 0.0, 0.0
    for step, pause in steps:
        now += pause
        if step == "w":
            health.worked("h")
            end = length = 0.0
        elif step == "f":
            told = health.failed("h", now, "away")
            assert told == (now >= end)
            if told:
                length = min(2 * length, AVOID_LONGEST) if length else AVOID_FIRST
                end = now + length
        assert health.avoided("h", now) == health.any_avoided(now) == (now < end)
        assert health.on_probation("h", now) == (length > 0 and now >= end)
        assert health.seconds("h", now) == pytest.approx(max(0.0, end - now))
        assert health.reason("h") == ("away" if length else "")
        assert health.order(["h", "other"], now) == (["other", "h"] if now < end else ["h", "other"])


def test_what_was_sent_before_a_host_failed_tells_nothing_new() -> None:
    health = HostHealth()
    assert health.failed("h", 7.0, "away", began=5.0)
    assert not health.failed("h", 20.0, "away", began=6.0)
    assert health.failed("h", 21.0, "away", began=8.0)
    assert health.seconds("h", 21.0) == 2 * AVOID_FIRST


def test_silence_is_forgotten_when_the_host_answers_or_after_long() -> None:
    health = HostHealth()
    health.gave_no_sign("h", 1.0)
    assert (health.silent_since("h"), health.any_silent(1.0), health.avoided("h", 1.0)) == (1.0, True, True)
    assert not health.any_silent(1.0 + FORGOTTEN)
    health.gave_sign("h")
    assert (health.silent_since("h"), health.any_silent(1.0), health.avoided("h", 1.0)) == (None, False, False)
    health.failed("h", 2.0, "a corrupt block")
    health.gave_sign("h")
    assert health.avoided("h", 2.0)


def test_reads_and_writes_avoid_what_either_found() -> None:
    health = HostHealth()
    reads, writes = HostTable(per_host=3, total=32, health=health), SendHosts(health)
    writes.known([Host("a"), Host("b")])
    reads.failed("a", 0.0, "refused")
    assert writes.choose(frozenset(), 1.0) == "b"
    reads.succeeded("a", 1, 1.0)
    writes.failed("b", 2.0, 1.0, "stalled")
    assert reads.choose(["b", "a"], 2.0, demanded=True) == "a"
    assert health.well(["a", "b"], 2.0) == ["a"]
