"""Events of reads, by a clock of the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from stripefs.cache.cached_store import CACHE
from stripefs.read_events import IDLE, LEAST, SPANS, TOGETHER, ReadEvents, events_of_reads
from stripefs.stalls import LEAST as LEAST_STALL
from stripefs.stalls import Stalls
from stripefs.startup_events import ProcessIdentity, Writer
from tests.support.start_events import events_in, pairs


class Told(ReadEvents):
    """With a clock that is set by hand, and what was written."""

    def __init__(self, folder: Path) -> None:
        self.time = 1000.0
        self.folder = folder
        writer = Writer(str(folder), ProcessIdentity(run="r7"), "stripefs")
        super().__init__(writer, "datanode", "cluster", lambda: self.time)

    def events(self) -> list[dict[str, Any]]:
        assert self._writer.close(30)
        return events_in(self.folder)

    def seconds(self, begin: dict[str, Any], end: dict[str, Any]) -> float:
        return round((int(end["mono_ns"]) - int(begin["mono_ns"])) / 1e9)


def kinds(told: Told) -> list[str]:
    return [str(one["event"]) for one in told.events()]


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Told]:
    made = Told(tmp_path / "events")
    yield made
    made.close()


def test_a_file_that_is_read(told: Told) -> None:
    assert told.opened("config.json", LEAST - 1) is None
    file = told.opened("model", LEAST)
    assert file is not None
    told.time += 2
    file.took("dn1", 300)
    told.time += 3
    file.took(CACHE, 50)
    told.time += 100
    file.closed()
    begin, end = pairs(told.events())["checkpoint", "model"]
    assert end["facts"] == {"bytes": 350, "cache_bytes": 50, "store_bytes": 300}
    assert told.seconds(begin, end) == 5  # until the last byte, whenever it was closed


def test_a_file_that_stays_open(told: Told) -> None:
    file = told.opened("model", LEAST)
    assert file is not None
    file.took("", 10)
    told.time += IDLE - 1
    told.tick()
    assert kinds(told) == ["begin", "instant"]
    told.time += 1
    told.tick()
    told.tick()
    assert kinds(told) == ["begin", "instant", "end"]
    file.took("", 7)
    told.close()
    assert [one["facts"]["bytes"] for one in told.events() if one["event"] == "end"] == [10, 7]


def test_one_that_waits_is_not_idle(told: Told) -> None:
    file = told.opened("model", LEAST)
    assert file is not None
    file.waits()
    begun, told.time = told.time, told.time + 4 * IDLE
    told.tick()
    assert kinds(told) == ["begin"]
    file.waited(begun, "dn2")
    file.took("dn1", 10)
    file.closed()
    spans = pairs(told.events())
    begin, end = spans["checkpoint", "stall"]
    assert (begin["kind"], begin["facts"]) == ("wait", {"cause": "datanode", "host": "dn2"})
    assert begin["parent"] == spans["checkpoint", "model"][0]["span"]
    assert told.seconds(begin, end) == 4 * IDLE
    facts = spans["checkpoint", "model"][1]["facts"]
    assert (facts["wait_ns"], facts["host"]) == (4 * IDLE * 1e9, "dn2")


@pytest.mark.parametrize(
    ("url", "facts"),
    [
        ("hdfs://name:9000/a", ("datanode", "name:9000")),
        ("throttled+hdfs://c/", ("datanode", "c")),
        ("throttled+file:///a", ("store", "")),
        ("s3://bucket/a?secret=x", ("store", "bucket")),
    ],
)
def test_what_a_store_calls_its_hosts(tmp_path: Path, url: str, facts: tuple[str, str]) -> None:
    told = events_of_reads(str(tmp_path), url)
    assert (told.about("h")["cause"], told.about("").get("host", "")) == facts
    assert (told.about(CACHE), told.about("")["cause"]) == ({"cause": "disk"}, "store")


def test_many_files_are_told_together(told: Told) -> None:
    """As many as may be by themselves, and one more each second; what the others read is in the sum."""
    for number in range(SPANS + 500):
        file = told.opened(f"shard-{number}", LEAST)
        assert file is not None
        file.took("dn1", 2)
        told.time += 0.01
        file.closed()
    told.time += TOGETHER
    told.tick()
    events = told.events()
    ends = [one for one in events if one["event"] == "end"]
    (others,) = [one for one in ends if one["name"] == "other files"]
    by_themselves = len(ends) - 1
    assert SPANS <= by_themselves <= SPANS + 15
    assert others["facts"]["files"] + by_themselves == SPANS + 500
    assert sum(one["facts"]["bytes"] for one in ends) == 2 * (SPANS + 500)
    pairs(events)


@given(some.lists(some.tuples(some.floats(0, 100), some.floats(0, 20), some.sampled_from("ab"))))
def test_stalls_cover_what_was_waited_for(waits: list[tuple[float, float, str]]) -> None:
    """Of each wait all but less than the least is in what is told; no short wait is told."""
    stalls = Stalls()
    told: dict[str, list[tuple[float, float]]] = {"a": [], "b": []}
    for begun, waited, host in sorted(waits, key=lambda one: one[0] + one[1]):
        now = begun + waited
        if stalls.ended(begun, now, "datanode", host):
            assert now - begun >= LEAST_STALL
            told[host].append((begun, now))
        assert uncovered(begun, now, told[host]) < LEAST_STALL


def uncovered(begun: float, end: float, told: list[tuple[float, float]]) -> float:
    """The length of what none of `told` covers."""
    left, at = 0.0, begun
    for first, last in sorted(told):
        left += max(0.0, min(first, end) - at)
        at = max(at, last)
    return left + max(0.0, end - at)


def test_reads_that_wait_for_one_host_are_told_once() -> None:
    stalls = Stalls()
    assert [stalls.ended(0.001 * n, 5 + 0.001 * n, "datanode", "a") for n in range(100)] == [True] + [False] * 99
    assert stalls.ended(0, 5.2, "datanode", "b")
    assert stalls.ended(2, 7, "datanode", "a")
