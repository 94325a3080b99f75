"""Reads event files line by line, without pyarrow, and pairs begins with ends: for exports that show every event.

Lines that are no events are counted. An event that a collector copied twice is kept once.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from imagefs.startup.sources import HUGE, find_files, read_files
from stripefs.startup_events import VERSION

__all__ = ["Event", "EventFiles", "Paired", "paired", "read_events"]

Event = dict[str, Any]

_TYPES: dict[str, type] = {
    "wall_ns": int, "mono_ns": int, "stage": str, "name": str, "span": str, "parent": str, "kind": str, "job": str,
    "run": str, "attempt": int, "node": str, "rank": int, "pid": int, "source": str, "boot": str, "trace": str,
    "facts": dict, "seq": int,
}  # fmt: skip


class EventFiles(NamedTuple):
    """The events by time, how many lines were no events of this version, and files that could not be read whole."""

    events: list[Event]
    bad_lines: int
    damaged: list[str]


class Paired(NamedTuple):
    """A span: begin or end is None where it was lost. An instant has `begin` alone, whose `event` tells."""

    begin: Event | None
    end: Event | None

    @property
    def first(self) -> Event:
        event = self.begin or self.end
        assert event is not None
        return event

    @property
    def begin_ns(self) -> int:
        """Wall clock of the begin."""
        return int(self.first["wall_ns"])

    @property
    def end_ns(self) -> int:
        """Wall clock of the begin plus what the monotonic clock says, or the wall clock where there is no other."""
        if not self.begin or not self.end:
            return self.begin_ns
        clock = "mono_ns" if "mono_ns" in self.begin and "mono_ns" in self.end else "wall_ns"
        return self.begin_ns + max(0, int(self.end[clock]) - int(self.begin[clock]))


def read_events(places: Sequence[str]) -> EventFiles:
    """The events of the files at these paths and URLs. Raises what `find_files` raises."""
    events: list[Event] = []
    seen: set[tuple[Any, ...]] = set()
    bad, damaged = 0, []
    for _, pieces in read_files(find_files(places), lambda name, why: damaged.append(f"{name}: {why}")):
        for line in _lines(pieces):
            event = _event(line)
            if event is None:
                bad += 1
                continue
            if "seq" in event:
                key = tuple(event.get(name) for name in ("run", "node", "boot", "pid", "seq", "wall_ns"))
                if key in seen:
                    continue
                seen.add(key)
            events.append(event)
    events.sort(key=lambda event: event["wall_ns"])
    return EventFiles(events, bad, damaged)


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a file that comes in pieces, those without text left out."""
    rest = b""
    for piece in pieces:
        *whole, rest = (rest[: HUGE + 1] + piece).split(b"\n")  # of a huge line no more than tells that it is one
        yield from filter(None, map(bytes.strip, whole))
    if rest.strip():
        yield rest.strip()


def paired(events: Iterable[Event]) -> list[Paired]:
    """Each span and each instant once, by time. Of begins and ends that share a span, as marks of one stage do, the
    first end belongs to the first begin, and so on."""
    found: list[list[Event | None]] = []
    waiting: dict[tuple[Any, ...], deque[list[Event | None]]] = {}
    for event in sorted(events, key=lambda one: (one.get("mono_ns", one["wall_ns"]), one["event"] == "end")):
        unnamed = () if "span" in event else (event["stage"], event.get("name"), event.get("pid"))
        key = (*(event.get(name) for name in ("run", "node", "boot", "rank", "span")), *unnamed)
        begun = waiting.setdefault(key, deque())
        if event["event"] == "end" and begun:
            begun.popleft()[1] = event
            continue
        found.append([None, event] if event["event"] == "end" else [event, None])
        if event["event"] == "begin":
            begun.append(found[-1])
    return sorted((Paired(begin, end) for begin, end in found), key=lambda one: one.begin_ns)


def _finite(text: str) -> float | str:
    """A number, or its text where JSON could not say it again."""
    return float(text) if math.isfinite(float(text)) else text


def _event(line: bytes) -> Event | None:
    if len(line) > HUGE:
        return None
    try:
        event = json.loads(line, parse_constant=str, parse_float=_finite)
        if b"\\ud" in line.lower():  # half a surrogate pair, which no other program takes
            event = json.loads(json.dumps(event, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    if (
        not isinstance(event, dict)
        or event.get("v") != VERSION
        or event.get("event") not in ("begin", "end", "instant")
    ):
        return None
    whole = "wall_ns" in event and "stage" in event
    whole = whole and all(type(event.get(name, kind())) is kind for name, kind in _TYPES.items())
    return event if whole and 0 <= event["wall_ns"] < 1 << 63 else None
