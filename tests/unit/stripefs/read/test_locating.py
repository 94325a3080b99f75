"""When the reader asks where blocks lie, how often, and for how much of a file."""

import os
import threading

import pytest
import trio

from stripefs.errors import PermissionDenied, ServiceDown
from stripefs.store.local import LocalStore
from tests.support.uploads import until
from tests.unit.stripefs.read.reading import MIB, LocatedStore, opened


@pytest.fixture
def sparse(tmp_path):
    """A store with a file of 3 GiB."""
    (tmp_path / "big").touch()
    os.truncate(tmp_path / "big", 3 << 30)
    store = LocalStore(str(tmp_path))
    yield store
    store.close()


async def test_locating_ahead_asks_once_at_a_time(sparse):
    """A metadata service that hangs must not be asked once for every read, nor readers wait for all these questions."""
    asked, enough = [], threading.Event()

    def half(locate, offset, length):
        if offset < 8 * MIB:
            return [block for block in locate(offset, length) if block.offset < 8 * MIB]
        asked.append(offset)
        enough.wait()
        raise PermissionDenied("no")

    async with opened(LocatedStore(sparse, half, hosts=2, block_size=4 * MIB)) as (_, file):
        for offset in range(0, 8 * MIB, 64 << 10):
            await file.read(offset, 64 << 10)
            await trio.sleep(0)
        try:
            await until(lambda: asked)
            assert len(asked) == 1
        finally:
            enough.set()


async def test_blocks_are_asked_for_in_growing_steps(sparse):
    """A reader of a header must not wait for the blocks of all of a large file."""
    asked = []

    def noting(locate, offset, length):
        asked.append((offset // MIB, length // MIB))
        return locate(offset, length)

    async with opened(LocatedStore(sparse, noting, hosts=2, block_size=64 * MIB)) as (_, file):
        for offset in (0, 100, 256, 300, 512, 1024, 2048, 3000):
            assert await file.read(offset * MIB, 1) == bytes(1)
    asked = [step for step in asked if step[1] > 1]  # the wrapper asks for each read too
    assert asked == [(0, 256), (256, 256), (512, 512), (1024, 1024), (2048, 1024)]


async def test_locating_waits_for_a_service_that_is_away(local, content):
    failures = iter(range(2))

    def away(locate, offset, length):
        if next(failures, None) is not None:
            raise ServiceDown("away")
        return locate(offset, length)

    async with opened(LocatedStore(local, away, hosts=2)) as (_, file):
        assert await file.read(5, 10) == content[5:15]
