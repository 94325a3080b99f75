"""Starts as a trace in Chrome's JSON, which ui.perfetto.dev and chrome://tracing show.

Each node of a start is a process and each rank a thread. Spans are asynchronous events (`b`, `e`) with an id of their
own, since spans of one thread overlap, which `B` and `E` cannot say. A span whose end was lost has no `e`; an end
whose begin was lost is an instant.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from imagefs.startup.event_files import Event, Paired, paired

__all__ = ["to_perfetto"]


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
