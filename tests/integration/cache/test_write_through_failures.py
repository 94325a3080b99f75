"""Writers that fail, are killed or meet others, and disks that fail: nothing wrong is kept, and nothing is left."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stripefs.cache import write_through
from stripefs.cache.segment import CacheSegment
from stripefs.write import Layout
from stripefs.write.commit import Commit
from tests.integration.cache.writing import SIZE, World, put, world
from tests.support.caches import MIB, refusing
from tests.support.checkout import CHECKOUT
from tests.support.uploads import LAYOUTS, content, save
from tests.support.waiting import PATIENCE


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_what_is_not_published_leaves_nothing(here: World, layout: Layout) -> None:
    async with here.uploading(content(SIZE), layout) as upload:
        here.drain()
        assert len(here.left()) == 3  # its description, its mark as being written, and a segment
        await upload.abandon()
    assert here.left() == set()
    assert here.cache.quota.used() == 0
    assert here.cache.queue._reserved == 0


async def test_a_name_that_was_taken_away_leaves_nothing(here: World) -> None:
    async with here.uploading(content(SIZE)) as upload:
        await upload.detach()
        await put(upload, content(SIZE))
        await upload.publish(final=True)
    assert here.left() == set()


KILLED = """
import sys, os, signal, trio
from pathlib import Path
from tests.integration.cache.writing import SIZE, World
from tests.support.uploads import content

async def main():
    here = World(Path(sys.argv[1]), Path(sys.argv[2]))
    async with here.uploading(content(SIZE), path=b"/killed"):
        here.drain()
        os.kill(os.getpid(), signal.SIGKILL)

trio.run(main)
"""


async def test_what_a_killed_writer_has_left_goes_when_the_next_one_begins(
    here: World, source: Path, folder: Path
) -> None:
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(source), str(folder)], cwd=CHECKOUT, check=False, timeout=PATIENCE
    )
    assert killed.returncode == -signal.SIGKILL
    assert len(here.left()) == 3
    await here.save(content(9 * MIB))
    assert here.left() == {"about", "000000"}
    assert here.cache.quota.used() == here.cache.quota.recount()
    assert here.absent() == []


async def test_what_others_are_writing_stays(here: World, source: Path, folder: Path) -> None:
    with world(source, folder) as other:
        async with here.uploading(content(SIZE)) as upload, other.writing(Layout.STRIPED) as theirs:
            here.drain()
            await save(theirs, b"/other", content(9 * MIB))
            other.drain()
            await upload.publish(final=True)
        assert here.absent() == here.absent(b"/other") == []


def behind_the_rename(monkeypatch: pytest.MonkeyPatch, act: Callable[[Commit], object]) -> None:
    """`act` comes between the rename that publishes a file and what the writer does next."""
    whole = Commit._rename_onto_name

    async def rename(commit: Commit, *given: Any) -> None:
        await whole(commit, *given)
        act(commit)

    monkeypatch.setattr(Commit, "_rename_onto_name", rename)


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_file_that_somebody_else_put_there_meanwhile(
    here: World, source: Path, monkeypatch: pytest.MonkeyPatch, layout: Layout
) -> None:
    """One that minds no lock, of the same length and time: the writer's bytes are not taken for its bytes."""
    data, other = content(SIZE), content(SIZE, seed=2)

    def replaced(_commit: Commit) -> None:
        (source / "fresh").write_bytes(other)
        now = (source / "model").stat()
        os.utime(source / "fresh", ns=(now.st_atime_ns, now.st_mtime_ns))
        (source / "fresh").rename(source / "model")

    behind_the_rename(monkeypatch, replaced)
    await here.save(data, layout=layout)
    assert here.load() == other


async def test_a_status_of_another_length_is_believed_by_nobody(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def shorten(commit: Commit) -> None:
        assert commit._shown is not None
        commit._shown = replace(commit._shown, length=SIZE - MIB)

    behind_the_rename(monkeypatch, shorten)
    await here.save(content(SIZE), layout=Layout.CONCAT)
    assert here.left() == set()


async def test_a_bit_that_flips_on_the_way_to_the_disk_is_found_out(
    here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check value is of what the writer gave."""
    whole, data = write_through._together, content(SIZE)

    def flipping(pieces: list[bytes]) -> memoryview:
        joined = whole(pieces)
        joined[5] ^= 1
        return joined

    monkeypatch.setattr(write_through, "_together", flipping)
    await here.save(data)
    assert here.load() == data
    assert here.cache.stats["damaged"] == 4  # a block each time that some are handed over


async def test_a_disk_that_takes_nothing_costs_the_writer_nothing(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CacheSegment, "write", refusing(errno.ENOSPC))
    data = content(SIZE)
    await here.save(data)
    assert here.load() == data
    assert here.counts.bytes == SIZE
    assert here.cache.stats["disk_errors"] > 0


async def test_a_folder_that_is_removed_meanwhile(here: World, folder: Path) -> None:
    data = content(SIZE)
    async with here.uploading(data[: 9 * MIB]) as upload:
        here.drain()
        subprocess.run(["rm", "-r", str(folder)], check=True)
        await put(upload, data[9 * MIB :])
        await upload.publish(final=True)
    assert here.load() == data
    here.drain()
    assert here.absent() == []
