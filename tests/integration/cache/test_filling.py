"""Bytes on local disk go straight into page-aligned memory of a program, are checked there, and are right."""

from __future__ import annotations

import errno
import mmap
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from stripefs.api.file_reader import read_into
from stripefs.cache.cache import DiskHealth
from stripefs.cache.cache_format import DATA_AT
from stripefs.cache.cached_store import CACHE, CachedHandle
from stripefs.cache.checked_blocks import Version
from stripefs.cache.segment import CacheSegment
from stripefs.read import OpenFile, Reader
from stripefs.settings import ReadSettings
from tests.support.caches import MIB, Cached, flip, refusing, write
from tests.support.uploads import until

SIZE = 80 * MIB + 5000


def memory(size: int, skew: int = 0) -> memoryview:
    """`size` bytes that begin `skew` bytes behind where a page does."""
    return memoryview(mmap.mmap(-1, size + skew + 1))[skew : skew + size]


@asynccontextmanager
async def opened(one: Cached, path: bytes = b"/a") -> AsyncIterator[tuple[Reader, OpenFile]]:
    reader = Reader(one.store, ReadSettings())
    async with trio.open_nursery() as nursery:
        await nursery.start(reader.run)
        file = await reader.open(path)
        yield reader, file
        await file.aclose()
        nursery.cancel_scope.cancel()


@pytest.fixture
def data(source: Path, one: Cached) -> bytes:
    """Of a file that is wholly cached."""
    made = write(source / "a", SIZE)
    one.read(b"/a")
    return made


@pytest.mark.parametrize(("small", "planned"), [(2 * MIB, False), (4096, False), (4 * MIB, True)])
async def test_smaller_reads_among_larger_ones_are_not_planned(
    one: Cached, data: bytes, small: int, planned: bool
) -> None:
    """As long as they take a quarter of the bytes at most."""
    offset, into = 4096, memory(8 * MIB)
    async with opened(one) as (reader, file):
        while offset + 8 * MIB + small <= SIZE:
            for length in (8 * MIB, small):
                await read_into(file, offset, into[:length])
                assert into[:length] == data[offset : offset + length]
                offset += length
        assert bool(reader.planner.bytes_fetched) == planned


async def test_a_stream_of_small_reads_is_planned(one: Cached, data: bytes) -> None:
    """Also behind a large one: blocks are not read again and again for a page of each."""
    into = memory(8 * MIB)
    async with opened(one) as (reader, file):
        await read_into(file, 0, into)
        for offset in range(16 * MIB, 17 * MIB, 4096):
            await read_into(file, offset, into[:4096])
            assert into[:4096] == data[offset : offset + 4096]
        assert reader.figures.bytes_at_once == 8 * MIB + 2 * 4096


@pytest.mark.parametrize(
    ("offset", "skew", "size"),
    [(0, 0, SIZE), (0, 1, 16 * MIB), (0, 512, 16 * MIB), (1, 0, 16 * MIB), (MIB + 4096, 0, 16 * MIB)],
)
async def test_without_a_copy_where_memory_is_aligned_else_by_the_planner(
    one: Cached, data: bytes, offset: int, skew: int, size: int
) -> None:
    into = memory(size, skew)
    async with opened(one) as (reader, file):
        await read_into(file, offset, into)
        assert into == data[offset : offset + size]
        aligned = offset % mmap.PAGESIZE == skew
        assert reader.figures.bytes_at_once == (size if aligned else 0)
        assert reader.figures.bytes_read == size
        assert bool(reader.planner.bytes_fetched) != aligned
    assert one.counts.bytes == len(data)


async def test_what_is_not_wholly_here_is_planned(source: Path, one: Cached) -> None:
    data = write(source / "a", 32 * MIB)
    one.read(b"/a", 0, 31 * MIB)
    into = memory(32 * MIB)
    async with opened(one) as (reader, file):
        await read_into(file, 0, into)
        assert reader.figures.bytes_at_once == 0
    assert into == data
    assert one.counts.bytes == 32 * MIB


@pytest.mark.parametrize(
    "spoil",
    [partial(flip, offset=DATA_AT + 3 * MIB), Path.unlink, partial(os.truncate, length=DATA_AT + 4 * MIB + 4097)],
)
async def test_what_is_damaged_meanwhile_comes_from_the_store(
    one: Cached, data: bytes, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Path], None]
) -> None:
    """After it was said to be here."""
    whole, spoiled = Version.fill, threading.Event()

    def fill(version: Version, blocks: range, into: memoryview, wanted: int) -> bool:
        if not blocks.start:
            spoil(one.segments()[0])
            one.forget()
            spoiled.set()
        return whole(version, blocks, into, wanted)

    monkeypatch.setattr(Version, "fill", fill)
    into = memory(SIZE)
    async with opened(one) as (_, file):
        await read_into(file, 0, into)
    assert into == data
    assert spoiled.is_set()
    assert one.counts.bytes > len(data)


@pytest.mark.parametrize(("number", "blamed"), [(errno.EIO, True), (errno.EFAULT, False)])
async def test_a_disk_that_gives_nothing(
    one: Cached, data: bytes, monkeypatch: pytest.MonkeyPatch, number: int, blamed: bool
) -> None:
    """Nor can it reach all memory, for which it is not left alone."""
    into = memory(SIZE)
    async with opened(one) as (_, file):
        asked: list[tuple[int, int]] = []

        async def plan(_: OpenFile, offset: int, piece: memoryview) -> None:
            asked.append((offset, offset + len(piece)))

        with monkeypatch.context() as patch:
            patch.setattr(CacheSegment, "read", refusing(number))
            patch.setattr(OpenFile, "read_into", plan)
            await read_into(file, 0, into)
        assert asked == [(at, min(at + 8 * MIB, SIZE)) for at in range(0, SIZE, 8 * MIB)]
        assert bool(one.store.cache.stats["disk_errors"]) == blamed
        await read_into(file, 0, into)
    assert into == data


async def reading(file: OpenFile, into: memoryview, scope: trio.CancelScope, over: trio.Event) -> None:
    """Read the file until `scope` is cancelled. over: set when it is over."""
    with scope:
        await read_into(file, 0, into)
    over.set()


async def test_memory_that_a_cancelled_read_gave_back_is_left_alone(
    one: Cached, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, begun, go_on = CacheSegment.read, threading.Event(), threading.Event()

    def read(*args: object, **names: object) -> None:
        begun.set()
        assert go_on.wait(60)
        whole(*args, **names)  # type: ignore[arg-type]

    monkeypatch.setattr(CacheSegment, "read", read)
    into, scope, over = memory(SIZE), trio.CancelScope(), trio.Event()
    async with opened(one) as (_, file), trio.open_nursery() as nursery:
        nursery.start_soon(reading, file, into, scope, over)
        await trio.to_thread.run_sync(begun.wait)
        scope.cancel()
        with trio.move_on_after(0.2):
            await over.wait()
        assert not over.is_set()
        go_on.set()
        await over.wait()
        into[:] = bytes(SIZE)
        await trio.sleep(0.2)
        assert into == bytes(SIZE)


async def test_what_waits_for_a_busy_disk_can_be_given_up(
    one: Cached, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk says meanwhile what it has."""
    asked, go_on, whole = threading.Event(), threading.Event(), CachedHandle.can_fill
    monkeypatch.setattr("stripefs.read.open_file.FILLED_WITHIN", 60.0)

    def can_fill(handle: CachedHandle, offset: int, length: int) -> bool:
        asked.set()
        return whole(handle, offset, length)

    monkeypatch.setattr(CachedHandle, "can_fill", can_fill)
    into, scope, over = memory(SIZE), trio.CancelScope(), trio.Event()
    async with opened(one) as (reader, file), trio.open_nursery() as nursery:
        lane = reader.executor.lane("disk")
        try:
            others = [lane.submit(go_on.wait, 60) for _ in range(lane.threads)]
            nursery.start_soon(reading, file, into, scope, over)
            await until(lambda: asked.is_set() and bool(lane._waiting))
            scope.cancel()
            with trio.fail_after(30):
                await over.wait()
            assert not any(other.done() for other in others)
            assert not lane._waiting
        finally:
            go_on.set()
        await trio.sleep(0.1)
        assert into == bytes(SIZE)


@pytest.mark.parametrize("why", ["avoided", "slow"])
async def test_a_disk_that_is_left_alone_is_not_asked(
    one: Cached, data: bytes, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """By the planner, which has heard nothing from it, or by the cache."""
    monkeypatch.setattr(CachedHandle, "can_fill", lambda *_: pytest.fail("it was asked"))
    into = memory(SIZE)
    async with opened(one) as (reader, file):
        if why == "avoided":
            reader.planner.hosts.failed(CACHE, time.monotonic(), "silent")
        else:
            monkeypatch.setattr(DiskHealth, "readable", lambda *_: False)
        await read_into(file, 0, into)
        assert reader.figures.bytes_at_once == 0
    assert into == data


async def test_a_disk_that_does_not_say_what_it_has_is_gone_round(
    one: Cached, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, whole = threading.Event(), Version.presence
    monkeypatch.setattr("stripefs.read.open_file.FILLED_WITHIN", 0.05)

    def presence(version: Version, blocks: range) -> bytes:
        if threading.current_thread().name == "presence":
            assert go_on.wait(60)
        return whole(version, blocks)

    monkeypatch.setattr(Version, "presence", presence)
    into = memory(SIZE)
    async with opened(one) as (reader, file):
        await read_into(file, 0, into)
        assert reader.figures.bytes_at_once == 0
        go_on.set()
    assert into == data
