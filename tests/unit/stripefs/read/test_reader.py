"""The reader with its threads, over local files behind the wrappers that spread, slow, break and count them."""

import random
import sys
import threading

import pytest
import trio
import trio.testing

from stripefs.errors import StaleVersion, StoreError
from stripefs.read import Reader
from stripefs.read.planner.planner import FILES_AHEAD
from stripefs.settings import ReadSettings
from stripefs.store.allocator import Heap
from stripefs.store.local import LocalStore
from stripefs.testing.counting import CountingStore
from stripefs.testing.faults import FaultyStore
from tests.support.uploads import until
from tests.unit.stripefs.read.reading import MIB, opened, reading, settled, spread


async def whole(file, step):
    parts = []
    offset = 0
    while part := await file.read(offset, step):
        parts.append(bytes(part))
        offset += len(part)
    return b"".join(parts)


async def test_the_end_of_a_file(local, content):
    async with opened(local) as (reader, file):
        assert await file.read(len(content) - 5, 100) == content[-5:]
        assert await file.read(len(content), 100) == b""
        assert await file.read(len(content) + 1, 100) == b""
        empty = await reader.open(b"/empty")
        assert await empty.read(0, 100) == b""


async def test_many_readers_cause_one_fetch_of_each_byte(local, content):
    counting = CountingStore(spread(local))
    async with opened(counting) as (reader, file):
        results = []

        async def one():
            results.append(await whole(file, MIB))

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(one)
        assert all(result == content for result in results)
        assert len(results) == 8
        await settled(reader)
        assert counting.counts.bytes == len(content)


async def test_scattered_readers_under_a_tight_budget(local, content):
    async with opened(spread(local), memory=16 * MIB) as (reader, file):

        async def one(seed):
            draw = random.Random(seed)
            for _ in range(30):
                offset, size = draw.randrange(len(content)), draw.randrange(1, 2 * MIB)
                assert await file.read(offset, size) == content[offset : offset + size]

        async with trio.open_nursery() as nursery:
            for seed in range(16):
                nursery.start_soon(one, seed)
        assert reader.snapshot()["memory"]["peak"] <= 16 * MIB


@pytest.mark.parametrize("step", [131072, MIB, 3 * MIB + 17])
async def test_faults_below_the_deadline_do_not_show(local, content, step):
    store = FaultyStore(spread(local), rate=0.2, seed=4, on=("read",))
    async with opened(store) as (reader, file):
        assert await whole(file, step) == content
        assert reader.snapshot()["retries"] > 0
        assert reader.snapshot()["errors"]


class Panic(BaseException):
    """As pyo3's PanicException: not an Exception."""


@pytest.mark.parametrize("error", [ZeroDivisionError("a bug"), Panic("a bug")])
async def test_a_clients_bug_fails_one_read_and_not_the_reader(local, content, caplog, error):
    def failing(*_args, **_kwargs):
        raise error

    async with opened(local) as (_, file):
        read, file.handle.read = file.handle.read, failing
        for _ in range(2):
            with pytest.raises(StoreError, match=r"unexpectedly: .*a bug"):
                await file.read(0, 10)
        file.handle.read = read
        assert await file.read(0, 10) == content[:10]
    assert ("failed unexpectedly; please report this" in caplog.text) is isinstance(error, Exception)
    caplog.clear()


async def test_a_frozen_host_is_overtaken_by_a_replica(local, content):
    store = spread(local, replication=2, host_timeout=30)
    store.hosts_control.freeze("h1")
    async with opened(store) as (reader, file):
        with trio.fail_after(20):
            assert await whole(file, MIB) == content
        figures = reader.snapshot()
        assert figures["hedge_wins"] > 0
        # The reads at the frozen host were unblocked, not left to their time-out of 30 s.
        await settled(reader)


async def test_without_any_answer_the_read_ends_with_an_error(local):
    store = spread(local, host_timeout=0.2)
    for host in store.hosts_control.names:
        store.hosts_control.kill(host)
    async with opened(store, io_timeout=1.0) as (_, file):
        with pytest.raises(StoreError):
            await file.read(0, 10)


async def test_closing_while_a_read_waits(local):
    store = spread(local, rate=1.0, burst=1)
    async with opened(store) as (reader, file):
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def _wait():
                with pytest.raises(StaleVersion):
                    await file.read(0, MIB)

            await trio.testing.wait_all_tasks_blocked(0.05)
            await file.aclose()
        with pytest.raises(StaleVersion):
            await file.read(0, 1)
        await settled(reader)
        assert reader.planner.pool.used == 0


async def test_a_cancelled_read_leaves_no_waiter(local):
    store = spread(local, rate=1.0, burst=1)
    async with opened(store) as (_, file):
        with trio.move_on_after(0.1):
            await file.read(0, MIB)
        assert all(range_.waiters == 0 for range_ in file.plan.ranges.values())


async def test_a_read_over_many_ranges_keeps_none_that_it_has_copied(local, content):
    store = spread(local, host_timeout=30)
    async with opened(store, hedge=False) as (_, file):
        blocks = await file.locate(0, 24 * MIB)
        frozen = next(block for block in blocks if block.hosts != blocks[0].hosts)
        store.hosts_control.freeze(frozen.hosts[0])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(file.read, 0, frozen.offset + MIB)
            last = frozen.offset - 2 * MIB
            await until(lambda: last in file.plan.ranges and file.plan.ranges[last].data is not None)
            await trio.testing.wait_all_tasks_blocked(0.05)
            # The attribute and the argument; a view that the waiting read still has would be one more.
            references = sys.getrefcount(file.plan.ranges[last].data)
            assert references == 2
            nursery.cancel_scope.cancel()


class Remembering:
    """`read_now` of a handle that has `content` in memory but for the offsets of `absent`."""

    def __init__(self, content, absent=()):
        self.asked = []
        self._content, self._absent = content, absent

    def __call__(self, offset, length):
        self.asked.append((offset, length))
        return None if offset in self._absent else self._content[offset : offset + length]


async def test_what_the_store_has_in_memory_needs_no_plan(local, content):
    async with opened(local) as (reader, file):
        file.handle.read_now = now = Remembering(content)
        assert await whole(file, MIB) == content
        into = memoryview(bytearray(5000))
        assert await file.read_into(len(content) - 5000, into) == 5000
        assert into == content[-5000:]
        assert not file.plan.ranges
        assert local.counts.bytes == 0
        assert sum(length for _, length in now.asked) == len(content) + 5000
        told = reader.snapshot()
        assert told["bytes_read"] == told["bytes_fetched"] == len(content) + 5000
        del now.asked[:]
        assert await file.read(0, MIB + 1) == content[: MIB + 1]
        assert not now.asked, "more than a request of the kernel"


async def test_once_a_reader_waits_the_planner_has_its_file(local, content):
    async with opened(local) as (reader, file):
        file.handle.read_now = now = Remembering(content, absent=[3 * MIB])
        assert await whole(file, MIB) == content
        assert [offset for offset, _ in now.asked] == [0, MIB, 2 * MIB, 3 * MIB]
        await settled(reader)
        assert local.counts.bytes == len(content) - 3 * MIB


async def test_a_version_that_is_gone_is_not_read_from_memory(local, content, tmp_path):
    async with opened(local) as (_, file):
        (tmp_path / "big").write_bytes(content[1:])
        with pytest.raises(StaleVersion):
            await file.read(0, 10)
        file.handle.read_now = now = Remembering(content)
        with pytest.raises(StaleVersion):
            await file.read(20 * MIB, 10)
        assert not now.asked


async def test_an_open_that_was_given_up_holds_nothing(local):
    began, go_on = threading.Event(), threading.Event()

    class Slow(CountingStore):
        def open(self, path, expect=None):
            began.set()
            assert go_on.wait(30)
            return super().open(path, expect)

    store = Slow(local)
    async with reading(store) as reader:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reader.open, b"/big")
            await trio.to_thread.run_sync(began.wait)
            nursery.cancel_scope.cancel()
        go_on.set()
        await until(lambda: store.counts.opens and not store.counts.open_now)


async def test_the_heap_is_trimmed_while_and_after_bytes_are_here(local, content, nursery):
    told = []

    class Told(Heap):
        def trim(self, *, busy, room):
            told.append(busy)
            return 0

    reader = Reader(local, ReadSettings(memory=16 * MIB), Told())
    await nursery.start(reader.run)
    file = await reader.open(b"/big")
    assert await whole(file, MIB) == content
    await until(lambda: True in told)
    await file.aclose()
    del told[:]
    await until(lambda: told and not told[-1])


@pytest.fixture
def parts(tmp_path):
    """Three numbered files and the store over their directory."""
    written = [random.Random(number).randbytes(12 * MIB + number) for number in range(3)]
    for number, part in enumerate(written, 1):
        (tmp_path / f"model-{number:05}-of-00004.bin").write_bytes(part)
    store = CountingStore(LocalStore(str(tmp_path)))
    yield written, store
    store.close()


def name_of(number):
    return f"/model-{number:05}-of-00004.bin".encode()


async def test_the_next_of_numbered_files_is_read_ahead_once(parts):
    written, store = parts
    counting = CountingStore(spread(store))
    async with reading(counting) as reader:
        for number, part in enumerate(written, 1):
            file = await reader.open(name_of(number))
            assert await whole(file, MIB) == part
            if number < len(written):
                await until(lambda number=number: len(reader.files(counting, name_of(number + 1))) == 1)
            await file.aclose()
        assert counting.counts.bytes == sum(map(len, written))
        assert counting.counts.refetched == 0
    assert counting.counts.open_now == 0


async def test_no_more_than_a_few_small_files_are_opened_ahead(tmp_path):
    for number in range(40):
        (tmp_path / f"part-{number:02}").write_bytes(bytes(2 * MIB if number < 2 else 10))
    store = LocalStore(str(tmp_path))
    counting = CountingStore(spread(store))
    async with reading(counting) as reader:
        for number in range(2):
            file = await reader.open(f"/part-{number:02}".encode())
            assert len(await whole(file, MIB)) == 2 * MIB
        await until(lambda: counting.counts.opens >= 2 + FILES_AHEAD)
        await settled(reader)
        await trio.testing.wait_all_tasks_blocked(0.2)
        assert counting.counts.opens == 2 + FILES_AHEAD
    assert counting.counts.open_now == 2
    store.close()


async def test_a_file_that_was_replaced_since_is_read_anew(parts, tmp_path):
    written, store = parts
    async with reading(spread(store)) as reader:
        first = await reader.open(name_of(1))
        assert await whole(first, MIB) == written[0]
        await until(lambda: reader.files(reader.store, name_of(2)))
        await settled(reader)
        (tmp_path / "new").write_bytes(written[1][::-1])
        (tmp_path / "new").replace(tmp_path / name_of(2)[1:].decode())
        second = await reader.open(name_of(2))
        assert await whole(second, MIB) == written[1][::-1]


async def test_a_file_whose_reader_does_not_come_is_closed(parts, monkeypatch):
    written, store = parts
    monkeypatch.setattr("stripefs.read.reader.KEPT", 0.0)
    counting = CountingStore(spread(store))
    async with reading(counting) as reader:
        opens = []
        for _ in range(2):
            first = await reader.open(name_of(1))
            assert await whole(first, MIB) == written[0]
            await until(lambda: counting.counts.opens >= 2)
            await until(lambda: not reader.files(counting, name_of(2)))
            await first.aclose()
            await until(lambda: counting.counts.open_now == 0)
            opens.append(counting.counts.opens)
        assert opens[1] == opens[0] + 1  # none is foretold again
        assert reader.snapshot()["memory"]["used"] <= len(written[0])
