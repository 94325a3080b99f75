"""What is written here is here: the version that is published, of the bytes that the writer gave, and no other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from stripefs.cache import filler, key, pace, stretch
from stripefs.cache.cache import Cache
from stripefs.cache.handle import CachedHandle
from stripefs.cache.segment import Segment
from stripefs.cache.store import CachedStore
from stripefs.settings import CacheSettings
from stripefs.store.base import Status
from stripefs.store.wrappers.counting import CountingStore
from stripefs.store.wrappers.striped import StripedStore
from stripefs.write import Draft, Drafts, Layout
from stripefs.write.standing import Standing
from tests.cache.material import MIB, read
from tests.cache.test_sharing import ROOT
from tests.unit.write.world import LAYOUTS, content, policy, spread
from tests.waiting import PATIENCE

SIZE = 21 * MIB + 777


@pytest.fixture(autouse=True)
def _local_and_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key, "SETTLED", 0)
    monkeypatch.setattr(pace, "SLOWER", 0.0)
    monkeypatch.setattr(filler, "LONGEST_WAIT", float("inf"))


class World:
    """A source, and the cache in front of it as one process has it. `counts` tells what was read of files."""

    def __init__(self, source: Path, folder: Path, queue: int = 128 * MIB, **settings: object) -> None:
        self.view = StripedStore(spread(source))
        counting = CountingStore(self.view)
        self.counts = counting.counts
        given = {"directory": str(folder), "writes": True, "size": 1 << 40, **settings}
        self.cache = Cache(CacheSettings(**given), queue=queue)  # type: ignore[arg-type]
        self.store = CachedStore(counting, self.cache)
        self.folder = folder

    @asynccontextmanager
    async def writing(self, layout: Layout) -> AsyncIterator[Drafts]:
        drafts = Drafts(self.view, policy(layout=layout), copies=self.store.written)
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                await nursery.start(drafts.run)
                yield drafts
                await drafts.aclose()
                nursery.cancel_scope.cancel()

    def drain(self) -> None:
        assert self.cache.filler.drain(PATIENCE)

    def load(self, path: bytes = b"/model") -> bytes:
        handle = self.store.open(path)
        try:
            return read(handle, 0, handle.status.length)
        finally:
            handle.close()

    def absent(self, path: bytes = b"/model") -> list[tuple[int, int]]:
        handle = self.store.open(path)
        assert isinstance(handle, CachedHandle)
        try:
            return handle.absent()
        finally:
            handle.close()

    def left(self) -> set[str]:
        """Names of all that is in the folder, but for how much it takes."""
        return {path.name for path in self.folder.rglob("*") if not path.is_dir()} - {"usage"}

    def close(self) -> None:
        self.view.close()
        self.cache.close()


@contextmanager
def world(source: Path, folder: Path, **settings: object) -> Iterator[World]:
    made = World(source, folder, **settings)  # type: ignore[arg-type]
    try:
        yield made
    finally:
        made.close()


async def put(draft: Draft, data: bytes, step: int = MIB) -> None:
    for at in range(0, len(data), step):
        await draft.write(draft.length, data[at : at + step])


async def save(drafts: Drafts, data: bytes, step: int = MIB, path: bytes = b"/model") -> None:
    draft = await drafts.begin(path, replacing=None)
    await put(draft, data, step)
    await draft.publish(final=True)


@pytest.mark.parametrize("step", [MIB, 300_001])
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_the_next_reader_of_the_host_asks_nobody(source: Path, folder: Path, layout: Layout, step: int) -> None:
    data = content(SIZE)
    with world(source, folder) as here:
        async with here.writing(layout) as drafts:
            await save(drafts, data, step)
        here.drain()
        assert here.load() == data
        assert here.counts.bytes == 0
        assert here.left() == {"about", "000000"}
    with world(source, folder) as another:
        assert another.load() == data
        assert another.counts.bytes == 0


@pytest.mark.parametrize("size", [0, 1000, MIB - 1, MIB, MIB + 1, 8 * MIB, 16 * MIB, 130 * MIB + 1])
async def test_of_any_length(source: Path, folder: Path, size: int) -> None:
    data = content(size)
    with world(source, folder, queue=1 << 30) as here:
        async with here.writing(Layout.STRIPED) as drafts:
            await save(drafts, data)
        here.drain()
        assert here.load() == data
        assert here.counts.bytes == (size if size < MIB else 0)
        if size < MIB:
            assert here.left() == set()


async def test_small_writes(source: Path, folder: Path) -> None:
    data = content(2 * MIB + 5)
    with world(source, folder) as here:
        async with here.writing(Layout.PLAIN) as drafts:
            await save(drafts, data, 1009)
        here.drain()
        assert here.absent() == []
        assert here.load() == data


class Gate:
    """Holds up what goes to the disk until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        whole = Segment.write

        def wait(segment: Segment, blocks: range, data: memoryview) -> None:
            assert self.open.wait(PATIENCE)
            whole(segment, blocks, data)

        monkeypatch.setattr(Segment, "write", wait)


async def test_what_waits_for_the_disk_is_here_from_the_moment_of_publication(
    source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, data = Gate(monkeypatch), content(SIZE)
    with world(source, folder) as here:
        async with here.writing(Layout.CONCAT) as drafts:
            draft = await drafts.begin(b"/model", replacing=None)
            await put(draft, data)
            await draft.publish(final=False)
            assert await trio.to_thread.run_sync(here.load) == data
            assert here.counts.bytes == 0
            gate.open.set()
        here.drain()
        assert here.cache.waiting._blocks == {}
        assert here.absent() == []


async def test_a_writer_never_waits_for_the_disk(source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What finds no room in memory is not kept, and what is kept is right."""
    gate, data = Gate(monkeypatch), content(60 * MIB)
    with world(source, folder, queue=20 * MIB) as here:
        async with here.writing(Layout.STRIPED) as drafts:
            await save(drafts, data)
            assert here.cache.filler.waiting <= 20 * MIB
            assert here.cache.figures["unfilled_bytes"] >= 30 * MIB
        gate.open.set()
        here.drain()
        assert here.load() == data
        assert 30 * MIB <= here.counts.bytes < 60 * MIB
        assert here.cache.filler._held == 0


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_what_is_not_published_leaves_nothing(source: Path, folder: Path, layout: Layout) -> None:
    with world(source, folder) as here:
        async with here.writing(layout) as drafts:
            draft = await drafts.begin(b"/model", replacing=None)
            await put(draft, content(SIZE))
            here.drain()
            assert len(here.left()) == 3  # what it is, that it is being written, and a segment
            await draft.abandon()
        here.drain()
        assert here.left() == set()
        assert here.cache.room.used() == 0
        assert here.cache.filler._held == 0


async def test_a_name_that_was_taken_away_leaves_nothing(source: Path, folder: Path) -> None:
    with world(source, folder) as here:
        async with here.writing(Layout.STRIPED) as drafts:
            draft = await drafts.begin(b"/model", replacing=None)
            await put(draft, content(SIZE))
            await draft.detach()
            await put(draft, content(SIZE))
            await draft.publish(final=True)
        here.drain()
        assert here.left() == set()


KILLED = """
import sys, os, signal, trio
from pathlib import Path
from stripefs.write import Layout
from tests.cache.test_written import SIZE, World, content, put

async def main():
    here = World(Path(sys.argv[1]), Path(sys.argv[2]))
    async with here.writing(Layout.STRIPED) as drafts:
        await put(await drafts.begin(b"/model", replacing=None), content(SIZE))
        here.drain()
        os.kill(os.getpid(), signal.SIGKILL)

trio.run(main)
"""


async def test_what_a_killed_writer_has_left_goes_when_the_next_one_begins(source: Path, folder: Path) -> None:
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(source), str(folder)], cwd=ROOT, check=False, timeout=PATIENCE
    )
    assert killed.returncode == -signal.SIGKILL
    with world(source, folder) as here:
        assert len(here.left()) == 3
        async with here.writing(Layout.STRIPED) as drafts:
            await save(drafts, content(9 * MIB), path=b"/other")
        here.drain()
        assert here.left() == {"about", "000000"}
        assert here.cache.room.used() == here.cache.room.recount()
        assert here.absent(b"/other") == []


async def test_what_others_are_writing_stays(source: Path, folder: Path) -> None:
    with world(source, folder) as here, world(source, folder) as other:
        async with here.writing(Layout.STRIPED) as drafts, other.writing(Layout.STRIPED) as theirs:
            draft = await drafts.begin(b"/model", replacing=None)
            await put(draft, content(SIZE))
            here.drain()
            await save(theirs, content(9 * MIB), path=b"/other")
            other.drain()
            await draft.publish(final=True)
        here.drain()
        assert here.absent() == here.absent(b"/other") == []


async def test_a_version_that_grows(source: Path, folder: Path) -> None:
    """Each is here as a whole, whatever its end was before."""
    data = content(100 * MIB)
    with world(source, folder, queue=1 << 30) as here:
        async with here.writing(Layout.STRIPED) as drafts:
            draft = await drafts.begin(b"/model", replacing=None)
            for end in (SIZE, SIZE + 10, 70 * MIB, 100 * MIB):
                await put(draft, data[draft.length : end])
                await draft.publish(final=False)
                here.drain()
                assert here.absent() == []
                assert here.load() == data[:end]
            await draft.abandon()
        assert here.counts.bytes == 0
        assert here.cache.figures["damaged"] == 0
        assert here.left() == {"about", "000000", "000001"}  # those of the versions before are none any more


@pytest.mark.parametrize("first", [64 * MIB, 66 * MIB + 5])
async def test_what_is_appended_to_what_is_here(source: Path, folder: Path, first: int) -> None:
    data = content(80 * MIB)
    with world(source, folder, queue=1 << 30) as here:
        async with here.writing(Layout.STRIPED) as drafts:
            await save(drafts, data[:first])
            here.drain()
            reader = here.store.open(b"/model")
            draft = await drafts.begin(b"/model", replacing=here.view.stat(b"/model").identity, append=True)
            await put(draft, data[first:])
            await draft.publish(final=True)
        here.drain()
        block = first // MIB * MIB  # which nobody wrote all of
        assert here.absent() == ([(block, MIB)] if first % MIB else [])
        assert here.load() == data
        assert bytes(reader.read(MIB, MIB)) == data[MIB : 2 * MIB]  # the version before, from the store
        assert here.cache.figures["damaged"] == 0
        reader.close()


async def test_what_was_begun_anew(source: Path, folder: Path) -> None:
    data = content(SIZE, seed=2)
    with world(source, folder) as here:
        async with here.writing(Layout.STRIPED) as drafts:
            draft = await drafts.begin(b"/model", replacing=None)
            await put(draft, content(SIZE))
            await draft.rewind()
            await put(draft, data)
            await draft.sync()
            await draft.publish(final=True)
        here.drain()
        assert here.absent() == []
        assert here.load() == data
        assert here.left() == {"about", "000000"}


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_file_that_somebody_else_put_there_meanwhile(
    source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, layout: Layout
) -> None:
    """One that minds no lock, of the same length and time: the writer's bytes are not taken for its bytes."""
    whole = Standing.look

    async def look(standing: Standing) -> Status:
        (source / "fresh").write_bytes(other)
        now = (source / "model").stat()
        os.utime(source / "fresh", ns=(now.st_atime_ns, now.st_mtime_ns))
        (source / "fresh").rename(source / "model")
        return await whole(standing)

    data, other = content(SIZE), content(SIZE, seed=2)
    with world(source, folder) as here:
        async with here.writing(layout) as drafts:
            with monkeypatch.context() as patch:
                patch.setattr(Standing, "look", look)
                await save(drafts, data)
        here.drain()
        assert here.left() == set()
        assert here.load() == other


async def test_a_status_of_another_length_is_believed_by_nobody(
    source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Standing.look

    async def look(standing: Standing) -> Status:
        return replace(await whole(standing), length=SIZE - MIB)

    with world(source, folder) as here:
        async with here.writing(Layout.CONCAT) as drafts:
            with monkeypatch.context() as patch:
                patch.setattr(Standing, "look", look)
                await save(drafts, content(SIZE))
        here.drain()
        assert here.left() == set()


async def test_a_bit_that_flips_on_the_way_to_the_disk_is_found_out(
    source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check value is of what the writer gave."""
    whole, data = stretch._together, content(SIZE)

    def flipping(pieces: list[bytes]) -> memoryview:
        joined = whole(pieces)
        joined[5] ^= 1
        return joined

    monkeypatch.setattr(stretch, "_together", flipping)
    with world(source, folder) as here:
        async with here.writing(Layout.STRIPED) as drafts:
            await save(drafts, data)
        here.drain()
        assert here.load() == data
        assert here.cache.figures["damaged"] == 4  # a block each time that some are handed over


async def test_files_that_no_pattern_fits_are_not_kept(source: Path, folder: Path) -> None:
    with world(source, folder, match=("*.pt",)) as here:
        async with here.writing(Layout.STRIPED) as drafts:
            await save(drafts, content(SIZE))
            await save(drafts, content(SIZE), path=b"/model.pt")
        here.drain()
        assert here.absent(b"/model.pt") == []
        assert here.cache.figures["filled_bytes"] == SIZE


async def test_a_full_cache_keeps_what_is_written_last(source: Path, folder: Path) -> None:
    with world(source, folder, size=100 * MIB, queue=1 << 30) as here:
        async with here.writing(Layout.STRIPED) as drafts:
            for number in range(6):
                await save(drafts, content(30 * MIB, seed=number), path=b"/step-%d" % number)
                here.drain()
        assert here.absent(b"/step-5") == []
        assert here.cache.room.recount() <= 100 * MIB + 6 * 8192


async def test_the_newest_checkpoint_makes_room_while_it_is_written(source: Path, folder: Path) -> None:
    settings = {"size": 100 * MIB, "match": ("step-*",), "keep_newest": 2, "queue": 1 << 30}
    with world(source, folder, **settings) as here:
        async with here.writing(Layout.STRIPED) as drafts:
            for number in range(4):
                await save(drafts, content(40 * MIB, seed=number), path=b"/step-%d" % number)
                here.drain()
        assert here.absent(b"/step-2") == here.absent(b"/step-3") == []


async def test_a_disk_that_takes_nothing_costs_the_writer_nothing(
    source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_segment: Segment, _blocks: range, _data: memoryview) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Segment, "write", fail)
    data = content(SIZE)
    with world(source, folder) as here:
        async with here.writing(Layout.STRIPED) as drafts:
            await save(drafts, data)
        here.drain()
        assert here.load() == data
        assert here.counts.bytes == SIZE
        assert here.cache.figures["disk_errors"] > 0


async def test_a_folder_that_is_removed_meanwhile(source: Path, folder: Path) -> None:
    data = content(SIZE)
    with world(source, folder) as here:
        async with here.writing(Layout.STRIPED) as drafts:
            draft = await drafts.begin(b"/model", replacing=None)
            await put(draft, data[: 9 * MIB])
            here.drain()
            subprocess.run(["rm", "-r", str(folder)], check=True)
            await put(draft, data[9 * MIB :])
            await draft.publish(final=True)
        here.drain()
        assert here.load() == data
        here.drain()
        assert here.absent() == []
