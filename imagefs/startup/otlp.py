"""Starts as OTLP in JSON lines, as the file exporter of OpenTelemetry writes traces.

Each line is one TracesData of one process. The attributes named `bootseer.…` hold what OTLP has no field for, so that
`imagefs startup import otlp` gives back the same events. An instant is a span without length; so is a span one of whose
ends was lost, and the attribute `bootseer.event` tells which event there was.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from imagefs.startup.event_files import Event, Paired, paired

__all__ = ["RESOURCE", "attributes", "plain_values", "to_otlp"]

RESOURCE = {
    "job": "service.name", "run": "bootseer.run", "attempt": "bootseer.attempt", "node": "host.name",
    "rank": "bootseer.rank", "pid": "process.pid", "boot": "bootseer.boot", "source": "bootseer.source",
}  # fmt: skip
"""Fields of an event that belong to its process, and their names in OTLP."""

_LINE_SPANS = 1000


def to_otlp(events: Iterable[Event]) -> Iterator[str]:
    """The lines, each with its newline."""
    processes: dict[tuple[Any, ...], list[Paired]] = {}
    seen: set[tuple[str, str]] = set()
    for one in paired(events):
        processes.setdefault(tuple(one.first.get(name) for name in RESOURCE), []).append(one)
    for key, spans in processes.items():
        resource = {
            "attributes": attributes({RESOURCE[name]: value for name, value in zip(RESOURCE, key, strict=True)})
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
        "attributes": attributes(own),
    }
    if event.get("parent"):
        span["parentSpanId"] = _hexadecimal(event["parent"], 16, [start, event["parent"]])
    if error := end.get("facts", {}).get("error"):
        span["status"] = {"code": 2, "message": str(error)}
    return span


def attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
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
