"""Devices without a kernel for trees of images, and how such trees are listed."""

from __future__ import annotations

import hashlib
import stat
from dataclasses import dataclass, field
from typing import Any

import trio

from imagefs.format.erofs import BLOCK, DeviceSlot
from imagefs.plane.worker import ImageTree
from stripefs.fuse.protocol import ServedAttributes

DEVICES = (DeviceSlot(b"cold", 2**32 - 1), DeviceSlot(b"hot", 2**32 - 1))

FILE, FOLDER = stat.S_IFREG | 0o644, stat.S_IFDIR | 0o755


def content_of(device: int, offset: int, length: int) -> bytes:
    """The content of devices: no two blocks are alike."""
    first, last = offset // BLOCK, -(-(offset + length) // BLOCK)
    blocks = (hashlib.blake2b(b"%d %d" % (device, block)).digest() * (BLOCK // 64) for block in range(first, last))
    return b"".join(blocks)[offset - first * BLOCK :][:length]


@dataclass
class FakeDevices:
    """Devices with `content_of`, and what was read of them."""

    reads: list[tuple[int, int, int]] = field(default_factory=list)

    async def read(self, device: int, offset: int, length: int) -> bytes:
        self.reads.append((device, offset, length))
        await trio.lowlevel.checkpoint()
        return content_of(device, offset, length)


async def listed(tree: ImageTree, node: int, room: int = 7) -> dict[bytes, ServedAttributes]:
    """A directory, `room` entries at a time, each batch from the cookie that the last one ended with."""
    handle = await tree.opendir(node)
    found: dict[bytes, ServedAttributes] = {}
    cookie = 0
    while True:
        batch: list[tuple[bytes, ServedAttributes, int]] = []

        def show(
            name: bytes, attributes: ServedAttributes, behind: int, batch: list[Any] = batch, room: int = room
        ) -> bool:
            if len(batch) == room:
                return False
            batch.append((name, attributes, behind))
            return True

        await tree.readdir(handle, cookie, show)
        if not batch:
            await tree.releasedir(handle)
            return found
        for name, attributes, behind in batch:
            assert name not in found
            assert behind > cookie
            cookie = behind
            found[name] = attributes
