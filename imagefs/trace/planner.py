"""Plans from traces: matched to the image, merged into one order, and turned into blocks that are fetched ahead. Pure.

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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple

from imagefs.format import erofs, index
from imagefs.format.plan import Plan, PlanRun
from imagefs.format.trace import Touch, Trace
from imagefs.trace.imageview import FileExtent, ImageView

__all__ = ["Matched", "MergedTraces", "PlannedExtent", "combine", "make_plan", "match", "merge", "runs"]


CHANGED = 128 << 10
"""Bytes, on a multiple of as many, that a touch of a file whose content has changed stands for: its parts move in it.

Measured after a patch upgrade of pandas, bytes fetched ahead and recall: with 16 KiB 47.8 MB and 0.839, with 64 KiB
51.1 and 0.939, with 128 KiB 52.9 and 0.975, with 256 KiB 54.7 and 0.992.
"""


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
