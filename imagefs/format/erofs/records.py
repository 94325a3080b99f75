"""The records of EROFS on disk, all little-endian (Linux, fs/erofs/erofs_fs.h)."""

from __future__ import annotations

import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from imagefs.errors import FormatError
from imagefs.format.inodes import shown

__all__ = [
    "BLOCK",
    "CHUNK",
    "CHUNK_BITS",
    "CHUNK_INDEX",
    "DEVICE",
    "DIRENT",
    "FILE_TYPES",
    "INODE",
    "SLOT",
    "SUPERBLOCK",
    "SUPERBLOCK_AT",
    "DataLayout",
    "DeviceSlot",
    "Super",
    "chunk_bits",
    "crc32c",
    "pack_rdev",
    "pack_xattrs",
    "unpack_rdev",
    "unpack_xattrs",
]

BLOCK_BITS = 12
BLOCK = 1 << BLOCK_BITS
CHUNK_BITS = 2
CHUNK = BLOCK << CHUNK_BITS
"""Bytes of a chunk of a file. A smaller file has one chunk of the least power of two blocks that holds it. Images that
were built by version 0.1.0 have chunks of 64 KiB: each inode says how long its own are."""

SLOT = 32
"""Inodes begin on multiples of this; the number of an inode is its offset divided by it."""

SUPERBLOCK_AT = 1024
DEVICE_SLOT = 128

MAGIC = 0xE0F5E1E2
COMPAT_CHECKSUM, COMPAT_MTIME = 0x1, 0x2
INCOMPAT_CHUNKED_FILE, INCOMPAT_DEVICE_TABLE = 0x4, 0x8
EXTENDED = 1
CHUNK_INDEXES = 0x20


class DataLayout:
    """The layout of an inode's bytes: in whole blocks, with the last part behind the inode, or in chunks."""

    PLAIN, INLINE, CHUNKS = 0, 2, 4


SUPERBLOCK = struct.Struct("<IIIBBHQQIIII16s16sIHHHBBIQB3xIQ8x")
"""magic, checksum, compat, block bits, extra slots, root nid, inodes, epoch, its ns, blocks, meta block, xattr block,
uuid, name, incompat, compression, devices, device slot, directory block bits, xattr prefixes, their start, packed nid,
xattr filter, build time, 64-bit root nid."""

DEVICE = struct.Struct("<64sIIHH52x")
"""tag, blocks, address in a space of all devices, and the high halves of both."""

INODE = struct.Struct("<HHHHQIIIIqII16x")
"""format, xattr count, mode, -, size, block or chunk format or device, inode number, uid, gid, mtime, ns, links."""

DIRENT = struct.Struct("<QHBx")
"""inode, offset of the name in this block, file type."""

CHUNK_INDEX = struct.Struct("<HHI")
"""High half of the block, device, block."""

_XATTR_HEADER = struct.Struct("<IB7x")
_XATTR = struct.Struct("<BBH")

FILE_TYPES = {
    stat.S_IFREG: 1,
    stat.S_IFDIR: 2,
    stat.S_IFCHR: 3,
    stat.S_IFBLK: 4,
    stat.S_IFIFO: 5,
    stat.S_IFSOCK: 6,
    stat.S_IFLNK: 7,
}

# The longer names first: each is the whole name of an attribute.
_PREFIXES = (
    (b"system.posix_acl_access", 2),
    (b"system.posix_acl_default", 3),
    (b"user.", 1),
    (b"trusted.", 4),
    (b"security.", 6),
)
_PREFIX_OF = {number: prefix for prefix, number in _PREFIXES}
_WHOLE = frozenset((2, 3))


@dataclass(frozen=True, slots=True)
class DeviceSlot:
    """A device with data: `tag` names it for people (at most 63 bytes), `blocks` is its length in 4 KiB."""

    tag: bytes
    blocks: int

    @property
    def size(self) -> int:
        """Bytes."""
        return self.blocks * BLOCK


@dataclass(frozen=True, slots=True)
class Super:
    """Fields of a superblock that readers need."""

    root: int
    inodes: int
    blocks: int
    devices: int
    device_slot: int
    meta_block: int
    uuid: bytes

    def pack(self) -> bytes:
        """With a checksum of zero."""
        return SUPERBLOCK.pack(
            *(MAGIC, 0, COMPAT_CHECKSUM | COMPAT_MTIME, BLOCK_BITS, 0, self.root, self.inodes, 0, 0, self.blocks),
            *(self.meta_block, 0, self.uuid, b"imagefs", INCOMPAT_CHUNKED_FILE | INCOMPAT_DEVICE_TABLE),
            *(0, self.devices, self.device_slot, 0, 0, 0, 0, 0, 0, 0),
        )

    @classmethod
    def unpack(cls, block: bytes) -> Super:
        """From the first block of an image. Raises FormatError for what `write` does not make."""
        if len(block) < BLOCK:
            raise FormatError(f"an image of {len(block)} bytes is too short for its superblock")
        fields = SUPERBLOCK.unpack_from(block, SUPERBLOCK_AT)
        magic, checksum, _, bits, _, root, inodes, _, _, blocks, meta, _, uuid, _, incompat = fields[:15]
        if magic != MAGIC:
            raise FormatError("this is no EROFS image: its magic number is another")
        if bits != BLOCK_BITS or incompat & ~(INCOMPAT_CHUNKED_FILE | INCOMPAT_DEVICE_TABLE):
            raise FormatError(f"an EROFS image with features that imagefs does not write (0x{incompat:x})")
        plain = bytearray(block[SUPERBLOCK_AT:BLOCK])
        plain[4:8] = bytes(4)
        if crc32c(plain) != checksum:
            raise FormatError("the superblock's checksum is wrong: the image is damaged")
        return cls(root, inodes, blocks, fields[16], fields[17], meta, uuid)


def chunk_bits(size: int) -> int:
    """The chunk size of a file of `size` bytes, as the power of two of blocks."""
    return min(CHUNK_BITS, max(0, (-(-size // BLOCK) - 1).bit_length()))


def pack_xattrs(xattrs: Sequence[tuple[bytes, bytes]], path: str) -> bytes:
    """The attributes as they follow an inode; b"" where there are none. Raises FormatError naming `path`."""
    if not xattrs:
        return b""
    out = bytearray(_XATTR_HEADER.pack(0, 0))
    for name, value in sorted(xattrs):
        prefix, number = next(((p, n) for p, n in _PREFIXES if name.startswith(p)), (b"", 0))
        suffix = name[len(prefix) :]
        if not number or (number in _WHOLE and suffix) or (number not in _WHOLE and not suffix):
            raise FormatError(f"{path}: the attribute {shown(name)} has no place in EROFS")
        if len(suffix) > 255 or len(value) > 65535:
            raise FormatError(f"{path}: the attribute {shown(name)} is too long")
        out += _XATTR.pack(len(suffix), number, len(value)) + suffix + value
        out += bytes(-len(out) % 4)
    if len(out) > _XATTR_HEADER.size + 4 * 65534:
        raise FormatError(f"{path}: its attributes are {len(out)} bytes together, more than EROFS holds")
    return bytes(out)


def xattr_count(packed: int) -> int:
    """The inode's count field for `packed` bytes of attributes."""
    return (packed - _XATTR_HEADER.size) // 4 + 1 if packed else 0


def xattr_bytes(count: int) -> int:
    """The inverse of `xattr_count`."""
    return _XATTR_HEADER.size + 4 * (count - 1) if count else 0


def unpack_xattrs(data: bytes) -> list[tuple[bytes, bytes]]:
    """The inverse of `pack_xattrs`. Raises FormatError."""
    if len(data) < _XATTR_HEADER.size or _XATTR_HEADER.unpack_from(data)[1]:
        raise FormatError("an inode has attributes of a kind that imagefs does not write")
    found = []
    position = _XATTR_HEADER.size
    while position + _XATTR.size <= len(data):
        length, number, size = _XATTR.unpack_from(data, position)
        position += _XATTR.size
        end = position + length + size
        if number not in _PREFIX_OF or end > len(data):
            raise FormatError("an extended attribute is damaged")
        found.append((_PREFIX_OF[number] + data[position : position + length], data[position + length : end]))
        position = end + -end % 4
    return found


def pack_rdev(major: int, minor: int, path: str = "") -> int:
    """The kernel's 32-bit form of a device number. Raises FormatError naming `path` where it does not fit."""
    if not (0 <= major < 1 << 12 and 0 <= minor < 1 << 20):
        raise FormatError(f"{path}: device number {major}:{minor} does not fit")
    return minor & 0xFF | major << 8 | (minor & ~0xFF) << 12


def unpack_rdev(packed: int) -> tuple[int, int]:
    return packed >> 8 & 0xFFF, packed & 0xFF | packed >> 12 & 0xFFF00


def crc32c(data: bytes | bytearray) -> int:
    """CRC-32C without the final inversion, as the superblock has it."""
    import crc32c as library

    return library.crc32c(data) ^ 0xFFFFFFFF
