"""Stores of a device and their mirrors: where one fails, hangs or is damaged, another is asked, and then it again.

Mirrors are asked first, avoided when they fail in any way, brought back by a probe, and trusted in nothing.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from imagefs.blocks.store import BlockDevice
from imagefs.blocks.upstream import MIRROR_RANGE, Mirror, Mirrors
from imagefs.errors import BlockUnavailable
from imagefs.format.index import BLOCK
from stripefs.errors import HostFailed, NotFound, ServiceDown, StoreError, Unsupported
from stripefs.retry import AVOID_FIRST, HostHealth
from stripefs.settings import StoreSettings
from tests.support.images.devices import MIB, FakeSource, Made, make, noise
from tests.unit.imagefs.blocks.opening import opened


class Copies(FakeSource):
    """The source through which a mirror is read."""

    def __init__(self, *made: Made, documents: dict[bytes, bytes] | None = None) -> None:
        super().__init__(*made)
        self.documents = documents or {}
        self.asked: list[bytes] = []

    def document(self, path: bytes) -> bytes:
        self.asked.append(path)
        if path not in self.documents:
            raise NotFound("no such document")
        return self.documents[path]

    def close(self) -> None:
        """Nothing is open."""


def broken(error: Exception) -> Callable[[int, bytes], bytes]:
    def fault(number: int, data: bytes) -> bytes:
        raise error

    return fault


FAULTS: dict[str, Callable[[int, bytes], bytes]] = {
    "down": broken(ServiceDown("away")),
    "refusing": broken(HostFailed("429 Too Many Requests")),
    "missing": broken(NotFound("no such pack")),
    "whole": broken(Unsupported("the whole file where a part was asked for")),
    "strange": broken(StoreError("a redirect in a circle")),
    "panicking": broken(RuntimeError("a bug of a client")),
    "damaged": lambda number, data: bytes(len(data)),
    "short": lambda number, data: data[:-1],
    "empty": lambda number, data: b"",
}


@pytest.fixture
def made() -> Made:
    return make(noise(24), per_pack=3)


def before(store: FakeSource, *copies: Copies) -> list[Mirror]:
    """`copies` as the mirrors of `store`, by the virtual clock."""
    health = HostHealth()
    store.mirrors = [Mirror(f"http://mirror{n}", one, health, trio.current_time) for n, one in enumerate(copies)]
    return list(store.mirrors)  # type: ignore[arg-type]  # those it was just given


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait until it holds, by a clock that is not the virtual one."""
    for _ in range(3000):
        if condition():
            return
        await trio.to_thread.run_sync(time.sleep, 0.01)
    raise AssertionError("never")


async def block(device: BlockDevice, number: int) -> bytes:
    return bytes(await device.read(number * BLOCK, BLOCK))


async def test_the_first_mirror_serves_all(tmp_path: Path, made: Made) -> None:
    store, first, second = FakeSource(made), Copies(made), Copies(made)
    before(store, first, second)
    async with opened(tmp_path, made, store) as (blocks, device):
        assert bytes(await device.read(0, device.size)) == made.content
        assert first.reads
        assert (store.reads, second.reads) == ([], [])
        assert blocks.snapshot()["upstreams"] == {"store": 0, "http://mirror0": made.index.stored * BLOCK}


async def test_a_mirror_is_asked_ahead_for_long_ranges(tmp_path: Path) -> None:
    """Such ranges meet in a slice of a cache at their ends only."""
    made = make(noise(192))
    store, mirror = FakeSource(made), Copies(made)
    before(store, mirror)
    async with opened(tmp_path, made, store, memory=64 * MIB) as (_, device):
        await device.fetch(range(made.index.blocks))
    assert [length for _, length in mirror.reads] == [MIRROR_RANGE] * (192 * BLOCK // MIRROR_RANGE)


@pytest.mark.parametrize("fault", list(FAULTS))
async def test_whatever_goes_wrong_the_next_is_asked(
    tmp_path: Path, mock_clock: MockClock, made: Made, fault: str
) -> None:
    """With any number of wrong mirrors no reader sees an error, and none of them is asked twice."""
    store, bad = FakeSource(made), [Copies(made) for _ in range(4)]
    for one in bad:
        one.fault = FAULTS[fault]
    mirrors = before(store, *bad)
    async with opened(tmp_path, made, store) as (blocks, device):
        assert await block(device, 0) == made.content[:BLOCK]
        assert [len(one.reads) for one in bad] == [1, 1, 1, 1]
        assert await block(device, 3) == made.content[3 * BLOCK : 4 * BLOCK]
        assert [len(one.reads) for one in bad] == [1, 1, 1, 1]
        assert len(store.reads) == 2
        assert blocks.snapshot()["failures"] == 0
        assert [row["url"] for row in blocks.snapshot()["mirrors"] if row["reason"]] == [one.url for one in mirrors]


async def test_a_probe_brings_a_mirror_back_and_no_reader_pays(
    tmp_path: Path, mock_clock: MockClock, made: Made
) -> None:
    """Only probes ask a mirror that is wrong, ever more seldom; one that is right again is used again."""
    store, copies = FakeSource(made), Copies(made)
    (mirror,) = before(store, copies)
    copies.fault = FAULTS["damaged"]
    async with opened(tmp_path, made, store, io_timeout=3600) as (_, device):
        await block(device, 0)
        pause = AVOID_FIRST
        for number in (3, 6):
            mock_clock.jump(pause / 2)
            await block(device, number)  # avoided
            assert len(copies.reads) == number // 3
            mock_clock.jump(pause / 2)
            assert mirror.on_probation
            await block(device, number + 1)
            await eventually(lambda: not mirror.on_probation)
            assert len(copies.reads) == 1 + number // 3
            pause *= 2
        copies.fault = None
        mock_clock.jump(pause)
        asked = len(store.reads)
        await block(device, 9)
        await eventually(lambda: mirror.healthy)
        assert len(store.reads) == asked + 1
        await block(device, 12)
        assert len(store.reads) == asked + 1


DOCUMENT = b"a document"
DIGEST = hashlib.sha256(DOCUMENT).hexdigest()
PATH = f"/indexes/{DIGEST[:2]}/{DIGEST}".encode()


def test_documents_come_from_the_first_that_has_them_right() -> None:
    now, health = 0.0, HostHealth()
    readers = [Copies(), Copies(documents={PATH: b"another"}), Copies(documents={PATH: DOCUMENT})]
    mirrors = Mirrors(StoreSettings())
    mirrors.all = tuple(Mirror(f"http://mirror{n}", one, health, lambda: now) for n, one in enumerate(readers))
    assert mirrors.document(PATH, DIGEST) == DOCUMENT
    assert [one.healthy for one in mirrors.all] == [False, False, True]
    assert mirrors.document(PATH, DIGEST) == DOCUMENT
    assert [len(one.asked) for one in readers] == [1, 1, 2]
    now = AVOID_FIRST  # on probation, where only a probe asks
    assert mirrors.document(PATH, DIGEST) == DOCUMENT
    assert [len(one.asked) for one in readers] == [1, 1, 3]
    readers[2].documents.clear()
    assert mirrors.document(PATH, DIGEST) is None


def test_a_document_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imagefs.blocks.upstream.DOCUMENT_WITHIN", 0.05)
    gate = threading.Event()

    class Hung(Copies):
        def document(self, path: bytes) -> bytes:
            gate.wait(30)
            return b""

    mirror = Mirror("http://mirror", Hung(), HostHealth(), lambda: 0.0)
    try:
        assert mirror.document(PATH, DIGEST) is None
        assert "no answer within" in mirror.avoided[1]
    finally:
        gate.set()


# -- several stores


@pytest.mark.parametrize("fault", ["down", "missing", "damaged"])
async def test_where_one_store_fails_another_one_is_asked(tmp_path: Path, made: Made, fault: str) -> None:
    bad, good = FakeSource(made, fault=FAULTS[fault]), FakeSource(made)
    async with opened(tmp_path, made, bad, good) as (blocks, device):
        assert bytes(await device.read(0, device.size)) == made.content
        assert bad.reads
        assert blocks.snapshot()["failures"] == 0


async def test_a_store_that_came_back_is_asked_again(tmp_path: Path, mock_clock: MockClock, made: Made) -> None:
    preferred, other = FakeSource(made, fault=FAULTS["down"]), FakeSource(made)
    async with opened(tmp_path, made, preferred, other) as (_, device):
        await device.read(0, BLOCK)
        asked = len(preferred.reads)
        await device.read(3 * BLOCK, BLOCK)
        assert len(preferred.reads) == asked  # it is left alone for a while
        preferred.fault = None
        mock_clock.jump(60)
        before = len(other.reads)
        await device.read(6 * BLOCK, BLOCK)
        assert (len(preferred.reads), len(other.reads)) == (asked + 1, before)


async def test_a_store_that_hangs_is_not_waited_for(tmp_path: Path, mock_clock: MockClock, made: Made) -> None:
    mock_clock.rate = 20
    hung, good = FakeSource(made), FakeSource(made)
    hung.gate.clear()
    try:
        async with opened(tmp_path, made, hung, good, io_timeout=60) as (_, device):
            assert bytes(await device.read(0, BLOCK)) == made.content[:BLOCK]
            assert bytes(await device.read(3 * BLOCK, BLOCK)) == made.content[3 * BLOCK : 4 * BLOCK]
            assert len(hung.reads) == 1
            hung.gate.set()
    finally:
        hung.gate.set()


async def test_where_no_store_has_it_the_error_is_told(tmp_path: Path, made: Made) -> None:
    sources = [FakeSource(made, fault=FAULTS["damaged"]) for _ in range(2)]
    async with opened(tmp_path, made, *sources) as (blocks, device):
        with pytest.raises(BlockUnavailable, match="other bytes"):
            await device.read(0, BLOCK)
        assert all(source.reads for source in sources)
        assert not blocks.fetcher


async def test_a_store_that_is_closed_is_asked_no_more(tmp_path: Path, made: Made) -> None:
    closed, other = FakeSource(made, fault=broken(AssertionError("it is closed"))), FakeSource(made)
    async with opened(tmp_path, made, closed, other) as (blocks, device):
        blocks.remove_source(closed)
        assert bytes(await device.read(0, device.size)) == made.content
        assert closed.reads == []
        device.close()
        device = await blocks.open(made.digest, made.index, closed)
        assert [one.source for one in device.upstreams] == [closed]
