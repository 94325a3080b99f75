"""Keeps a host's cache within its bounds: of bytes for documents, which count in its size, and of age for all of it.

Blocks are bounded in bytes where they are kept (`imagefs.blocks.room`). What nobody used for longer than the age goes,
also where there is room: whole devices with their blocks, then documents, plans and traces. A device is used when it is
attached, and when the daemon reads its blocks; what is in use never goes, and counts as used until it is let go.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import trio

from imagefs.blocks.fetch import Blocks
from imagefs.daemon.documents import Documents
from stripefs.supervised import supervise

__all__ = ["CacheUpkeep"]

_DOCUMENTS = 8
"""The share of the cache that documents may take: an eighth. They are a thousandth of the blocks they describe."""

_LOOK_AT_DOCUMENTS = 60.0
"""Seconds between looks at what documents take."""

_LOOK_FOR_UNUSED = 3600.0
"""Seconds between looks for what nobody used for long."""


class CacheUpkeep:
    """That of one worker. age: seconds without use after which things go, 0 for never. in_use: names of documents and
    devices that somebody needs."""

    def __init__(self, age: float, blocks: Blocks, documents: Documents, in_use: Callable[[], Collection[str]]) -> None:
        self._age = age
        self._blocks = blocks
        self._documents = documents
        self._in_use = in_use

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervise, "bounding the documents in the cache", self._bound_documents)
            if self._age:
                nursery.start_soon(supervise, "removing what nobody uses", self._remove_unused)

    async def _bound_documents(self) -> None:
        while True:
            taken = await self._documents.evict(self._blocks.room.limit // _DOCUMENTS, self._in_use())
            if taken is not None:
                self._blocks.room.reserved = taken
            await trio.sleep(_LOOK_AT_DOCUMENTS)

    async def _remove_unused(self) -> None:
        """Blocks go before the index that says what they are."""
        while True:
            for name in await self._documents.unused_devices(self._age, self._in_use()):
                await self._blocks.room.discard(name)
            await self._documents.expire(self._age, self._in_use())
            await trio.sleep(_LOOK_FOR_UNUSED)
