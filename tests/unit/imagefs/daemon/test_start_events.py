"""Events of a start that a daemon keeps for its client, and the parts of a request that it believes."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as some

from imagefs.daemon.start_events import MOST, Moment, StartEvents, identity_of
from imagefs.startup.emission import EventRecorder
from stripefs.startup_events import ProcessIdentity, Writer
from tests.support.start_events import events_in, pairs
from tests.unit.imagefs.daemon.fake_host import attachment

ANYTHING = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text(),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(), inner, max_size=3),
)


@given(ANYTHING | some.dictionaries(some.sampled_from([*ProcessIdentity._fields, "folder"]), ANYTHING))
def test_whatever_a_request_says_an_identity_comes_of_it(asked: object) -> None:
    """Of known fields, of their types, and short; so it can neither name a folder nor fill a journal."""
    found = identity_of(asked)
    who = ProcessIdentity(**found)
    assert all(type(value) is type(default) or name == "rank" for (name, value), default in zip(
        who._asdict().items(), ProcessIdentity(), strict=True))  # fmt: skip
    assert who.rank is None or 0 <= who.rank < 1 << 31
    assert all(len(value) <= 256 for value in found.values() if isinstance(value, str))


def test_what_is_kept_is_told_once_and_written_by_the_client(tmp_path: Path) -> None:
    start = StartEvents(attachment("1", events={"run": "r7", "node": "n1", "rank": 2}), None)
    start.span("hot device", Moment(1.0), {"bytes": 7})
    start.instant("first byte")
    told = start.take_events()
    assert start.take_events() == {}
    writer = Writer(str(tmp_path), ProcessIdentity(run="another", node="n9"), "imagefs")
    EventRecorder(writer).add(told)
    assert writer.close(30)
    events = events_in(tmp_path)
    assert {(one["run"], one["node"], one["rank"], one["stage"]) for one in events} == {("r7", "n1", 2, "image")}
    begin, end = pairs(events)["image", "hot device"]
    assert (end["facts"], end["mono_ns"] - begin["mono_ns"] >= 1e9) == ({"bytes": 7}, True)


@given(ANYTHING)
def test_answers_of_another_version_harm_nothing(told: object) -> None:
    EventRecorder(Writer("", ProcessIdentity(), "imagefs")).add(told)
    EventRecorder(Writer("", ProcessIdentity(), "imagefs")).add(
        {"who": told, "events": [told, {"event": told, "stage": told}]}
    )


def test_more_than_is_kept_is_counted() -> None:
    start = StartEvents(attachment("1", events={"run": "r7"}), None)
    for _ in range(MOST + 3):
        start.instant("first byte")
    kept = start.take_events()["events"]
    assert len(kept) == MOST + 1
    assert (kept[-1]["stage"], kept[-1]["facts"]) == ("dropped", {"events": 3})


def test_a_daemon_with_a_folder_keeps_nothing(tmp_path: Path) -> None:
    writer = Writer(str(tmp_path), ProcessIdentity(node="here"), "imagefs")
    for who in ({"run": "r7"}, {}):
        start = StartEvents(attachment("1", events=who), writer)
        start.instant("first byte")
        assert (start.on, start.take_events()) == (True, {})
    assert writer.close(30)
    assert [(one.get("run"), one["node"]) for one in events_in(tmp_path)] == [("r7", "here"), (None, "here")]


def test_nobody_wants_events() -> None:
    start = StartEvents(attachment("1"), None)
    start.instant("first byte")
    assert (start.on, start.take_events()) == (False, {})
