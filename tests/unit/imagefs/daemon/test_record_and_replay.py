"""Starts: what enters a trace and which traces count, and the events that a daemon keeps for its client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from imagefs.blocks.source import PackSource
from imagefs.blocks.store import BlockDevice
from imagefs.daemon.documents import Documents
from imagefs.daemon.helpers import RecordedStart, TraceMaker
from imagefs.daemon.metadata_cache import MetadataCache
from imagefs.daemon.record_and_replay import Sessions
from imagefs.daemon.start_events import MOST, Moment, StartEvents, identity_of
from imagefs.daemon.state import Attachment, DeviceUse
from imagefs.format.index import BLOCK
from imagefs.format.trace import Plan, PlanRun
from imagefs.repository.traces import Traces
from imagefs.settings import DaemonSettings
from imagefs.startup.emission import EventRecorder
from imagefs.trace.recorder import PAGE, Recorder
from stripefs.settings import StoreSettings
from stripefs.startup_events import ProcessIdentity, Writer
from tests.support.images.devices import MIB, FakeSource, Made, eventually, make, noise, running
from tests.support.images.stores import images_in
from tests.support.start_events import events_in, pairs
from tests.unit.imagefs.daemon.fake_host import attachment


@dataclass
class World:
    """Starts of images whose devices are made up; what was learned of each, by its number."""

    starts: Sessions
    devices: dict[str, BlockDevice]
    source: PackSource
    upstream: dict[str, FakeSource]
    learned: dict[str, RecordedStart] = field(default_factory=dict)

    def begin(self, number: int, *made: Made, workload: str = "default", typical: bool = True) -> Attachment:
        uses = tuple(DeviceUse("cold", one.index.device_bytes, one.digest) for one in made)
        image, store = made[0].digest, {"url": "/nowhere"}
        used = "" if all(one.over.is_set() for one in self.starts._starts.values()) else "it was used before"
        one = Attachment(str(number), "s#t", store, image, image, "/m", uses, 1.0, workload=workload, unrecorded=used)
        self.starts.begin(one, [self.devices[each.digest] for each in made], self.source, typical=typical)
        return one

    def read(self, made: Made, *pages: int) -> None:
        for page in pages:
            self.starts.record_read(made.digest, page * PAGE, PAGE)

    async def record_of(self, attachment: Attachment) -> tuple[list[int], str]:
        """The pages of a record that was learned from, and why it is not complete."""
        await trio.testing.wait_all_tasks_blocked()
        found = self.learned[attachment.id]
        touches = Recorder.from_bytes(found.raw).touches()
        return [page for one in touches for page in range(one.first, one.first + one.pages)], found.reason


@asynccontextmanager
async def world(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *made: Made, background_rate: int = 0
) -> AsyncIterator[World]:
    settings = DaemonSettings(cache=str(folder), background_rate=background_rate)
    (folder / "store").mkdir(exist_ok=True)
    source = PackSource(StoreSettings(url=str(folder / "store")))
    async with running(folder / "blocks", memory=64 * MIB) as blocks, trio.open_nursery() as nursery:
        starts = Sessions(settings, blocks, Documents(MetadataCache(folder), 5.0))
        await nursery.start(starts.run)
        sources = {one.digest: FakeSource(one) for one in made}
        devices = {one.digest: await blocks.open(one.digest, one.index, sources[one.digest]) for one in made}
        found = World(starts, devices, source, sources)

        async def make_trace(self: TraceMaker, attachment: Attachment, recorded: RecordedStart) -> None:
            found.learned[attachment.id] = recorded

        monkeypatch.setattr(TraceMaker, "make_trace", make_trace)
        yield found
        nursery.cancel_scope.cancel()
    source.close()


@pytest.mark.parametrize(
    ("same_image", "facts", "end", "pages", "reason"),
    [
        pytest.param(True, {"workload": "another"}, "", [0, 1], "another use of its image", id="another workload"),
        pytest.param(True, {"typical": False}, "", [0, 1], "another use of its image", id="no typical start"),
        pytest.param(True, {}, "forget", [0, 1], "another use of its image", id="no start any more"),
        pytest.param(True, {}, "ready", [0], "", id="the record ends with the first that has started"),
        pytest.param(True, {}, "unmount", [0, 1], "", id="broken off"),
        pytest.param(True, {}, "time", [0, 1], "", id="recorded for long enough"),
        pytest.param(False, {"typical": False}, "ready", [0, 1], "", id="another image"),
    ],
)
async def test_a_start_beside_the_one_that_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same_image: bool, facts: dict[str, Any], end: str,
    pages: list[int], reason: str,
) -> None:  # fmt: skip
    """Starts of one workload make one record, which holds the reads of no other use of the image."""
    image, other = make(noise(3)), make(noise(3, seed=2))
    async with world(tmp_path, monkeypatch, image, other) as here:
        first = here.begin(1, image)
        here.read(image, 0)
        assert here.starts.figures(first)["recording"]
        second = here.begin(2, image if same_image else other, **facts)
        if end == "forget":
            here.starts.forget(second)
        elif end:
            here.starts.finish(second, end)
        here.read(image, 1)
        figures = here.starts.figures(first)
        assert (figures["recording"], reason in figures["unrecorded"]) == (pages == [0, 1] and not reason, True)
        here.starts.finish(first, "marker")
        found, why = await here.record_of(first)
        assert (found, bool(why)) == (pages, bool(reason))
        assert reason in why
        assert list(here.learned) == [first.id]


async def test_a_start_that_is_over_is_not_spoilt_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = make(noise(3))
    async with world(tmp_path, monkeypatch, image) as here:
        first = here.begin(1, image)
        here.starts.finish(first, "ready")
        here.begin(2, image)
        await trio.testing.wait_all_tasks_blocked()
        assert here.learned[first.id].reason == ""
        assert here.starts.figures(first)["unrecorded"] == ""


# -- a first start -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workload", ["serve", "default"])
async def test_a_first_start_streams_what_other_workloads_read_before_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workload: str
) -> None:
    """All blocks come while the start lasts, and none counts as planned; of a workload with a plan only these come."""
    image, likely = make(noise(200), codecs=["lz4"]), range(150, 160)
    (tmp_path / "store").mkdir()
    images = images_in(tmp_path / "store")
    Traces(images.repository).put_plan(Plan(image.digest, "default", 1, [PlanRun(1, likely.start, len(likely))]))
    async with world(tmp_path, monkeypatch, image, background_rate=48 * MIB) as here:
        device, upstream = here.devices[image.digest], here.upstream[image.digest]
        first = here.begin(1, image, workload=workload)
        wanted = len(likely) if workload == "default" else 200
        await eventually(lambda: device.present == wanted, "here")
        read = [offset // BLOCK for offset, _ in upstream.reads]
        if workload == "serve":
            assert read[0] == likely.start
            assert here.starts.figures(first)["planned_blocks"] == 0
        else:
            assert set(read) <= set(likely)
            begun = trio.current_time()
            here.starts.finish(first, "ready")
            await eventually(lambda: device.present == 200, "the rest")
            assert trio.current_time() - begun > 190 * BLOCK / (48 * MIB) - 0.2  # of which 0.1 s may come at once


# -- events of a start -------------------------------------------------------------------------------------------------


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(ANYTHING | st.dictionaries(st.sampled_from([*ProcessIdentity._fields, "folder"]), ANYTHING))
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
    assert not StartEvents(attachment("2"), None).on
    assert writer.close(30)
    assert [(one.get("run"), one["node"]) for one in events_in(tmp_path)] == [("r7", "here"), (None, "here")]
