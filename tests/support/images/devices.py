"""Devices made of given blocks, a source that can be made to misbehave, and a block store that runs for a while."""

from __future__ import annotations

import contextlib
import hashlib
import io
import random
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from imagefs.blocks.store import BlockDevice, BlockStore
from imagefs.blocks.upstream import Mirror
from imagefs.format.codec import encode
from imagefs.format.index import BLOCK, NOWHERE, BlockLocation, Index, Pack, write

__all__ = ["MIB", "FakeSource", "Made", "eventually", "make", "noise", "opened", "running", "settled"]

MIB = 1 << 20

Fault = Callable[[int, bytes], bytes]
"""The answer to a read, from its number, counted from 0, and its bytes. May raise."""


@dataclass(frozen=True)
class Made:
    """A device: its index and that document's digest, its bytes, and its packs by digest."""

    index: Index
    digest: str
    content: bytes
    packs: dict[bytes, bytes]


def noise(count: int, seed: int = 1) -> list[bytes]:
    """Blocks that do not compress."""
    chance = random.Random(seed)
    return [chance.randbytes(BLOCK) for _ in range(count)]


def make(
    blocks: Sequence[bytes], *, per_pack: int = 1000, size: int = 0, codecs: Sequence[str] = ("lz4", "zstd")
) -> Made:
    """`blocks` may be short, b"" is one of zeros. per_pack: blocks in a pack. size: of the device, 0 for all blocks.
    codecs: of the packs, in turn."""
    packs: list[Pack] = []
    stored: dict[bytes, bytes] = {}
    places: list[BlockLocation] = []
    for first in range(0, len(blocks), per_pack):
        codec = codecs[len(packs) % len(codecs)]
        data, here, known = bytearray(), [], {}
        for block in blocks[first : first + per_pack]:
            if not block:
                here.append(BlockLocation(bytes(32), NOWHERE, 0, 0, 0))
                continue
            digest = hashlib.sha256(block).digest()
            if digest not in known:
                kept = encode(codec, block)
                known[digest] = BlockLocation(digest, len(packs), len(data), len(kept), len(block))
                data += kept
            here.append(known[digest])
        packs.append(Pack(hashlib.sha256(data).digest(), len(data), codec))
        stored[packs[-1].digest] = bytes(data)
        places += here
    document = io.BytesIO()
    size = size or len(blocks) * BLOCK
    write(places, packs, size, document)
    content = b"".join(block.ljust(BLOCK, b"\0") for block in blocks)[:size]
    return Made(Index(document.getvalue()), hashlib.sha256(document.getvalue()).hexdigest(), content, stored)


class FakeSource:
    """Answers from memory. `fault` may change or refuse answers; reads wait while `gate` is not set."""

    def __init__(self, *made: Made, fault: Fault | None = None) -> None:
        self.packs = {digest: data for one in made for digest, data in one.packs.items()}
        self.fault = fault
        self.mirrors: Sequence[Mirror] = ()
        self.url = "memory://server:1/store"
        self.gate = threading.Event()
        self.gate.set()
        self.reads: list[tuple[int, int]] = []
        self.most = 0
        """Reads under way at once, at most."""
        self._under_way = 0
        self._lock = threading.Lock()

    def report_damage(self, pack: Pack) -> None:
        """Nothing is kept open."""

    def read(self, pack: Pack, offset: int, length: int) -> bytes:
        with self._lock:
            number = len(self.reads)
            self.reads.append((offset, length))
            self._under_way += 1
            self.most = max(self.most, self._under_way)
        try:
            assert self.gate.wait(30)
            data = self.packs[pack.digest][offset : offset + length]
            return data if self.fault is None else self.fault(number, data)
        finally:
            with self._lock:
                self._under_way -= 1


@contextlib.asynccontextmanager
async def running(
    folder: Path, *, limit: int = 1 << 30, memory: int = 16 * MIB, io_timeout: float = 30.0
) -> AsyncIterator[BlockStore]:
    blocks = BlockStore(folder, limit=limit, memory=memory, io_timeout=io_timeout)
    async with trio.open_nursery() as nursery:
        await nursery.start(blocks.run)
        try:
            yield blocks
        finally:
            nursery.cancel_scope.cancel()


@contextlib.asynccontextmanager
async def opened(
    folder: Path, made: Made, *sources: FakeSource, **options: Any
) -> AsyncIterator[tuple[BlockStore, BlockDevice]]:
    """A store that runs, and the device with these sources, the preferred one first; one that has all by default."""
    async with running(folder / "blocks", **options) as blocks:
        preferred, *others = sources or (FakeSource(made),)
        device = await blocks.open(made.digest, made.index, preferred)
        for other in others:
            blocks.add_source(device, other)
        yield blocks, device


async def eventually(condition: Callable[[], bool], what: str = "") -> None:
    """Wait until it holds."""
    for _ in range(3000):
        if condition():
            return
        await trio.sleep(0.01)
    raise AssertionError(f"never {what or condition}")


async def settled(device: BlockDevice, blocks: BlockStore) -> None:
    """Wait until nothing waits to be written."""
    await eventually(lambda: blocks.memory.held == 0, "written")
