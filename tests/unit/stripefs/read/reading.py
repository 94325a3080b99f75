"""A reader that runs, and local files as if they lay on hosts."""

from contextlib import asynccontextmanager
from functools import partial

import trio

from stripefs.read import Reader
from stripefs.settings import ReadSettings
from stripefs.testing.throttled import ThrottledStore
from tests.support.uploads import until

MIB = 1 << 20


def spread(store, **changed):
    return ThrottledStore(store, **{"hosts": 4, "rate": 400e6, "block_size": 4 * MIB, **changed})


class LocatedStore(ThrottledStore):
    """Its handles answer `told(locate, offset, length)` where `locate(offset, length)` tells what blocks there are."""

    def __init__(self, inner, told, **parameters):
        super().__init__(inner, **{"rate": 4e9, **parameters})
        self.told = told

    def open(self, path, expect=None):
        handle = super().open(path, expect)
        handle.locate = partial(self.told, handle.locate)
        return handle


@asynccontextmanager
async def reading(store, **settings):
    reader = Reader(store, ReadSettings(**{"memory": 64 * MIB, "range_size": 2 * MIB, **settings}))
    async with trio.open_nursery() as nursery:
        await nursery.start(reader.run)
        yield reader
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def opened(store, **settings):
    """A reader, and the file /big that it has open."""
    async with reading(store, **settings) as reader:
        yield reader, await reader.open(b"/big")


async def settled(reader):
    await until(lambda: not reader.planner.attempts)
