"""Traces in figures for people and programs: the summary of one, and the difference of two.

A difference has the extents that only one trace touched, content that changed, and how far the orders agree.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from imagefs.format.trace import Touch, Trace, path_to_text

__all__ = ["Diff", "Pair", "diff", "summary"]


def summary(trace: Trace, top: int = 20) -> dict[str, Any]:
    """Facts, totals, the `top` files and directories with most bytes, and bytes over time.

    `timeline` holds, for each tenth of the time up to the last first touch, its end in milliseconds and the bytes that
    were first touched in it.
    """
    files: dict[bytes, int] = {}
    folders: dict[bytes, int] = {}
    last = trace.touches[-1].ms if trace.touches else 0
    step = last // 10 + 1
    timeline = [0] * 10
    for touch in trace.touches:
        files[touch.path] = files.get(touch.path, 0) + touch.length
        folder = touch.path.rpartition(b"/")[0]
        folders[folder] = folders.get(folder, 0) + touch.length
        timeline[touch.ms // step] += touch.length
    return {
        **{name: getattr(trace, name) for name in ("image", "workload", "node", "started", "seconds", "ended_by")},
        "complete": trace.complete,
        "reason": trace.reason,
        "extents": len(trace.touches),
        "bytes": trace.touched_bytes,
        "files": len(files),
        "last_ms": last,
        "timeline": [{"ms": step * (number + 1), "bytes": count} for number, count in enumerate(timeline)],
        "top_files": _top(files, top),
        "top_folders": _top(folders, top),
    }


def _top(sizes: Mapping[bytes, int], count: int) -> list[dict[str, Any]]:
    order = sorted(sizes.items(), key=lambda entry: (-entry[1], entry[0]))
    return [{"path": path_to_text(path), "bytes": size} for path, size in order[:count]]


@dataclass(frozen=True, slots=True)
class Pair:
    """The same extent in both traces. how: "same" place and content, "changed" content, or "moved" to another place."""

    how: str
    first: Touch
    second: Touch


@dataclass(frozen=True, slots=True)
class Diff:
    """`in_order` is the share of the pairs that come in the same order: the longest such row of them."""

    only_first: Sequence[Touch]
    only_second: Sequence[Touch]
    pairs: Sequence[Pair]
    in_order: float

    def to_json(self) -> dict[str, Any]:
        """As plain values; what is the same is only counted."""
        return {
            "only_first": _many(self.only_first),
            "only_second": _many(self.only_second),
            "same": sum(pair.how == "same" for pair in self.pairs),
            "changed": _many(pair.second for pair in self.pairs if pair.how == "changed"),
            "moved": [
                {"from": _touch(pair.first), "to": _touch(pair.second)} for pair in self.pairs if pair.how == "moved"
            ],
            "in_order": round(self.in_order, 4),
        }


def diff(first: Trace, second: Trace) -> Diff:
    """Extents are paired by place, then, where their place is in one trace only, by content."""
    by_place = {(touch.path, touch.offset): number for number, touch in enumerate(second.touches)}
    partner: dict[int, int] = {}
    for number, touch in enumerate(first.touches):
        other = by_place.pop((touch.path, touch.offset), None)
        if other is not None:
            partner[number] = other
    by_content = {second.touches[number].digest: number for number in sorted(by_place.values(), reverse=True)}
    for number, touch in enumerate(first.touches):
        if number not in partner and (other := by_content.pop(touch.digest, None)) is not None:
            partner[number] = other
    paired = sorted(partner.items())
    taken = set(partner.values())
    return Diff(
        [touch for number, touch in enumerate(first.touches) if number not in partner],
        [touch for number, touch in enumerate(second.touches) if number not in taken],
        [_pair(first.touches[one], second.touches[other]) for one, other in paired],
        _longest_rise([other for _, other in paired]) / len(paired) if paired else 1.0,
    )


def _pair(first: Touch, second: Touch) -> Pair:
    if (first.path, first.offset) != (second.path, second.offset):
        return Pair("moved", first, second)
    return Pair("same" if first.digest == second.digest else "changed", first, second)


def _longest_rise(numbers: Iterable[int]) -> int:
    """The length of the longest ascending row that can be picked out of distinct numbers without reordering them."""
    ends: list[int] = []  # the least number on which a row of each length can end
    for number in numbers:
        at = bisect_left(ends, number)
        ends[at : at + 1] = [number]
    return len(ends)


def _many(touches: Iterable[Touch]) -> dict[str, Any]:
    found = list(touches)
    return {"extents": len(found), "bytes": sum(touch.length for touch in found), "list": list(map(_touch, found))}


def _touch(touch: Touch) -> dict[str, Any]:
    return {"path": path_to_text(touch.path), "offset": touch.offset, "bytes": touch.length, "ms": touch.ms}
