"""Makes sure that a device whose blocks are all here is right to the last byte, and marks it as complete.

Its data is put on disk first. Then the whole file is read: every block must have the SHA-256 of the index, everything
else must be zeros. Only then the mark is written. So whoever finds the mark may read the file without asking anybody,
which is what the kernel does. This happens in pieces, at half of one thread's speed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import trio

from imagefs.blocks.disk import Disk
from imagefs.blocks.local import LocalDevice
from imagefs.blocks.room import Kept, Room
from imagefs.format.index import BLOCK, Index

__all__ = ["seal"]

_PIECE = 16  # blocks at once: 2 MiB, some milliseconds


async def seal(kept: Kept, index: Index, disk: Disk, room: Room) -> list[int]:
    """Check the device and mark it, unless it changes meanwhile; the blocks that must be fetched anew first.

    Raises OSError.
    """
    local = kept.local
    stamp = await disk.thread(local.sync)
    cleared = local.table.cleared
    bad: list[int] = []
    for first in range(0, index.blocks, _PIECE):
        begun = trio.current_time()
        blocks = range(first, min(first + _PIECE, index.blocks))
        before = local.table.cleared
        wrong = await disk.thread(_wrong, local, index, blocks)
        if local.closed or local.table.cleared != before:
            return []  # blocks are being given up
        for block in blocks:
            here, stored = local.table.checksum(block) is not None, bool(index.length(block))
            if block in wrong or here != stored:
                room.clear(kept, block)
                bad.append(block)
        cleared += local.table.cleared - before
        await trio.sleep(trio.current_time() - begun)
    async with disk.lock:
        if local.closed or local.table.cleared != cleared:
            return []
        if not bad:
            # `marked` follows before anybody else may touch the files, or a hole could come between.
            local.marked = await disk.thread(local.mark, stamp)
        elif not kept.pins and not await disk.thread(local.opened_elsewhere):
            await disk.thread(local.trim)  # also what is wrong where nothing should be
    return bad


def _wrong(local: LocalDevice, index: Index, blocks: Sequence[int]) -> list[int]:
    """Those that are not what the index says, also where it says that there is nothing."""
    begin = blocks[0] * BLOCK
    buffer = bytearray(min(blocks[-1] * BLOCK + BLOCK, index.device_bytes) - begin)
    local.read(begin, buffer)
    view = memoryview(buffer)
    wrong = []
    for block in blocks:
        data = view[block * BLOCK - begin :][:BLOCK]
        length = index.length(block)
        right = not length or hashlib.sha256(data[:length]).digest() == index.place(block).digest
        if not right or data[length:] != _ZEROS[: len(data) - length]:
            wrong.append(block)
    return wrong


_ZEROS = memoryview(bytes(BLOCK))
