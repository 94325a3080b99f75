"""Exports that show every event: event files line by line, without pyarrow, as OTLP and as a trace of Chrome.

Lines that are no events are counted. An event that a collector copied twice is kept once.

OTLP is in JSON lines, as the file exporter of OpenTelemetry writes traces. Each line is one TracesData of one process.
The attributes named `bootseer.…` hold what OTLP has no field for, so that `imagefs startup import otlp` gives back the
same events. An instant is a span without length; so is a span one of whose ends was lost, and the attribute
`bootseer.event` tells which event there was.

ui.perfetto.dev and chrome://tracing show Chrome's JSON. Each node of a start is a process and each rank a thread. Spans
are asynchronous events (`b`, `e`) with an id of their own, since spans of one thread overlap, which `B` and `E` cannot
say. A span whose end was lost has no `e`; an end whose begin was lost is an instant.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from imagefs.startup.sources import HUGE, find_files, read_files
from stripefs.startup_events import VERSION

__all__ = ["RESOURCE", "Event", "paired", "plain_values", "read_events", "to_otlp", "to_perfetto"]

Event = dict[str, Any]

_TYPES: dict[str, type] = {
    "wall_ns": int, "mono_ns": int, "stage": str, "name": str, "span": str, "parent": str, "kind": str, "job": str,
    "run": str, "attempt": int, "node": str, "rank": int, "pid": int, "source": str, "boot": str, "trace": str,
    "facts": dict, "seq": int,
}  # fmt: skip

RESOURCE = {
    "job": "service.name", "run": "bootseer.run", "attempt": "bootseer.attempt", "node": "host.name",
    "rank": "bootseer.rank", "pid": "process.pid", "boot": "bootseer.boot", "source": "bootseer.source",
}  # fmt: skip
"""Fields of an event that belong to its process, and their names in OTLP."""

_LINE_SPANS = 1000


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


# -- OTLP


def to_otlp(events: Iterable[Event]) -> Iterator[str]:
    """The lines, each with its newline."""
    processes: dict[tuple[Any, ...], list[Paired]] = {}
    seen: set[tuple[str, str]] = set()
    for one in paired(events):
        processes.setdefault(tuple(one.first.get(name) for name in RESOURCE), []).append(one)
    for key, spans in processes.items():
        resource = {
            "attributes": _attributes({RESOURCE[name]: value for name, value in zip(RESOURCE, key, strict=True)})
        }
        for start in range(0, len(spans), _LINE_SPANS):
            rows = [_span(one, seen) for one in spans[start : start + _LINE_SPANS]]
            scopes = [{"scope": {"name": "bootseer.startup"}, "spans": rows}]
            yield json.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": scopes}]}) + "\n"


def _span(one: Paired, seen: set[tuple[str, str]]) -> dict[str, Any]:
    """The span. Its id is that of the events, unless one of `seen`, by trace and id, has it already."""
    event, begin, end = one.first, one.begin or {}, one.end or {}
    whole = bool(begin and end)
    start = [event.get("job", ""), event.get("run", ""), event.get("attempt", 0)]
    own: dict[str, Any] = {
        "bootseer.stage": event["stage"], "bootseer.kind": event.get("kind"), "bootseer.trace": event.get("trace"),
        "bootseer.event": None if whole else event["event"], "bootseer.span": event.get("span"),
        "bootseer.parent": event.get("parent"), "bootseer.name": event.get("name"),
        "bootseer.begin.mono_ns": begin.get("mono_ns"), "bootseer.end.mono_ns": end.get("mono_ns"),
    }  # fmt: skip
    if whole and end.get("pid") != begin.get("pid"):
        own["bootseer.end.pid"] = end.get("pid")
    own |= {f"bootseer.begin.facts.{key}": value for key, value in begin.get("facts", {}).items()}
    own |= {f"bootseer.end.facts.{key}": value for key, value in end.get("facts", {}).items()}
    trace, known = _hexadecimal(event.get("trace", ""), 32, start), event.get("span", "")
    number = _hexadecimal("" if (trace, known) in seen else known, 16, [start, event])
    seen.add((trace, number))
    span = {
        "traceId": trace,
        "spanId": number,
        "name": event.get("name") or event["stage"],
        "kind": 1,  # internal
        "startTimeUnixNano": str(event["wall_ns"]),
        "endTimeUnixNano": str(max(event["wall_ns"], end.get("wall_ns", 0))),
        "attributes": _attributes(own),
    }
    if event.get("parent"):
        span["parentSpanId"] = _hexadecimal(event["parent"], 16, [start, event["parent"]])
    if error := end.get("facts", {}).get("error"):
        span["status"] = {"code": 2, "message": str(error)}
    return span


def _attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """OTLP's list of attributes; None and empty texts are left out."""
    return [{"key": key, "value": _value(value)} for key, value in values.items() if value not in ("", None)]


def plain_values(listed: Any) -> dict[str, Any]:
    """The plain values of OTLP's list of attributes; others are left out. Raises ValueError, TypeError and KeyError."""
    found = {}
    for one in listed or ():
        ((kind, value),) = one["value"].items() or {("", None)}
        if kind in ("stringValue", "boolValue"):
            found[one["key"]] = value
        elif kind in ("intValue", "doubleValue"):
            found[one["key"]] = int(value) if kind == "intValue" else float(value)
    return found


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {
            "doubleValue": value
            if math.isfinite(value)
            else {"inf": "Infinity", "-inf": "-Infinity"}.get(str(value), "NaN")
        }
    return {"stringValue": value if isinstance(value, str) else json.dumps(value)}


def _hexadecimal(text: str, digits: int, seed: object) -> str:
    """`text` where it is an id of OTLP, else one that follows from `seed`."""
    if re.fullmatch(rf"[0-9a-f]{{{digits}}}", text) and text.strip("0"):
        return text
    return hashlib.blake2b(json.dumps(seed, sort_keys=True).encode(), digest_size=digits // 2).hexdigest()


# -- Perfetto


def to_perfetto(events: Iterable[Event]) -> str:
    """The JSON document. Times are microseconds since the first event."""
    spans = paired(events)
    zero = min((one.begin_ns for one in spans), default=0)
    several = len({_start(one.first) for one in spans}) > 1
    processes: dict[tuple[Any, ...], int] = {}
    threads: dict[tuple[Any, ...], int] = {}
    heads: list[dict[str, Any]] = []
    rows: list[tuple[int, int, dict[str, Any]]] = []
    for number, one in enumerate(spans, 1):
        event = one.first
        node, rank = event.get("node", ""), event.get("rank")
        label = node or "all nodes"
        if several:
            label = " ".join(map(str, filter(None, (*_start(event), label))))
        pid = _number(processes, (*_start(event), node), heads, "process_name", label)
        name = f"rank {rank}" if rank is not None else event.get("source", "node")
        tid = _number(threads, (pid, name), heads, "thread_name", name, pid)
        rows += _rows(one, {"cat": event["stage"], "pid": pid, "tid": tid}, number, zero)
    rows.sort(key=lambda row: row[:2])
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": heads + [row for _, _, row in rows]})


def _rows(one: Paired, where: dict[str, Any], number: int, zero: int) -> list[tuple[int, int, dict[str, Any]]]:
    """The trace events of a span with their order: at one time, begins go before ends."""
    event = one.first
    name = " ".join(filter(None, (event["stage"], event.get("name", ""))))
    arguments = {"kind": event.get("kind", "work"), "source": event.get("source", "")}
    arguments |= {**(one.begin or {}).get("facts", {}), **(one.end or {}).get("facts", {})}
    begin, end = one.begin_ns - zero, one.end_ns - zero
    if event["event"] != "begin":
        lost = "end of " if event["event"] == "end" else ""
        return [(begin, 0, {**where, "ph": "i", "s": "t", "name": lost + name, "ts": begin / 1000, "args": arguments})]
    both = {**where, "id": f"{number:#x}", "name": name}
    if one.end is None:
        arguments["unfinished"] = True
    rows = [(begin, 0, {**both, "ph": "b", "ts": begin / 1000, "args": arguments})]
    return rows if one.end is None else [*rows, (end, 1, {**both, "ph": "e", "ts": end / 1000})]


def _start(event: Event) -> tuple[str, str, int]:
    return event.get("job", ""), event.get("run", ""), event.get("attempt", 0)


def _number(known: dict[tuple[Any, ...], int], key: tuple[Any, ...], heads: list[dict[str, Any]], what: str, name: str,
            pid: int = 0) -> int:  # fmt: skip
    """The number of a process or thread, from 1 on; a new one adds the metadata event that names it."""
    if key not in known:
        known[key] = len(known) + 1
        place = {"pid": pid, "tid": known[key]} if pid else {"pid": known[key]}
        heads.append({"ph": "M", "name": what, **place, "ts": 0, "args": {"name": name}})
    return known[key]
