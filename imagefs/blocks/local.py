"""The blocks of a device that are on this machine: a sparse file as long as the device, and a table beside it.

    header   magic "BSBLOCKS", version, blocks, digest of the device's block index
    rows     for each block the XXH3 of its bytes, when it was last used (seconds since 2020), and whether it is here

The table is mapped, so no object of Python stands for a block. A block is written before its row says that it is here,
and its hash is checked on every read: what a crash or a bad disk left half-written is found then, forgotten, and
fetched anew. Forgetting a block punches a hole, so the file takes no more room than what is here. Once all blocks are
here the file is the device, and the kernel needs nobody to serve it.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import xxhash

from imagefs.format.index import BLOCK, NOWHERE, Index

__all__ = ["LocalDevice"]

_MAGIC = b"BSBLOCKS"
_HEADER = struct.Struct("<8sII32s16x")
_ROW = struct.Struct("<QII")
_VERSION = 1
_HERE = 1
_EPOCH = 1577836800  # 2020-01-01, so that 32 bits last until 2156

_PUNCH_HOLE, _KEEP_SIZE = 2, 1

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


class LocalDevice:
    """One device below `folder`, made where it is not there. One process at a time may use it."""

    def __init__(self, folder: Path, name: str, index: Index) -> None:
        """`name` is the digest of `index`, in hexadecimal digits. Raises OSError."""
        self.path = folder / f"{name}.data"
        self._index = index
        self._table_path = folder / f"{name}.table"
        self._data = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(self._data, index.device_bytes)
            self._table = self._open_table(bytes.fromhex(name))
        except BaseException:
            os.close(self._data)
            raise
        self.present = sum(1 for _, _, here in self._rows() if here == _HERE)

    @property
    def complete(self) -> bool:
        """Whether every block that is not zeros is here."""
        return bool(self.present == self._index.stored)

    def read(self, block: int, now: float) -> bytes | None:
        """The block's bytes, None when it is not here. What is not what was written is forgotten. Raises OSError."""
        place = self._index.place(block)
        if place.pack == NOWHERE:
            return bytes(place.length)
        checksum, _, here = self._row(block)
        if here != _HERE:
            return None
        data = os.pread(self._data, place.length, block * BLOCK)
        if len(data) != place.length or xxhash.xxh3_64_intdigest(data) != checksum:
            self.forget(block)
            return None
        self._set(block, checksum, now)
        return data

    def write(self, block: int, data: bytes, now: float) -> None:
        """Keep the block, whose bytes were checked. Raises OSError, ENOSPC for one, and then it is not here."""
        at = block * BLOCK
        view = memoryview(data)
        while view:
            count = os.pwrite(self._data, view, at)
            view, at = view[count:], at + count
        if self._row(block)[2] != _HERE:
            self.present += 1
        self._set(block, xxhash.xxh3_64_intdigest(data), now)

    def forget(self, block: int) -> None:
        """Give the block's room back."""
        if self._row(block)[2] == _HERE:
            self.present -= 1
        _ROW.pack_into(self._table, self._at(block), 0, 0, 0)
        _punch(self._data, block * BLOCK, BLOCK)

    def used(self) -> Iterator[tuple[float, int, int]]:
        """When each block that is here was last used, its number, and the bytes it takes."""
        for block, (_, when, here) in enumerate(self._rows()):
            if here == _HERE:
                yield float(when + _EPOCH), block, self._index.place(block).length

    def sync(self) -> None:
        """Put on disk what was written, the bytes before the table."""
        os.fdatasync(self._data)
        self._table.flush()

    def close(self) -> None:
        self._table.close()
        os.close(self._data)

    def remove(self) -> None:
        """Close it and delete its files."""
        self.close()
        self._table_path.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)

    def _open_table(self, digest: bytes) -> mmap.mmap:
        header = _HEADER.pack(_MAGIC, _VERSION, self._index.blocks, digest)
        size = _HEADER.size + _ROW.size * self._index.blocks
        with self._table_path.open("a+b") as file:
            file.seek(0)
            if file.read(_HEADER.size) != header or os.fstat(file.fileno()).st_size != size:
                # New, of another version, or cut short: nothing in it can be relied on.
                file.truncate(0)
                file.write(header)
                file.truncate(size)
                file.flush()
            return mmap.mmap(file.fileno(), size)

    def _rows(self) -> Iterator[tuple[int, int, int]]:
        return _ROW.iter_unpack(memoryview(self._table)[_HEADER.size :])

    def _row(self, block: int) -> tuple[int, int, int]:
        row: tuple[int, int, int] = _ROW.unpack_from(self._table, self._at(block))
        return row

    def _set(self, block: int, checksum: int, now: float) -> None:
        _ROW.pack_into(self._table, self._at(block), checksum, max(0, int(now) - _EPOCH), _HERE)

    def _at(self, block: int) -> int:
        return _HEADER.size + _ROW.size * block


def _punch(descriptor: int, offset: int, length: int) -> None:
    if _libc.fallocate(descriptor, _PUNCH_HOLE | _KEEP_SIZE, offset, length):
        number = ctypes.get_errno()
        if number != errno.EOPNOTSUPP:  # then the room comes back when the whole file goes
            raise OSError(number, os.strerror(number))
