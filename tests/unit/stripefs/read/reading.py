"""A reader that runs, and local files as if they lay on hosts."""

from contextlib import asynccontextmanager

import trio

from stripefs.read import Reader
from stripefs.settings import ReadSettings
from stripefs.testing.throttled import ThrottledStore

MIB = 1 << 20


def spread(store, **changed):
    return ThrottledStore(store, **{"hosts": 4, "rate": 400e6, "block_size": 4 * MIB, **changed})


@asynccontextmanager
async def reading(store, **settings):
    reader = Reader(store, ReadSettings(**{"memory": 64 * MIB, "range_size": 2 * MIB, **settings}))
    async with trio.open_nursery() as nursery:
        await nursery.start(reader.run)
        yield reader
        nursery.cancel_scope.cancel()
