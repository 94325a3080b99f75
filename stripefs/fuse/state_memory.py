"""Memory that outlives a worker: a page of counters and the journal of what the next worker must know.

The supervisor makes three memfds and keeps them; each worker inherits them.

The *counters* are one shared page: answered u64, failed u64, read bytes u64, active slot u8; from 32 on written bytes
u64.

The *journal* is a sequence of frames in the active one of two slots. A frame is length u32, CRC-32 of the payload u32,
payload. A worker may be killed at any instruction: a frame whose length or checksum does not fit ends the journal, and
the next worker cuts it off. A new generation of the journal is written into the other slot, at once (`replace`) or
step by step (`begin`, `carry`, `finish`), and then the page's byte is flipped, one store that either happened or did
not.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from collections.abc import Iterable, Iterator

__all__ = ["CounterPage", "MemoryJournal", "make_memory"]

_COUNTERS = struct.Struct("<QQQ")
_SLOT_AT = _COUNTERS.size
_WRITTEN = struct.Struct("<Q")
_WRITTEN_AT = 32  # behind what workers of versions that did not write know
_FRAME = struct.Struct("<II")

_SMALLEST = 1 << 20
"""Bytes below which a journal is not worth replacing."""

_COPIED = 4 << 20
"""Bytes that one `finish` copies at most."""


def make_memory() -> tuple[int, int, int]:
    """Descriptors of a counter page and two journal slots, all empty."""
    counters = os.memfd_create("stripefs-board")
    os.ftruncate(counters, mmap.PAGESIZE)
    return counters, os.memfd_create("stripefs-journal-0"), os.memfd_create("stripefs-journal-1")


class CounterPage:
    """The counters of one mount over all its workers."""

    def __init__(self, descriptor: int) -> None:
        self._page = mmap.mmap(descriptor, mmap.PAGESIZE)
        self._answered, self._failed, self._bytes = _COUNTERS.unpack_from(self._page)
        (self._written,) = _WRITTEN.unpack_from(self._page, _WRITTEN_AT)

    def count(self, *, answered: int = 0, failed: int = 0, read_bytes: int = 0, written_bytes: int = 0) -> None:
        """Add to the counters. For the one worker that writes them."""
        self._answered += answered
        self._failed += failed
        self._bytes += read_bytes
        _COUNTERS.pack_into(self._page, 0, self._answered, self._failed, self._bytes)
        if written_bytes:
            self._written += written_bytes
            _WRITTEN.pack_into(self._page, _WRITTEN_AT, self._written)

    def read(self) -> dict[str, int]:
        answered, failed, read_bytes = _COUNTERS.unpack_from(self._page)
        (written_bytes,) = _WRITTEN.unpack_from(self._page, _WRITTEN_AT)
        return {"answered": answered, "failed": failed, "read_bytes": read_bytes, "written_bytes": written_bytes}

    @property
    def slot(self) -> int:
        return self._page[_SLOT_AT]

    @slot.setter
    def slot(self, number: int) -> None:
        self._page[_SLOT_AT] = number


class MemoryJournal:
    """The journal in two slots (descriptors); see `stripefs.vfs.journal.InodeJournal` for what its users rely on."""

    def __init__(self, counters: CounterPage, slots: tuple[int, int]) -> None:
        self._counters = counters
        self._slots = slots
        self._size = 0
        self._fresh = 0  # size after the last replacement
        self._carried = 0  # size of the new generation
        self._copied = 0  # up to where it has what was appended

    def load(self) -> Iterator[bytes]:
        """The payloads kept so far, oldest first; the half-written last one of a killed worker is cut off."""
        slot = self._slots[self._counters.slot]
        data = os.pread(slot, os.fstat(slot).st_size, 0)
        at = 0
        for payload in parse(data):
            at += _FRAME.size + len(payload)
            yield payload
        os.ftruncate(slot, at)
        self._size = self._fresh = at

    def append(self, payload: bytes) -> None:
        self._size += _write(self._slots[self._counters.slot], _framed(payload), self._size)

    def full(self) -> bool:
        return self._size > max(_SMALLEST, 2 * self._fresh)

    def begin(self) -> None:
        os.ftruncate(self._slots[1 - self._counters.slot], 0)
        self._carried, self._copied = 0, self._size

    def carry(self, payload: bytes) -> None:
        self._carried += _write(self._slots[1 - self._counters.slot], _framed(payload), self._carried)

    def finish(self) -> bool:
        slot = self._counters.slot
        frames = os.pread(self._slots[slot], min(_COPIED, self._size - self._copied), self._copied)
        self._carried += _write(self._slots[1 - slot], frames, self._carried)
        self._copied += len(frames)
        if self._copied < self._size:
            return False
        self._flip()
        return True

    def replace(self, payloads: Iterable[bytes]) -> None:
        """Keep `payloads` instead of all that was appended before; all or nothing."""
        self.begin()
        for payload in payloads:
            self.carry(payload)
        self._flip()

    def _flip(self) -> None:
        slot = self._counters.slot
        self._counters.slot = 1 - slot
        os.ftruncate(self._slots[slot], 0)
        self._size = self._fresh = self._carried

    def clear(self) -> None:
        """Forget everything: the kernel's connection is a new one."""
        self.replace(())


def parse(data: bytes) -> Iterator[bytes]:
    """The payloads of all whole frames at the start of `data`."""
    at = 0
    while at + _FRAME.size <= len(data):
        length, checksum = _FRAME.unpack_from(data, at)
        at += _FRAME.size
        payload = data[at : at + length]
        if not length or len(payload) != length or zlib.crc32(payload) != checksum:
            return
        yield payload
        at += length


def _framed(payload: bytes) -> bytes:
    return _FRAME.pack(len(payload), zlib.crc32(payload)) + payload


def _write(slot: int, data: bytes, at: int) -> int:
    done = 0
    while done < len(data):  # a signal may cut a long write short
        done += os.pwrite(slot, data[done:], at + done)
    return len(data)
