"""Starts that are recorded: what enters a trace, and which traces count."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio

from imagefs.blocks.source import PackSource
from imagefs.blocks.store import BlockDevice
from imagefs.daemon.documents import Documents
from imagefs.daemon.helpers import RecordedStart, TraceMaker
from imagefs.daemon.metadata_cache import MetadataCache
from imagefs.daemon.sessions import Sessions
from imagefs.daemon.state import Attachment, DeviceUse
from imagefs.settings import DaemonSettings
from imagefs.trace.recorder import PAGE, Recorder
from stripefs.settings import StoreSettings
from tests.support.images.devices import FakeSource, Made, make, noise, running


@dataclass
class World:
    """Starts of images whose devices are made up; what was learned of each, by its number."""

    starts: Sessions
    devices: dict[str, BlockDevice]
    source: PackSource
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
async def world(folder: Path, monkeypatch: pytest.MonkeyPatch, *made: Made) -> AsyncIterator[World]:
    settings = DaemonSettings(cache=str(folder), background_rate=0)
    (folder / "store").mkdir()
    source = PackSource(StoreSettings(url=str(folder / "store")))
    async with running(folder / "blocks") as blocks, trio.open_nursery() as nursery:
        starts = Sessions(settings, blocks, Documents(MetadataCache(folder), 5.0))
        await nursery.start(starts.run)
        devices = {one.digest: await blocks.open(one.digest, one.index, FakeSource(one)) for one in made}
        found = World(starts, devices, source)

        async def make_trace(self: TraceMaker, attachment: Attachment, recorded: RecordedStart) -> None:
            found.learned[attachment.id] = recorded

        monkeypatch.setattr(TraceMaker, "make_trace", make_trace)
        yield found
        nursery.cancel_scope.cancel()
    source.close()


@pytest.mark.parametrize("other", [{"workload": "another"}, {"typical": False}])
async def test_a_record_that_holds_the_reads_of_another_use_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: dict[str, Any]
) -> None:
    image = make(noise(3))
    async with world(tmp_path, monkeypatch, image) as here:
        first = here.begin(1, image)
        here.read(image, 0)
        assert here.starts.figures(first)["recording"]
        here.begin(2, image, **other)
        here.read(image, 1)
        assert not here.starts.figures(first)["recording"]
        assert "another use of its image" in here.starts.figures(first)["unrecorded"]
        here.starts.finish(first, "ready")
        pages, reason = await here.record_of(first)
        assert pages == [0, 1]
        assert "another use of its image" in reason


async def test_starts_of_one_workload_that_begin_together_make_one_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record ends when the first of them has started, in whichever order they do."""
    image = make(noise(3))
    async with world(tmp_path, monkeypatch, image) as here:
        first, second = here.begin(1, image), here.begin(2, image)
        here.read(image, 0, 1)
        assert here.starts.figures(first)["recording"]
        here.starts.finish(second, "ready")
        here.read(image, 2)  # the job of the second, or the rest of the first
        assert not here.starts.figures(first)["recording"]
        here.starts.finish(first, "ready")
        assert await here.record_of(first) == ([0, 1], "")
        assert list(here.learned) == [first.id]


@pytest.mark.parametrize("how", ["unmount", "time"])
async def test_a_start_that_is_broken_off_does_not_end_the_record_that_it_shares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    image = make(noise(3))
    async with world(tmp_path, monkeypatch, image) as here:
        first, second = here.begin(1, image), here.begin(2, image)
        here.read(image, 0)
        here.starts.finish(second, how)
        here.read(image, 1)
        here.starts.finish(first, "marker")
        assert await here.record_of(first) == ([0, 1], "")


async def test_what_is_no_start_any_more_makes_the_record_that_it_shares_count_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = make(noise(3))
    async with world(tmp_path, monkeypatch, image) as here:
        first, second = here.begin(1, image), here.begin(2, image)
        here.starts.forget(second)
        here.read(image, 0)
        here.starts.finish(first, "ready")
        assert "another use of its image" in (await here.record_of(first))[1]


async def test_a_start_of_another_image_changes_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image, other = make(noise(3)), make(noise(3, seed=2))
    async with world(tmp_path, monkeypatch, image, other) as here:
        first = here.begin(1, image)
        here.starts.finish(here.begin(2, other, typical=False), "ready")
        here.read(image, 0)
        here.starts.finish(first, "ready")
        assert await here.record_of(first) == ([0], "")


async def test_a_start_that_is_over_is_not_spoilt_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = make(noise(3))
    async with world(tmp_path, monkeypatch, image) as here:
        first = here.begin(1, image)
        here.starts.finish(first, "ready")
        here.begin(2, image)
        await trio.testing.wait_all_tasks_blocked()
        assert here.learned[first.id].reason == ""
        assert here.starts.figures(first)["unrecorded"] == ""
