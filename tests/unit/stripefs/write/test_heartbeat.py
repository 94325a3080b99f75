"""One heartbeat a mount: how many calls it makes, and that one writer's trouble is not another's."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path

import pytest
import trio
import trio.testing

from stripefs.errors import ServiceDown
from stripefs.store.local import LocalStore
from stripefs.testing.counting import CountingStore
from stripefs.write import FileUpload
from stripefs.write.session import Heartbeat
from stripefs.write.store_ops import ClockReading
from tests.support.uploads import writing

LEASE = 60.0


def calls(store: CountingStore) -> Counter[str]:
    return Counter({"stat": store.counts.stats, "open": store.counts.opens}) + store.counts.changes


def end(upload: FileUpload) -> float:
    """When its lease ends."""
    lock = upload._locks._lock
    assert lock is not None
    return lock._reading.at


@pytest.mark.parametrize("files", [1, 10, 100])
async def test_what_a_beat_costs(tmp_path: Path, files: int) -> None:
    store = CountingStore(LocalStore(bytes(tmp_path)))
    async with writing(store) as uploads:
        for number in range(files):
            await uploads.begin(b"/%d" % number, replacing=None)
        for _ in range(3):
            before = calls(store)
            ends = [end(upload) for upload in uploads._all]
            await uploads.heartbeat.beat()
            made = calls(store) - before
            assert made == {"stat": files + 2, "put": 1, "remove": 1, "attributes": files}
            assert made.total() == 2 * files + 4
            assert all(end(upload) > before for upload, before in zip(uploads._all, ends, strict=True))


class Writer:
    """A file that is being written on a store that may fail or hang; the clocks of store and host agree."""

    def __init__(self, number: int) -> None:
        self.path = b"/%d" % number
        self.trouble = ""
        self.renewals: list[ClockReading | None] = []
        self.under_way = 0

    async def renew(self, reading: ClockReading | None, timeout: float) -> ClockReading | None:
        assert not self.under_way
        self.under_way += 1
        try:
            if self.trouble == "bug":
                raise RuntimeError("a bug")
            if self.trouble == "away":
                raise ServiceDown("away")
            if self.trouble == "hangs":
                await trio.sleep(timeout)
                return None
            self.renewals.append(reading)
            now = trio.current_time()
            return reading or ClockReading(int(now * 1e9), now)
        finally:
            self.under_way -= 1


@pytest.mark.parametrize("trouble", ["bug", "away", "hangs"])
async def test_one_that_cannot_be_renewed_holds_up_no_other(
    autojump_clock: trio.testing.MockClock, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "stripefs.background")  # it says so each time
    writers = [Writer(number) for number in range(5)]
    writers[2].trouble = trouble
    heart = Heartbeat(lambda: writers, LEASE)
    begun = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(heart.run, lambda: begun.append(trio.current_time()))
        start = trio.current_time()
        for beat in range(1, 21):
            await trio.sleep_until(start + beat * LEASE / 3 + LEASE / 5)  # the reading has a sixth of the lease
            assert [len(writer.renewals) for writer in writers if not writer.trouble] == [beat] * 4
        nursery.cancel_scope.cancel()
    assert len(begun) == 20
    assert all(
        sum(reading is None for reading in writer.renewals) in (4, 5) for writer in writers if not writer.trouble
    )
    assert not writers[2].renewals


async def test_without_writers_nothing_is_asked(autojump_clock: trio.testing.MockClock) -> None:
    begun: list[float] = []
    heart = Heartbeat(list, LEASE)
    with trio.move_on_after(10 * LEASE):
        await heart.run(lambda: begun.append(trio.current_time()))
    await heart.beat()
    assert not begun
