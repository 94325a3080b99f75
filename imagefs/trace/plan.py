"""From traces to a plan: matched to the image, merged, and turned into the blocks that hold the extents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from imagefs.format import erofs, index
from imagefs.format.plan import Plan, PlanRun
from imagefs.format.trace import Trace
from imagefs.trace.match import match
from imagefs.trace.merge import Wanted, merge
from imagefs.trace.target import Extent, Target

__all__ = ["Merged", "combine", "make_plan", "runs"]

_PER_BLOCK = index.BLOCK // erofs.BLOCK


@dataclass(frozen=True, slots=True)
class Merged:
    """What traces of one workload say about an image.

    traces: how many took part; left_out: how many did not, being incomplete or empty. by_digest, by_path, missing: how
    many of their touches were found which way, or not at all.
    """

    traces: int
    left_out: int
    wanted: Sequence[Wanted]
    by_digest: int
    by_path: int
    missing: int


def combine(traces: Iterable[Trace], target: Target, share: float = 0.5) -> Merged:
    """Match complete traces, of whatever image, to `target` and merge them."""
    orders, left_out, by_digest, by_path, missing = [], 0, 0, 0, 0
    for trace in traces:
        if not trace.complete or not trace.touches:
            left_out += 1
            continue
        matched = match(trace.touches, target)
        orders.append(matched.order)
        by_digest += matched.by_digest
        by_path += matched.by_path
        missing += matched.missing
    return Merged(len(orders), left_out, merge(orders, share), by_digest, by_path, missing)


def make_plan(image: str, workload: str, merged: Merged, extents: Mapping[int, Extent]) -> Plan:
    """The plan for the image with the manifest `image`, in which the extents lie as `Target.of` told."""
    there = (extents[wanted.cold] for wanted in merged.wanted if wanted.cold in extents)
    return Plan(image, workload, merged.traces, runs(there))


def runs(extents: Iterable[Extent]) -> list[PlanRun]:
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
