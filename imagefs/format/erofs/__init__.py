"""EROFS: the metadata image that the kernel mounts, with the data in further devices.

Uncompressed, 4 KiB blocks, extended inodes only; regular files are lists of 16 KiB chunks in the devices, or lie inside
the image behind their inode when they are tiny. Directories and links lie in the image. `write` lays an image out so
that equal trees give equal bytes; `read` finds its way back without a kernel.
"""

from imagefs.format.erofs.read import ErofsImage
from imagefs.format.erofs.records import BLOCK, CHUNK, DeviceSlot
from imagefs.format.erofs.write import INLINE_LIMIT, write

__all__ = ["BLOCK", "CHUNK", "INLINE_LIMIT", "DeviceSlot", "ErofsImage", "write"]
