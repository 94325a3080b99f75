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
