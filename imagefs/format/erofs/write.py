"""Writes an EROFS image: first every inode gets its place, then all is written there; and adds a device to one.

A directory's inode is followed by those of what is in it that is no directory, in the order of names, then by its
subdirectories, each with its own: names that are used together lie together. Behind an inode stand its attributes and
then either its chunk list or the last, partial block of its content, which must not cross a block. Whole blocks of
directories and long links follow after all inodes.

An added device changes the addresses of chunks and no other byte, so inodes keep their numbers, and what one image says
about an inode can be looked up in the other.
"""

from __future__ import annotations

import dataclasses
import hashlib
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

from imagefs.errors import FormatError
from imagefs.format.erofs.read import ErofsImage, files
from imagefs.format.erofs.records import (
    BLOCK,
    CHUNK_INDEX,
    CHUNK_INDEXES,
    DEVICE,
    DEVICE_SLOT,
    DIRENT,
    EXTENDED,
    FILE_TYPES,
    INODE,
    SLOT,
    SUPERBLOCK,
    SUPERBLOCK_AT,
    DataLayout,
    DeviceSlot,
    Super,
    chunk_bits,
    crc32c,
    pack_rdev,
    pack_xattrs,
    xattr_count,
)
from imagefs.format.inodes import HOLE, Inode, shown

__all__ = ["INLINE_LIMIT", "add_device", "write", "write_super"]

INLINE_LIMIT = 2048
"""Files of at most this many bytes are best kept as `data`: their content then comes with the metadata."""

_NAME_MAX = 255
_LINK_MAX = 4095
_OWNER_MAX = (1 << 32) - 2  # one more is no user
_NO_BLOCK = 0xFFFFFFFF
_SLOTS = 2  # there is room for two devices in any image, so that one can be added without moving an inode (`patch`)


@dataclass(slots=True, eq=False)
class _Placed:
    """An inode and its place. `whole` bytes of content lie in blocks of their own, the rest behind the inode."""

    inode: Inode
    name: bytes
    parent: _Placed | None
    links: int = 0
    xattrs: bytes = b""
    layout: int = DataLayout.PLAIN
    size: int = 0
    whole: int = 0
    offset: int = 0
    block: int = _NO_BLOCK
    names: list[list[bytes]] = field(default_factory=list)

    @property
    def path(self) -> str:
        """For people, made when it is asked for: all paths of a deep tree are more than fits in memory."""
        parts, at = [self.name], self.parent
        while at is not None and at.parent is not None:
            parts.append(at.name)
            at = at.parent
        return shown(b"/".join(reversed(parts)))

    @property
    def number(self) -> int:
        return self.offset // SLOT

    @property
    def body(self) -> int:
        """Bytes of the inode and its attributes."""
        return INODE.size + len(self.xattrs)


def write(root: Inode, devices: Sequence[DeviceSlot], out: BinaryIO) -> int:
    """Write the image of the tree under `root`, whose chunks lie in `devices`, to `out`; its length in bytes.

    Raises FormatError for what EROFS cannot hold, naming the path, before anything is written.
    """
    placed, by_inode = _collect(root)
    start = SUPERBLOCK_AT + SUPERBLOCK.size
    start += -start % DEVICE_SLOT
    device_slot = start // DEVICE_SLOT
    cursor = start + DEVICE_SLOT * max(_SLOTS, len(devices))
    for one in placed:
        _choose_layout(one)
        cursor = _place(one, cursor + -cursor % SLOT)
    if placed[0].number > 0xFFFF:
        raise FormatError("the root directory lies too far into the image")
    blocks = -(-cursor // BLOCK)
    for one in placed:
        if one.whole and one.layout != DataLayout.CHUNKS:
            one.block = blocks
            blocks += -(-one.whole // BLOCK)
    image = bytearray(blocks * BLOCK)
    for number, one in enumerate(placed, 1):
        _write_inode(image, one, number, by_inode)
    for number, device in enumerate(devices):
        at = (device_slot + number) * DEVICE_SLOT
        DEVICE.pack_into(image, at, device.tag, device.blocks, 0, 0, 0)
    write_super(image, Super(placed[0].number, len(placed), blocks, len(devices), device_slot, 0, bytes(16)))
    out.write(image)
    return len(image)


def _collect(root: Inode) -> tuple[list[_Placed], dict[int, _Placed]]:
    """All inodes in the order in which they are placed, and by identity, with their links counted."""
    placed: list[_Placed] = []
    by_inode: dict[int, _Placed] = {}
    stack = [_Placed(root, b"", None)]
    while stack:
        one = stack.pop()
        one.links = 2
        if by_inode.setdefault(id(one.inode), one) is not one:
            raise FormatError(f"{one.path}: a directory has two names")
        placed.append(one)
        below = []
        for name, child in sorted((one.inode.children or {}).items(), key=lambda entry: entry[0]):
            inside = _Placed(child, name, one)
            if not name or len(name) > _NAME_MAX or b"/" in name or b"\0" in name or name in (b".", b".."):
                raise FormatError(f"{inside.path}: this is no name for a file")
            if child.children is not None:
                one.links += 1
                below.append(inside)
                continue
            known = by_inode.get(id(child))
            if known is None:
                known = by_inode[id(child)] = inside
                placed.append(known)
            known.links += 1
        stack += reversed(below)
    return placed, by_inode


def _choose_layout(one: _Placed) -> None:
    inode = one.inode
    if inode.xattrs:
        one.xattrs = pack_xattrs(inode.xattrs, one.path)
    kind = stat.S_IFMT(inode.mode)
    if kind not in FILE_TYPES or (kind == stat.S_IFDIR) != (inode.children is not None):
        raise FormatError(f"{one.path}: mode {inode.mode:o} names no kind of file")
    if inode.children is not None:
        one.names, one.size = _directory_blocks(inode.children)
    elif kind == stat.S_IFLNK and not 0 < len(inode.data or b"") <= _LINK_MAX:
        raise FormatError(f"{one.path}: a link's target has 1 to {_LINK_MAX} bytes")
    elif inode.data is not None:
        one.size = len(inode.data)
    elif kind == stat.S_IFREG:
        one.size = inode.size
        count = -(-one.size // (BLOCK << chunk_bits(one.size)))
        if len(inode.chunks) != count:
            raise FormatError(f"{one.path}: {len(inode.chunks)} chunks where its size asks for {count}")
        if one.size:
            one.layout = DataLayout.CHUNKS
            return
    one.whole = one.size // BLOCK * BLOCK
    if one.size > one.whole:
        if one.body + one.size - one.whole <= BLOCK:
            one.layout = DataLayout.INLINE
        else:
            one.whole = one.size


def _place(one: _Placed, cursor: int) -> int:
    """Give the inode its offset, at `cursor` or as soon after it as its tail stays in one block; where it ends."""
    if one.layout == DataLayout.CHUNKS:
        one.offset = cursor
        end = cursor + one.body
        return end + -end % CHUNK_INDEX.size + CHUNK_INDEX.size * len(one.inode.chunks)
    tail = one.size - one.whole
    while tail and (cursor + one.body) // BLOCK != (cursor + one.body + tail - 1) // BLOCK:
        cursor += SLOT
    one.offset = cursor
    return cursor + one.body + tail


def _directory_blocks(children: dict[bytes, Inode]) -> tuple[list[list[bytes]], int]:
    """The names of a directory by block, and its size: all blocks but the last count whole."""
    blocks: list[list[bytes]] = [[]]
    used = 0
    for name in sorted([*children, b".", b".."]):
        need = DIRENT.size + len(name)
        if used + need > BLOCK:
            blocks.append([])
            used = 0
        blocks[-1].append(name)
        used += need
    return blocks, (len(blocks) - 1) * BLOCK + used


def _write_inode(image: bytearray, one: _Placed, number: int, by_inode: dict[int, _Placed]) -> None:
    inode, at = one.inode, one.offset
    if not (0 <= inode.uid <= _OWNER_MAX and 0 <= inode.gid <= _OWNER_MAX and abs(inode.mtime) < 1 << 63):
        raise FormatError(f"{one.path}: owner or time do not fit into 32 and 64 bits")
    INODE.pack_into(
        image,
        at,
        *(EXTENDED | one.layout << 1, xattr_count(len(one.xattrs)), inode.mode, 0, one.size, _union(one)),
        *(number, inode.uid, inode.gid, inode.mtime, inode.mtime_ns, one.links),
    )
    at += INODE.size
    image[at : at + len(one.xattrs)] = one.xattrs
    at += len(one.xattrs)
    if one.layout == DataLayout.CHUNKS:
        at += -at % CHUNK_INDEX.size
        for chunk in inode.chunks:
            hole = chunk == HOLE
            CHUNK_INDEX.pack_into(image, at, 0, 0 if hole else chunk >> 32, chunk & _NO_BLOCK)
            at += CHUNK_INDEX.size
        return
    content = b"".join(_directory_content(one, by_inode)) if inode.children is not None else inode.data or b""
    image[at : at + one.size - one.whole] = content[one.whole :]
    if one.whole:
        image[one.block * BLOCK : one.block * BLOCK + one.whole] = content[: one.whole]


def _union(one: _Placed) -> int:
    kind = stat.S_IFMT(one.inode.mode)
    if one.layout == DataLayout.CHUNKS:
        return CHUNK_INDEXES | chunk_bits(one.size)
    if kind in (stat.S_IFCHR, stat.S_IFBLK):
        return pack_rdev(*one.inode.rdev, one.path)
    return one.block


def _directory_content(one: _Placed, by_inode: dict[int, _Placed]) -> Iterator[bytes]:
    children = one.inode.children or {}
    parent = one.parent or one
    for names in one.names:
        block = bytearray()
        offset = DIRENT.size * len(names)
        for name in names:
            child = one if name == b"." else parent if name == b".." else by_inode[id(children[name])]
            block += DIRENT.pack(child.number, offset, FILE_TYPES[stat.S_IFMT(child.inode.mode)])
            offset += len(name)
        block += b"".join(names)
        if names is not one.names[-1]:
            block += bytes(BLOCK - len(block))
        yield bytes(block)


def write_super(image: bytearray, facts: Super) -> None:
    """The superblock, with a UUID made of all the rest, so that equal images are equal; that rest stands already."""
    image[SUPERBLOCK_AT : SUPERBLOCK_AT + SUPERBLOCK.size] = facts.pack()
    uuid = bytearray(hashlib.sha256(image).digest()[:16])
    uuid[6], uuid[8] = uuid[6] & 0x0F | 0x80, uuid[8] & 0x3F | 0x80  # version 8: of the maker's own making
    image[SUPERBLOCK_AT + 48 : SUPERBLOCK_AT + 64] = uuid
    checksum = crc32c(image[SUPERBLOCK_AT:BLOCK])
    image[SUPERBLOCK_AT + 4 : SUPERBLOCK_AT + 8] = checksum.to_bytes(4, "little")


def add_device(image: ErofsImage, device: DeviceSlot, moved: Mapping[int, int]) -> bytes:
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
