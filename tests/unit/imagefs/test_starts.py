"""Starts that are recorded: what enters a trace, and which traces count."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio

from imagefs.blocks.fetch import Device
from imagefs.blocks.source import PackSource
from imagefs.daemon.documents import Documents
from imagefs.daemon.learning import Learning, Recorded
from imagefs.daemon.metadata_cache import MetadataCache
from imagefs.daemon.starts import Starts
from imagefs.daemon.state import Attachment, DeviceUse
from imagefs.settings import DaemonSettings
from imagefs.trace.record import Recorder
from stripefs.settings import StoreSettings
from tests.unit.imagefs.devices import FakeSource, Made, make, noise, running


@dataclass
class World:
    """Starts of images whose devices are made up; what was learned of each, by its number."""

    starts: Starts
    devices: dict[str, Device]
    source: PackSource
    learned: dict[str, Recorded] = field(default_factory=dict)

    def begin(self, number: int, *made: Made) -> Attachment:
        uses = tuple(DeviceUse("cold", one.index.device_bytes, one.digest) for one in made)
        one = Attachment(str(number), "s#t", {"url": "/nowhere"}, "d" * 64, "d" * 64, "/m", uses, 1.0)
        self.starts.begin(one, [self.devices[each.digest] for each in made], self.source)
        self.starts.record(one)
        return one


@asynccontextmanager
async def world(folder: Path, monkeypatch: pytest.MonkeyPatch, *made: Made) -> AsyncIterator[World]:
    settings = DaemonSettings(cache=str(folder), background_rate=0)
    (folder / "store").mkdir()
    source = PackSource(StoreSettings(url=str(folder / "store")))
    async with running(folder / "blocks") as blocks, trio.open_nursery() as nursery:
        starts = Starts(settings, blocks, Documents(MetadataCache(folder), 5.0))
        await nursery.start(starts.run)
        devices = {one.digest: await blocks.open(one.digest, one.index, FakeSource(one)) for one in made}
        found = World(starts, devices, source)

        async def learn(self: Learning, attachment: Attachment, recorded: Recorded) -> None:
            found.learned[attachment.id] = recorded

        monkeypatch.setattr(Learning, "learn", learn)
        yield found
        nursery.cancel_scope.cancel()
    source.close()


async def test_a_trace_that_holds_the_reads_of_another_start_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image, other = make(noise(3)), make(noise(3, seed=2))
    async with world(tmp_path, monkeypatch, image, other) as here:
        alone, first = here.begin(1, other), here.begin(2, image)
        here.starts.touch(image.digest, 0, 4096)
        assert here.starts.figures(first)["recording"]
        second = here.begin(3, image)
        here.starts.touch(image.digest, 4096, 4096)
        assert not here.starts.figures(first)["recording"]
        assert "another use of its image" in here.starts.figures(first)["unrecorded"]
        for one in (first, alone):
            here.starts.finish(one, "ready")
        await trio.testing.wait_all_tasks_blocked()
        assert "another use of its image" in here.learned[first.id].reason
        assert len(Recorder.from_bytes(here.learned[first.id].raw)) == 2
        assert here.learned[alone.id].reason == ""
        here.starts.finish(second, "ready")


async def test_a_start_that_is_over_is_not_spoilt_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = make(noise(3))
    async with world(tmp_path, monkeypatch, image) as here:
        first = here.begin(1, image)
        here.starts.finish(first, "ready")
        here.begin(2, image)
        await trio.testing.wait_all_tasks_blocked()
        assert here.learned[first.id].reason == ""
        assert here.starts.figures(first)["unrecorded"] == ""
