"""Plans from traces: pages resolved to extents, traces matched to an image and merged, blocks to fetch ahead. Pure.

An extent is known by where it lies in the cold device, in blocks of 4 KiB, its *cold place*: that is the same for an
image and for all that were optimised from it. `place` is its address in the image that is mounted, which may be in a
hot device.

Recorded pages of devices resolve to extents of files, so that a trace outlives the image's layout. The image is walked
once. Of its extents only those of which a page was touched are kept, so memory follows the start and not the image.
Each then takes the time of the first run of pages that reaches it.

A trace of one image is applied to another by content first, else by name. An extent that a rebuild only moved has the
digest it had. One that it changed is most likely touched where it was touched before: a rebuilt layer changes every
.pyc (the source's time is in it) and nothing else about how a start goes. So an extent that is nowhere in the new image
stands for the extents of the new file with the same path that cover the same bytes and those around them. So does one
of an image that has extents of another size.

Several starts become one order. An extent is kept when at least half of the traces, rounded up, touched it: a node that
did something of its own once does not cost every later start, and one that was interrupted does not take away what all
others need. Each trace then says how far along the kept extents it came to each, as a share of the whole, so that
traces of different lengths can be compared; the median of these decides. The order in which traces are given does not
matter.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple

from imagefs.errors import FormatError
from imagefs.format import erofs, index
from imagefs.format.erofs import BLOCK, ErofsImage
from imagefs.format.erofs.read import files
from imagefs.format.inodes import COLD, HOLE, ExtentTable
from imagefs.format.trace import Plan, PlanRun, Touch, Trace
from imagefs.trace.recorder import Recorder

__all__ = [
    "FileExtent",
    "ImageView",
    "Matched",
    "MergedTraces",
    "PlannedExtent",
    "combine",
    "make_plan",
    "match",
    "merge",
    "resolve",
    "runs",
]

CHANGED = 128 << 10
"""Bytes, on a multiple of as many, that a touch of a file whose content has changed stands for: its parts move in it.

Measured after a patch upgrade of pandas, bytes fetched ahead and recall: with 16 KiB 47.8 MB and 0.839, with 64 KiB
51.1 and 0.939, with 128 KiB 52.9 and 0.975, with 256 KiB 54.7 and 0.992.
"""


class FileExtent(NamedTuple):
    """Bytes [offset, offset + length) of the file at `path`; `place` is an `imagefs.format.inodes.address`."""

    path: bytes
    offset: int
    length: int
    cold: int
    place: int

    @property
    def blocks(self) -> int:
        """Its length in blocks of 4 KiB."""
        return -(-self.length // BLOCK)


class ImageView:
    """The image `image`, optimised from `base` (or that itself), whose cold device has the extents in `table`."""

    def __init__(self, image: ErofsImage, base: ErofsImage, table: ExtentTable) -> None:
        self.image = image
        self.base = base
        self.table = table
        self._cold_blocks = base.devices[0].blocks if base.devices else 0
        self._folders: dict[bytes, int | None] = {b"": base.root}

    def extents(self) -> Iterator[FileExtent]:
        """Every extent, file by file. Raises FormatError for an image that does not hold together."""
        for path, inode in files(self.image):
            now = self.image.chunks(inode)
            then = self.base.chunks(self.base.stat(inode.number)) if now is not None else None
            if now is None or then is None:
                continue
            size = now[0]
            for number, (place, cold) in enumerate(zip(now[1], then[1], strict=False)):
                if place != HOLE:
                    offset = number * size
                    yield FileExtent(path, offset, min(size, inode.size - offset), self._block_of(cold), place)

    def of(self, wanted: Collection[int]) -> dict[int, FileExtent]:
        """The extents at these cold places, as many of them as there are; of several at one place the first."""
        found: dict[int, FileExtent] = {}
        for extent in self.extents():
            if extent.cold in wanted:
                found.setdefault(extent.cold, extent)
        return found

    def find(self, digest: bytes) -> Iterator[int]:
        """The cold places of this content, ascending. One outside of the device, as only a bad table has, is none."""
        return (place for place in self.table.find(digest) if place < self._cold_blocks)

    def at(self, path: bytes, offset: int, length: int) -> list[int]:
        """The cold places of the extents that cover these bytes of the file, as many of them as there are."""
        number = self._lookup(path)
        inode = self.base.stat(number) if number is not None else None
        table = self.base.chunk_table(inode) if inode is not None else None
        if inode is None or table is None or not 0 <= offset < inode.size:
            return []
        size, end = table[0], min(offset + length, inode.size)
        addresses = [self.base.chunk(inode, chunk) for chunk in range(offset // size, -(-end // size))]
        return [self._block_of(address) for address in addresses if address is not None and address != HOLE]

    def digest_at(self, cold: int) -> bytes:
        """The digest of the extent there. Raises FormatError where none begins."""
        digest = self.table.digest_at(cold)
        if digest is None:
            raise FormatError("the image has an extent that its extents table does not know")
        return digest

    def _block_of(self, address: int) -> int:
        device, block = address >> 32, address & 0xFFFFFFFF
        if device != COLD or block >= self._cold_blocks:
            raise FormatError("the image has an extent outside of its cold device")
        return block

    def _lookup(self, path: bytes) -> int | None:
        """The inode of that name, links not followed: names in traces are those of the files themselves."""
        folder, _, name = path.rpartition(b"/")
        if folder not in self._folders:
            found: int | None = self.base.root
            for part in folder.split(b"/"):
                found = self._child(found, part)
            self._folders[folder] = found
        return self._child(self._folders[folder], name)

    def _child(self, number: int | None, name: bytes) -> int | None:
        if number is None or name in (b"", b".", b".."):
            return None
        inode = self.base.stat(number)
        return self.base.lookup(inode, name) if inode.is_directory else None


def resolve(recorder: Recorder, target: ImageView) -> list[Touch]:
    """Touches that `recorder` saw of the devices of `target.image`, by files, in order of first touch.

    Raises FormatError when these are not the devices it was recorded on.
    """
    if len(recorder.sizes) != len(target.image.devices) or any(
        -(-size // 4096) != device.blocks for size, device in zip(recorder.sizes, target.image.devices, strict=True)
    ):
        raise FormatError("the record of touches is of another image")
    touched = sorted(_touched(recorder, target), key=lambda extent: extent.place)
    places = [extent.place for extent in touched]
    done = bytearray(len(touched))
    found = []
    for ms, device, first, pages in recorder.touches():
        begin = device << 32 | first
        number = max(0, bisect_right(places, begin) - 1)
        while number < len(places) and places[number] < begin + pages:
            extent = touched[number]
            if not done[number] and extent.place + extent.blocks > begin:
                done[number] = True
                digest = target.digest_at(extent.cold)
                found.append(Touch(ms, extent.path, extent.offset, extent.length, digest))
            number += 1
    return found


def _touched(recorder: Recorder, target: ImageView) -> list[FileExtent]:
    """The extents of which any page was touched, the first of those that share a place."""
    found: dict[int, FileExtent] = {}
    for extent in target.extents():
        device, block = extent.place >> 32, extent.place & 0xFFFFFFFF
        if not 0 < device <= len(recorder.sizes):
            raise FormatError("the image has an extent in a device that it does not have")
        if recorder.touched(device, block, extent.blocks):
            found.setdefault(extent.place, extent)
    return list(found.values())


@dataclass(slots=True)
class Matched:
    """Cold places in order of first touch, none twice; and how many touches were found which way, or not."""

    order: list[int] = field(default_factory=list)
    by_digest: int = 0
    by_path: int = 0
    missing: int = 0


def match(touches: Iterable[Touch], target: ImageView) -> Matched:
    """The extents of `target` that stand for these touches."""
    found = Matched()
    seen: set[int] = set()
    for touch in touches:
        place = _by_content(touch, target)
        places = [place] if place is not None else _by_path(touch, target)
        found.by_digest += place is not None
        found.by_path += place is None and bool(places)
        found.missing += not places
        found.order += [one for one in places if one not in seen]
        seen.update(places)
    return found


def _by_content(touch: Touch, target: ImageView) -> int | None:
    """The place of the same bytes; where they lie several times, at the same path if they do, else the first."""
    places = list(target.find(touch.digest))
    if len(places) <= 1:
        return places[0] if places else None
    named = target.at(touch.path, touch.offset, touch.length)
    return next((place for place in named if place in places), places[0])


def _by_path(touch: Touch, target: ImageView) -> list[int]:
    """The places of the bytes at its path, and of those around them."""
    if not target.at(touch.path, touch.offset, touch.length):
        return []
    first = touch.offset - touch.offset % CHANGED
    return target.at(touch.path, first, max(CHANGED, touch.offset + touch.length - first))


_SCALE = 1 << 32


class PlannedExtent(NamedTuple):
    """An extent by its cold place, and how many traces touched it."""

    cold: int
    traces: int


def merge(orders: Sequence[Sequence[int]], share: float = 0.5) -> list[PlannedExtent]:
    """One order of what at least `share` of `orders` hold (and at least one does). Each holds nothing twice."""
    need = max(1, ceil(len(orders) * share))
    counts: dict[int, int] = {}
    for order in orders:
        for cold in order:
            counts[cold] = counts.get(cold, 0) + 1
    ranks: dict[int, list[int]] = {cold: [] for cold, count in counts.items() if count >= need}
    for order in orders:
        kept = [cold for cold in order if cold in ranks]
        for position, cold in enumerate(kept):
            ranks[cold].append(position * _SCALE // len(kept))
    return [PlannedExtent(cold, counts[cold]) for cold in sorted(ranks, key=lambda cold: (_middle(ranks[cold]), cold))]


def _middle(ranks: list[int]) -> tuple[int, int]:
    """The lower median, then the earliest."""
    ranks.sort()
    return ranks[(len(ranks) - 1) // 2], ranks[0]


_PER_BLOCK = index.BLOCK // erofs.BLOCK


@dataclass(frozen=True, slots=True)
class MergedTraces:
    """The traces of one workload, merged for an image.

    traces: how many took part; left_out: how many did not, being incomplete or empty. by_digest, by_path, missing: how
    many of their touches were found which way, or not at all.
    """

    traces: int
    left_out: int
    wanted: Sequence[PlannedExtent]
    by_digest: int
    by_path: int
    missing: int


def combine(traces: Iterable[Trace], target: ImageView, share: float = 0.5, *, ahead: bool = True) -> MergedTraces:
    """Match complete traces, of whatever image, to `target` and merge them. ahead: with what was only read ahead."""
    orders, left_out, by_digest, by_path, missing = [], 0, 0, 0, 0
    for trace in traces:
        if not trace.complete or not trace.touches:
            left_out += 1
            continue
        matched = match(trace.touches if ahead else trace.read, target)
        orders.append(matched.order)
        by_digest += matched.by_digest
        by_path += matched.by_path
        missing += matched.missing
    return MergedTraces(len(orders), left_out, merge(orders, share), by_digest, by_path, missing)


def make_plan(image: str, workload: str, merged: MergedTraces, extents: Mapping[int, FileExtent]) -> Plan:
    """The plan for the image with the manifest `image`, in which the extents lie as `ImageView.of` told."""
    there = (extents[wanted.cold] for wanted in merged.wanted if wanted.cold in extents)
    return Plan(image, workload, merged.traces, runs(there))


def runs(extents: Iterable[FileExtent]) -> list[PlanRun]:
    """The blocks that hold these extents, in order of first need, each once, neighbours joined."""
    found: list[PlanRun] = []
    seen: set[tuple[int, int]] = set()
    for extent in extents:
        device, first = extent.place >> 32, extent.place & 0xFFFFFFFF
        for block in range(first // _PER_BLOCK, (first + extent.blocks - 1) // _PER_BLOCK + 1):
            if (device, block) in seen:
                continue
            seen.add((device, block))
            last = found[-1] if found else None
            if last is not None and last.device == device and last.first + last.blocks == block:
                found[-1] = last._replace(blocks=last.blocks + 1)
            else:
                found.append(PlanRun(device, block, 1))
    return found
