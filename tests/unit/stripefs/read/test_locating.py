"""When the reader asks where blocks lie, how often, and for how much of a file."""

import os
import threading

import trio

from stripefs.errors import PermissionDenied, ServiceDown
from stripefs.format.blocks import Block
from stripefs.store.local import LocalStore
from stripefs.testing.throttled import ThrottledStore
from tests.support.waiting import PATIENCE
from tests.unit.stripefs.read.reading import MIB, reading


async def test_locating_ahead_asks_once_at_a_time(tmp_path):
    """A metadata service that hangs must not be asked once for every read, nor readers wait for all these questions."""
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 3 << 30)

    enough = threading.Event()

    class Half(ThrottledStore):
        asked = 0

        def open(self, path, expect=None):
            handle = super().open(path, expect)
            locate = handle.locate

            def failing(offset, length):
                if offset < 8 * MIB:
                    return [block for block in locate(offset, length) if block.offset < 8 * MIB]
                self.asked += 1
                enough.wait()
                raise PermissionDenied("no")

            handle.locate = failing
            return handle

    base = LocalStore(str(tmp_path))
    store = Half(base, hosts=2, rate=4e9, block_size=4 * MIB)
    async with reading(store) as reader:
        file = await reader.open(b"/sparse")
        for offset in range(0, 8 * MIB, 64 << 10):
            await file.read(offset, 64 << 10)
            await trio.sleep(0)
        try:
            with trio.fail_after(PATIENCE):
                while not store.asked:
                    await trio.sleep(0.01)
            assert store.asked == 1
        finally:
            enough.set()
    base.close()


async def test_blocks_are_asked_for_in_growing_steps(tmp_path):
    """A reader of a header must not wait for the blocks of all of a large file."""
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 3 << 30)
    asked = []

    class Noting(ThrottledStore):
        def open(self, path, expect=None):
            handle = super().open(path, expect)
            locate = handle.locate
            handle.locate = lambda offset, length: (
                asked.append((offset // MIB, length // MIB)) or locate(offset, length)
            )
            return handle

    base = LocalStore(str(tmp_path))
    async with reading(Noting(base, hosts=2, rate=4e9, block_size=64 * MIB)) as reader:
        file = await reader.open(b"/sparse")
        for offset in (0, 100, 256, 300, 512, 1024, 2048, 3000):
            assert await file.read(offset * MIB, 1) == bytes(1)
    asked = [step for step in asked if step[1] > 1]  # the wrapper asks for each read too
    assert asked == [(0, 256), (256, 256), (512, 512), (1024, 1024), (2048, 1024)]
    base.close()


async def test_blocks_may_be_told_anew_in_as_many_pieces(tmp_path):
    """As a cache does, which tells what it has apart, and has more or less of it each time."""
    data = bytes(range(256)) * (16 * MIB // 256)
    (tmp_path / "file").write_bytes(data)

    class Changing(ThrottledStore):
        def open(self, path, expect=None):
            handle = super().open(path, expect)

            def told(offset, length):
                return [Block(0, offset + MIB, ("h0",))]

            handle.locate = told
            return handle

    base = LocalStore(str(tmp_path))
    async with reading(Changing(base, hosts=1, rate=4e9, block_size=16 * MIB)) as reader:
        file = await reader.open(b"/file")
        assert await file.read(0, 16 * MIB) == data
    base.close()


async def test_locating_waits_for_a_service_that_is_away(local, content):
    class Away(ThrottledStore):
        failures = 2

        def open(self, path, expect=None):
            handle = super().open(path, expect)
            locate = handle.locate

            def failing(offset, length):
                if self.failures:
                    self.failures -= 1
                    raise ServiceDown("away")
                return locate(offset, length)

            handle.locate = failing
            return handle

    async with reading(Away(local, hosts=2, rate=400e6)) as reader:
        file = await reader.open(b"/big")
        assert await file.read(5, 10) == content[5:15]
