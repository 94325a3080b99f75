"""The recorder of a start: the pages that a mount touched first, in order; and how accurate its plan turned out to be.

There is a bit for each 4 KiB page, and an ordered list of runs of pages. The daemon calls `touch` for every read of a
device, so it must cost little where nothing is new: one look at the bits of the range. A run is four numbers in arrays
of machine integers, no object of Python stands for a page or a run.

The raw form, in which a record lies on local disk until a trace is made of it, all numbers little-endian:

    header   magic "BSTOUCH1", devices, runs, 1 when runs were left out because there were too many
    sizes    bytes of each device (8)
    runs     milliseconds (4 for each run), then first pages (4), pages (4), devices (2)
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple, TypeVar

from imagefs.errors import FormatError
from imagefs.format.index import BLOCK

__all__ = ["PAGE", "RUN_LIMIT", "Recorder", "Touched", "score"]

PAGE = 4096
RUN_LIMIT = 1 << 20
"""Runs that are kept: 14 MiB of them. Reads come with read-ahead, so this is far more than an honest start makes."""

_MAGIC = b"BSTOUCH1"
_HEADER = struct.Struct("<8sIII4x")
_SIZE = struct.Struct("<Q")
_DEVICE_LIMIT = 16 << 40
_DEVICES = 16
_RUN_PAGES = 1 << 14  # 64 MiB; the kernel asks for 1 MiB at most
_PAGES_PER_BLOCK = 32


class Touched(NamedTuple):
    """`pages` pages of 4 KiB from `first` on, of the device with that number, first touched after `ms`."""

    ms: int
    device: int
    first: int
    pages: int


class Recorder:
    """A record of a mount whose devices, numbered from 1, have these sizes in bytes.

    Raises FormatError for sizes that no device has.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        if len(sizes) > _DEVICES or not all(0 <= size <= _DEVICE_LIMIT for size in sizes):
            raise FormatError("no image has devices of these sizes")
        self.sizes = tuple(sizes)
        self.full = False
        """Tells whether touches were left out because there were more than RUN_LIMIT runs."""
        self._pages = [-(-size // PAGE) for size in self.sizes]
        self._bits = [bytearray(-(-pages // 8)) for pages in self._pages]
        self._ms, self._first, self._count, self._device = array("I"), array("I"), array("I"), array("H")

    def __len__(self) -> int:
        """Runs so far."""
        return len(self._ms)

    def touch(self, device: int, offset: int, length: int, now: float) -> None:
        """Bytes [offset, offset + length) of a device were read `now` seconds after the start; others do not count."""
        first = offset // PAGE
        end = min(-(-(offset + length) // PAGE), self._pages[device - 1])
        for at in range(first, end, _RUN_PAGES):  # one round for anything that a kernel asks for
            begin, pages = at >> 3, min(end - at, _RUN_PAGES)
            stop = at + pages + 7 >> 3
            bits = self._bits[device - 1]
            new = _mask(at, pages) & ~int.from_bytes(bits[begin:stop], "little")
            if new:
                self._add(device, begin << 3, new, now)

    def touches(self) -> Iterator[Touched]:
        """In order of first touch; no page comes twice."""
        return map(Touched, self._ms, self._device, self._first, self._count)

    def touched(self, device: int, first: int, pages: int) -> bool:
        """Tells whether any of these pages was touched."""
        end = min(first + pages, self._pages[device - 1])
        if first >= end:
            return False
        known = int.from_bytes(self._bits[device - 1][first >> 3 : end + 7 >> 3], "little")
        return bool(known & _mask(first, end - first))

    def touched_blocks(self, device: int) -> set[int]:
        """The numbers of the 128 KiB blocks of which any page was touched."""
        blocks: set[int] = set()
        for _, number, first, pages in self.touches():
            if number == device:
                blocks.update(range(first // _PAGES_PER_BLOCK, (first + pages - 1) // _PAGES_PER_BLOCK + 1))
        return blocks

    def to_bytes(self) -> bytes:
        """The raw form."""
        header = _HEADER.pack(_MAGIC, len(self.sizes), len(self._ms), self.full)
        sizes = b"".join(map(_SIZE.pack, self.sizes))
        columns = (self._ms, self._first, self._count, self._device)
        return header + sizes + b"".join(column.tobytes() for column in columns)

    @classmethod
    def from_bytes(cls, data: bytes) -> Recorder:
        """The inverse of `to_bytes`; the recorder goes on where it was. Raises FormatError."""
        if len(data) < _HEADER.size:
            raise FormatError(f"a record of {len(data)} bytes is too short for its header")
        magic, devices, runs, full = _HEADER.unpack_from(data)
        if magic != _MAGIC:
            raise FormatError("this is no record of touches, or one of another version")
        at = _HEADER.size + _SIZE.size * devices
        if devices > _DEVICES or runs > RUN_LIMIT or len(data) != at + 14 * runs:
            raise FormatError("the record of touches is shorter or longer than its header says")
        recorder = cls([size for (size,) in _SIZE.iter_unpack(data[_HEADER.size : at])])
        recorder.full = bool(full)
        columns = []
        for code, width in (("I", 4), ("I", 4), ("I", 4), ("H", 2)):
            columns.append(array(code, data[at : at + width * runs]))
            at += width * runs
        for row in zip(*columns, strict=True):
            recorder._restore(*row)
        return recorder

    def _restore(self, ms: int, first: int, pages: int, device: int) -> None:
        if not (0 < device <= len(self.sizes) and 0 < pages <= _RUN_PAGES and first + pages <= self._pages[device - 1]):
            raise FormatError("the record of touches has a run outside its devices")
        if self.touched(device, first, pages) or (self._ms and ms < self._ms[-1]):
            raise FormatError("the record of touches has a run that is not the first of its pages")
        self._append(ms, device, first, pages)

    def _add(self, device: int, at: int, new: int, now: float) -> None:
        """Append a run for each row of ones in `new`, whose lowest bit stands for the page `at`."""
        ms = min(max(0, int(now * 1000), self._ms[-1] if self._ms else 0), 0xFFFFFFFF)
        while new:
            gap = (new & -new).bit_length() - 1
            new >>= gap
            pages = (new + 1 & ~new).bit_length() - 1
            new >>= pages
            if len(self._ms) >= RUN_LIMIT:
                self.full = True
                return
            self._append(ms, device, at + gap, pages)
            at += gap + pages

    def _append(self, ms: int, device: int, first: int, pages: int) -> None:
        bits, begin, stop = self._bits[device - 1], first >> 3, first + pages + 7 >> 3
        bits[begin:stop] = (int.from_bytes(bits[begin:stop], "little") | _mask(first, pages)).to_bytes(
            stop - begin, "little"
        )
        self._ms.append(ms)
        self._device.append(device)
        self._first.append(first)
        self._count.append(pages)


def _mask(first: int, pages: int) -> int:
    """The bits of these pages, counted from the first bit of the byte in which they begin."""
    return (1 << pages) - 1 << (first & 7)


Key = TypeVar("Key", bound=Hashable)


def score(
    planned: Mapping[Key, AbstractSet[int]],
    touched: Mapping[Key, AbstractSet[int]],
    size: Callable[[Key, int], int] = lambda _device, _block: BLOCK,
) -> dict[str, Any]:
    """Judge planned against touched blocks, both by device. `size` gives the bytes of a block; those of 0 do not count.

    precision: which share of the planned bytes was touched; recall: which share of the touched bytes was planned; both
    1.0 where there is nothing to share. And blocks and bytes: planned, touched, and both.
    """
    found: dict[str, Any] = dict.fromkeys(
        ("planned_blocks", "touched_blocks", "both_blocks", "planned_bytes", "touched_bytes", "both_bytes"), 0
    )
    for device in planned.keys() | touched.keys():
        ahead, needed = planned.get(device, frozenset()), touched.get(device, frozenset())
        for name, blocks in (("planned", ahead), ("touched", needed), ("both", ahead & needed)):
            sizes = [length for block in blocks if (length := size(device, block))]
            found[f"{name}_blocks"] += len(sizes)
            found[f"{name}_bytes"] += sum(sizes)
    both = found["both_bytes"]
    found["precision"] = round(both / found["planned_bytes"], 4) if found["planned_bytes"] else 1.0
    found["recall"] = round(both / found["touched_bytes"], 4) if found["touched_bytes"] else 1.0
    return found
