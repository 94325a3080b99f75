"""Written files are cached: the version that is published, of the bytes that the writer gave, and no other."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from stripefs.write import Layout
from tests.integration.cache.writing import SIZE, World, put, world
from tests.support.caches import MIB, Gate
from tests.support.uploads import LAYOUTS, content, save

pytestmark = pytest.mark.usefixtures("at_once")


@pytest.mark.parametrize("step", [MIB, 300_001])
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_the_next_reader_of_the_host_asks_nobody(
    here: World, source: Path, folder: Path, layout: Layout, step: int
) -> None:
    data = content(SIZE)
    await here.save(data, step, layout=layout)
    assert here.left() == {"about", "000000"}
    with world(source, folder) as another:
        for each in (here, another):
            assert each.load() == data
            assert each.counts.bytes == 0


@pytest.mark.parametrize(
    ("size", "step"),
    [(size, MIB) for size in (0, 1000, MIB - 1, MIB, MIB + 1, 8 * MIB, 16 * MIB, 130 * MIB + 1)]
    + [(2 * MIB + 5, 1009)],
)
async def test_of_any_length(here: World, size: int, step: int) -> None:
    data = content(size)
    await here.save(data, step, layout=Layout.STRIPED if step == MIB else Layout.PLAIN)
    assert here.load() == data
    assert here.counts.bytes == (size if size < MIB else 0)
    if size < MIB:
        assert here.left() == set()


async def test_what_waits_for_the_disk_is_here_from_the_moment_of_publication(
    here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, data = Gate(monkeypatch), content(SIZE)
    async with here.uploading(data, Layout.CONCAT) as upload:
        await upload.publish(final=False)
        assert await trio.to_thread.run_sync(here.load) == data
        assert here.counts.bytes == 0
        gate.open.set()
    assert here.cache.pending._blocks == {}
    assert here.absent() == []


async def test_a_writer_never_waits_for_the_disk(source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks for which memory has no room are not kept, and those that are kept are right."""
    gate, data = Gate(monkeypatch), content(60 * MIB)
    with world(source, folder, queue=20 * MIB) as here:
        async with here.writing(Layout.STRIPED) as uploads:
            await save(uploads, b"/model", data)
            assert here.cache.queue.waiting <= 20 * MIB
            assert here.cache.stats["unfilled_bytes"] >= 30 * MIB
            gate.open.set()
        assert here.load() == data
        assert 30 * MIB <= here.counts.bytes < 60 * MIB
        assert here.cache.queue._reserved == 0


async def test_a_version_that_grows(here: World) -> None:
    """Each is here as a whole, whatever its end was before."""
    data = content(100 * MIB)
    async with here.uploading(b"") as upload:
        for end in (SIZE, SIZE + 10, 70 * MIB, 100 * MIB):
            await put(upload, data[upload.length : end])
            await upload.publish(final=False)
            here.drain()
            assert here.absent() == []
            assert here.load() == data[:end]
        await upload.abandon()
    assert here.counts.bytes == 0
    assert here.cache.stats["damaged"] == 0
    assert here.left() == {"about", "000000", "000001"}  # those of the versions before are none any more


@pytest.mark.parametrize("first", [64 * MIB, 66 * MIB + 5])
async def test_what_is_appended_to_what_is_here(here: World, first: int) -> None:
    data = content(80 * MIB)
    async with here.writing(Layout.STRIPED) as uploads:
        await save(uploads, b"/model", data[:first])
        here.drain()
        reader = here.store.open(b"/model")
        upload = await uploads.begin(b"/model", replacing=here.view.stat(b"/model").identity, append=True)
        await put(upload, data[first:])
        await upload.publish(final=True)
    block = first // MIB * MIB  # which nobody wrote all of
    assert here.absent() == ([(block, MIB)] if first % MIB else [])
    assert here.load() == data
    assert bytes(reader.read(MIB, MIB)) == data[MIB : 2 * MIB]  # the version before, from the store
    assert here.cache.stats["damaged"] == 0
    reader.close()


async def test_what_was_begun_anew(here: World) -> None:
    data = content(SIZE, seed=2)
    async with here.uploading(content(SIZE)) as upload:
        await upload.rewind()
        await put(upload, data)
        await upload.sync()
        await upload.publish(final=True)
    assert here.absent() == []
    assert here.load() == data
    assert here.left() == {"about", "000000"}


async def test_files_that_no_pattern_fits_are_not_kept(source: Path, folder: Path) -> None:
    with world(source, folder, match=("*.pt",)) as here:
        async with here.writing(Layout.STRIPED) as uploads:
            await save(uploads, b"/model", content(SIZE))
            await save(uploads, b"/model.pt", content(SIZE))
        assert here.absent(b"/model.pt") == []
        assert here.cache.stats["filled_bytes"] == SIZE


async def test_the_newest_checkpoint_makes_room_while_it_is_written(source: Path, folder: Path) -> None:
    settings = {"size": 100 * MIB, "match": ("step-*",), "keep_newest": 2}
    with world(source, folder, **settings) as here:
        async with here.writing(Layout.STRIPED) as uploads:
            for number in range(4):
                await save(uploads, b"/step-%d" % number, content(40 * MIB, seed=number))
                here.drain()
        assert here.absent(b"/step-2") == here.absent(b"/step-3") == []
