"""Faults of stores, mirrors and disks: readers get the right bytes, from wherever they can be had, or EIO."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from imagefs.blocks.store import BlockDevice, BlockStore
from imagefs.blocks.upstream import MIRROR_RANGE, Mirror, Mirrors
from imagefs.errors import BlockUnavailable
from imagefs.format.index import BLOCK
from stripefs.errors import HostFailed, NotFound, PermissionDenied, ServiceDown, StaleVersion, StoreError, Unsupported
from stripefs.retry import AVOID_FIRST, HostHealth
from stripefs.settings import StoreSettings
from tests.support.caches import overwrite
from tests.support.images.devices import MIB, FakeSource, Made, eventually, make, noise, opened, running, settled

TEXT = b"all work and no play " * 6000


def failing(error: BaseException, times: int = 10**9) -> Callable[[int, bytes], bytes]:
    """Raises `error` the first `times` times."""

    def fault(number: int, data: bytes) -> bytes:
        if number < times:
            raise error
        return data

    return fault


async def read_all(blocks: BlockStore, made: Made, source: FakeSource) -> bytes:
    return bytes(await (await blocks.open(made.digest, made.index, source)).read(0, len(made.content)))


async def test_a_lookup_that_fails_leaves_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make(noise(2))
    async with opened(tmp_path, made, FakeSource(made)) as (blocks, device):
        with monkeypatch.context() as patch:
            patch.setattr(blocks.fetcher, "_find", lambda _digest: made.index.place(-1))
            with pytest.raises(IndexError):
                await device.read(0, BLOCK)
        assert len(blocks.fetcher) == 0
        with trio.fail_after(10):
            assert bytes(await device.read(0, 2 * BLOCK)) == made.content


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("error", [ServiceDown("away"), HostFailed("silent")])
async def test_a_store_that_comes_back_in_time_costs_time_only(
    tmp_path: Path, mock_clock: MockClock, error: Exception, ahead: bool
) -> None:
    mock_clock.rate = 200
    made = make(noise(3))
    source = FakeSource(made, fault=failing(error, 12))
    async with running(tmp_path / "blocks", io_timeout=600) as blocks:
        if ahead:
            device = await blocks.open(made.digest, made.index, source)
            assert (await device.fetch(range(3))).failed == 0
        assert await read_all(blocks, made, source) == made.content
        assert blocks.snapshot()["retries"] == 12


@pytest.mark.parametrize("what", ["out of reach", "no answer within 20 s"])
async def test_a_store_that_stays_away_is_an_error_in_time(tmp_path: Path, mock_clock: MockClock, what: str) -> None:
    mock_clock.rate = 10  # so that the last of its tries is over before the time is up, also on a busy machine
    made = make(noise(3))
    source = FakeSource(made, fault=failing(ServiceDown("out of reach")))
    if what != "out of reach":
        source.gate.clear()
    async with running(tmp_path / "blocks", io_timeout=20) as blocks:
        with pytest.raises(BlockUnavailable, match=f"block 0 of device .* {what}") as caught:
            await read_all(blocks, made, source)
        assert caught.value.errno == errno.EIO
        assert next(iter(made.packs)).hex() in str(caught.value)
        source.fault = None
        source.gate.set()
        assert await read_all(blocks, made, source) == made.content


async def test_who_comes_later_has_the_whole_time(tmp_path: Path, mock_clock: MockClock) -> None:
    mock_clock.rate = 100
    made = make(noise(3))
    source = FakeSource(made)
    source.gate.clear()
    async with running(tmp_path / "blocks", io_timeout=20) as blocks:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_all, blocks, made, source)
            await trio.sleep(15)
            nursery.start_soon(read_all, blocks, made, source)
            await trio.sleep(15)
            source.gate.set()
        assert len(source.reads) == 1


@pytest.mark.parametrize(
    "error",
    [NotFound("no such pack"), PermissionDenied("no"), StaleVersion("changed"), RuntimeError("a bug"), SystemExit()],
)
async def test_what_does_not_pass_is_tried_three_times(
    tmp_path: Path, mock_clock: MockClock, error: BaseException
) -> None:
    mock_clock.rate = 50
    made = make(noise(3))
    async with running(tmp_path / "blocks") as blocks:
        source = FakeSource(made, fault=failing(error, 2))
        assert await read_all(blocks, made, source) == made.content
    async with running(tmp_path / "others") as blocks:
        source = FakeSource(made, fault=failing(error))
        with pytest.raises(BlockUnavailable) as caught:
            await read_all(blocks, made, source)
        assert caught.value.errno == errno.EIO
        assert isinstance(caught.value.__cause__, type(error) if isinstance(error, StoreError) else Exception)
        assert len(source.reads) == 3


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:], id="flipped"),
        pytest.param(lambda data: data[:-1], id="shorter"),
        pytest.param(lambda data: data + b"!", id="longer"),
        pytest.param(lambda data: b"", id="nothing"),
    ],
)
@pytest.mark.parametrize("block", [TEXT, noise(1)[0]])
async def test_what_always_arrives_wrong_is_an_error(
    tmp_path: Path, wrong: Callable[[bytes], bytes], block: bytes
) -> None:
    made = make([block])
    source = FakeSource(made, fault=lambda _, data: wrong(data))
    async with running(tmp_path / "blocks") as blocks:
        with pytest.raises(BlockUnavailable, match="holds other bytes than the image says") as caught:
            await read_all(blocks, made, source)
        assert caught.value.errno == errno.EIO
        assert len(source.reads) == 3
        stats = blocks.snapshot()
        assert (stats["damaged"]["arrival"], stats["failures"]) == (3, 1)
        assert not blocks.fetcher
        assert blocks.memory.in_flight == 0
        device = await blocks.open(made.digest, made.index, source)
        await settled(device, blocks)
        assert device.present == 0


def blank_without_mark(data: Path) -> None:
    overwrite(data, 0, bytes(3 * BLOCK))
    data.with_suffix(".complete").unlink()


def garbage_table(data: Path) -> None:
    table = data.with_suffix(".table")
    table.write_bytes(random.Random(1).randbytes(table.stat().st_size))


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: overwrite(data, 2 * BLOCK + 5, b"\0\0\0"), id="flip"),
        pytest.param(lambda data: overwrite(data, 5 * BLOCK + 1000, b"garbage"), id="garbage in a hole"),
        pytest.param(lambda data: overwrite(data, 6 * BLOCK + 1000, b"garbage"), id="garbage behind a short block"),
        pytest.param(blank_without_mark, id="zeros without mark"),
        pytest.param(lambda data: os.truncate(data, 3 * BLOCK), id="cut"),
        pytest.param(Path.unlink, id="delete data"),
        pytest.param(lambda data: data.with_suffix(".table").unlink(), id="delete table"),
        pytest.param(garbage_table, id="garbage table"),
    ],
)
async def test_a_damaged_complete_device_is_not_believed(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    made = make([*noise(5), b"", b"short", b"tail"])
    source = FakeSource(made)
    async with opened(tmp_path, made, source) as (_, device):
        await device.fetch(range(8))
        await eventually(lambda: device.complete)
    data = device.path
    damage(data)
    async with opened(tmp_path, made, source) as (_, device):
        assert not device.complete
        assert bytes(await device.read(0, device.size)) == made.content
        await eventually(lambda: device.complete)
        assert data.read_bytes() == made.content


# -- several stores and mirrors ----------------------------------------------------------------------------------------


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


FAULTS: dict[str, Callable[[int, bytes], bytes]] = {
    "down": failing(ServiceDown("away")),
    "refusing": failing(HostFailed("429 Too Many Requests")),
    "missing": failing(NotFound("no such pack")),
    "whole": failing(Unsupported("the whole file where a part was asked for")),
    "strange": failing(StoreError("a redirect in a circle")),
    "panicking": failing(RuntimeError("a bug of a client")),
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


async def eventually_by_wall(condition: Callable[[], bool]) -> None:
    """Wait until it holds, by a clock that is not the virtual one."""
    for _ in range(3000):
        if condition():
            return
        await trio.to_thread.run_sync(time.sleep, 0.01)
    raise AssertionError("never")


async def block(device: BlockDevice, number: int) -> bytes:
    return bytes(await device.read(number * BLOCK, BLOCK))


async def test_a_mirror_is_asked_ahead_for_long_ranges(tmp_path: Path) -> None:
    """Such ranges meet in a slice of a cache at their ends only."""
    made = make(noise(192))
    store, mirror = FakeSource(made), Copies(made)
    before(store, mirror)
    async with opened(tmp_path, made, store, memory=64 * MIB) as (blocks, device):
        await device.fetch(range(made.index.blocks))
        assert blocks.snapshot()["upstreams"] == {"store": 0, "http://mirror0": made.index.stored * BLOCK}
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
            await eventually_by_wall(lambda: not mirror.on_probation)
            assert len(copies.reads) == 1 + number // 3
            pause *= 2
        copies.fault = None
        mock_clock.jump(pause)
        asked = len(store.reads)
        await block(device, 9)
        await eventually_by_wall(lambda: mirror.healthy)
        assert len(store.reads) == asked + 1
        await block(device, 12)
        assert len(store.reads) == asked + 1


DOCUMENT = b"a document"
DIGEST = hashlib.sha256(DOCUMENT).hexdigest()
PATH = f"/indexes/{DIGEST[:2]}/{DIGEST}".encode()


def test_documents_come_from_the_first_that_has_them_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imagefs.blocks.upstream.DOCUMENT_WITHIN", 0.05)
    now, health, gate = 0.0, HostHealth(), threading.Event()

    class Hung(Copies):
        def document(self, path: bytes) -> bytes:
            self.asked.append(path)
            gate.wait(30)
            return b""

    readers = [Hung(), Copies(documents={PATH: b"another"}), Copies(documents={PATH: DOCUMENT})]
    mirrors = Mirrors(StoreSettings())
    mirrors.all = tuple(Mirror(f"http://mirror{n}", one, health, lambda: now) for n, one in enumerate(readers))
    assert mirrors.document(PATH, DIGEST) == DOCUMENT
    gate.set()
    assert "no answer within" in mirrors.all[0].avoided[1]
    assert [one.healthy for one in mirrors.all] == [False, False, True]
    assert mirrors.document(PATH, DIGEST) == DOCUMENT
    assert [len(one.asked) for one in readers] == [1, 1, 2]
    now = AVOID_FIRST  # on probation, where only a probe asks
    assert mirrors.document(PATH, DIGEST) == DOCUMENT
    assert [len(one.asked) for one in readers] == [1, 1, 3]
    readers[2].documents.clear()
    assert mirrors.document(PATH, DIGEST) is None


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


async def test_a_store_that_is_closed_is_asked_no_more(tmp_path: Path, made: Made) -> None:
    closed, other = FakeSource(made, fault=failing(AssertionError("it is closed"))), FakeSource(made)
    async with opened(tmp_path, made, closed, other) as (blocks, device):
        blocks.remove_source(closed)
        assert bytes(await device.read(0, device.size)) == made.content
        assert closed.reads == []
        device.close()
        device = await blocks.open(made.digest, made.index, closed)
        assert [one.source for one in device.upstreams] == [closed]
