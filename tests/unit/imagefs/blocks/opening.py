"""A block store that runs, with one device open."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from imagefs.blocks.store import BlockDevice, BlockStore
from tests.support.images.devices import FakeSource, Made, running

__all__ = ["opened"]


@asynccontextmanager
async def opened(
    folder: Path, made: Made, *sources: FakeSource, **options: Any
) -> AsyncIterator[tuple[BlockStore, BlockDevice]]:
    """The store, and the device with these sources, the preferred one first; one that has all by default."""
    async with running(folder / "blocks", **options) as blocks:
        preferred, *others = sources or (FakeSource(made),)
        device = await blocks.open(made.digest, made.index, preferred)
        for other in others:
            blocks.add_source(device, other)
        yield blocks, device
