"""A copy of an image with one device more: some chunks lie there now, and every other byte is where it was.

So inodes keep their numbers, and what one image says about an inode can be looked up in the other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from imagefs.errors import FormatError
from imagefs.format.erofs.read import Image
from imagefs.format.erofs.records import BLOCK, CHUNK_INDEX, DEVICE, DEVICE_SLOT, SLOT, Device
from imagefs.format.erofs.walk import files
from imagefs.format.erofs.write import write_super
from imagefs.format.inode import HOLE

__all__ = ["add_device"]


def add_device(image: Image, device: Device, moved: Mapping[int, int]) -> bytes:
    """The image with `device` behind those that it has, and chunks moved from one address to another.

    Raises FormatError for an image that has no room for another device.
    """
    patched = bytearray(image.data)
    at = (image.super.device_slot + len(image.devices)) * DEVICE_SLOT
    if at + DEVICE_SLOT > min(image.root * SLOT, BLOCK):
        raise FormatError("the image has no room for another device")
    DEVICE.pack_into(patched, at, device.tag, device.blocks, 0, 0, 0)
    for _, inode in files(image):
        table = image.chunk_table(inode)
        chunks = image.chunks(inode)
        if table is None or chunks is None:
            continue
        for number, address in enumerate(chunks[1]):
            new = HOLE if address == HOLE else moved.get(address, HOLE)
            if new != HOLE:
                CHUNK_INDEX.pack_into(patched, table[1] + number * CHUNK_INDEX.size, 0, new >> 32, new & 0xFFFFFFFF)
    write_super(patched, dataclasses.replace(image.super, devices=len(image.devices) + 1, uuid=bytes(16)))
    return bytes(patched)
