"""Keeps a host's cache within its bounds: of bytes for documents, which count in its size, and of age for all of it.

BlockStore are bounded in bytes where they are kept (`imagefs.blocks.eviction`). What nobody used for longer than the
age goes, also where there is room: whole devices with their blocks, then documents, plans and traces. A device is used
when it is attached, and when the daemon reads its blocks; what is in use never goes, and counts as used until it is let
go.

A snapshotter tells which parts of an image it needs no more. Those go as soon as nothing on this host uses them. The
list of them is in memory: what a worker that ends has not removed is bounded like everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import trio

from imagefs.blocks.store import BlockStore
from imagefs.daemon.documents import Documents
from stripefs.supervised import supervise

__all__ = ["CacheUpkeep"]

_DOCUMENTS = 8
"""The share of the cache that documents may take: an eighth. They are a thousandth of the blocks they describe."""

_LOOK_AT_DOCUMENTS = 60.0
"""Seconds between looks at what documents take."""

_LOOK_FOR_UNUSED = 3600.0
"""Seconds between looks for what nobody used for long."""

_DISCARD_AGAIN = 5.0
"""Seconds until parts that were in use are tried again. A mount goes some seconds after its last use."""


class CacheUpkeep:
    """That of one worker. age: seconds without use after which things go, 0 for never. in_use: names of documents and
    devices that somebody needs."""

    def __init__(
        self, age: float, blocks: BlockStore, documents: Documents, in_use: Callable[[], Collection[str]]
    ) -> None:
        self._age = age
        self._blocks = blocks
        self._documents = documents
        self._in_use = in_use
        self._unwanted: set[str] = set()
        self._told = trio.Event()

    async def usage(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answers with the bytes and inodes of each part of an image that is in the cache now."""
        return {"parts": await self._documents.files(str(request["image"]))}

    def discard(self, parts: Iterable[str]) -> None:
        """Remove these parts of images, as `usage` names them, as soon as they are not in use."""
        self._unwanted.update(parts)
        self._told.set()

    def keep(self, parts: Iterable[str]) -> None:
        """Somebody is about to use these parts: they stay, if they are still here."""
        self._unwanted.difference_update(parts)

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervise, "bounding the documents in the cache", self._bound_documents)
            nursery.start_soon(supervise, "removing what is not needed any more", self._remove_unwanted)
            if self._age:
                nursery.start_soon(supervise, "removing what nobody uses", self._remove_unused)

    async def _bound_documents(self) -> None:
        while True:
            taken = await self._documents.evict(self._blocks.room.limit // _DOCUMENTS, self._in_use())
            if taken is not None:
                self._blocks.room.reserved = taken
            await trio.sleep(_LOOK_AT_DOCUMENTS)

    async def _remove_unused(self) -> None:
        """BlockStore go before the index that says what they are."""
        while True:
            for name in await self._documents.unused_devices(self._age, self._in_use()):
                await self._blocks.room.discard(name)
            await self._documents.expire(self._age, self._in_use())
            await trio.sleep(_LOOK_FOR_UNUSED)

    async def _remove_unwanted(self) -> None:
        """BlockStore go before the documents that say what they are."""
        while True:
            for part in sorted(self._unwanted):
                if part in self._unwanted and not {part, f"{part}.erofs"} & set(self._in_use()):
                    await self._blocks.room.discard(part)
                    if not self._blocks.room.has(part) and await self._documents.remove(part):
                        self._unwanted.discard(part)
            if self._unwanted:
                await trio.sleep(_DISCARD_AGAIN)
            else:
                self._told = trio.Event()
                await self._told.wait()
