"""Events for the tests of reports on starts."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from typing import Any

from bench.startup.synthetic import Fleet, lines
from imagefs.startup.analysis import Gpus, analyse
from imagefs.startup.load import Events, Problems, load
from imagefs.startup.report import Report
from imagefs.startup.sources import File

__all__ = ["counts", "event", "file", "fleet", "loaded", "report", "span"]

SECOND = 10**9


def file(data: bytes, name: str = "events.jsonl") -> File:
    return File(name, lambda: io.BytesIO(data))


def event(
    moment: float, what: str, stage: str, name: str = "", *, node: str | None = "a", rank: int | None = 0, **fields: Any
) -> bytes:
    """A line. The monotonic clock of a node is its boot's; moment: seconds."""
    made = {
        "v": 1, "wall_ns": 1_700_000_000 * SECOND + round(moment * SECOND), "mono_ns": round(moment * SECOND),
        "event": what, "stage": stage, "name": name, "node": node, "boot": f"boot-{node}", "rank": rank, "run": "r",
        "pid": 1 if rank is None else rank + 2, "source": "job",
    }  # fmt: skip
    return json.dumps({key: value for key, value in (made | fields).items() if value is not None}).encode() + b"\n"


def span(
    begin: float, end: float, stage: str, name: str = "", *, facts: dict[str, Any] | None = None, **fields: Any
) -> bytes:
    key = f"{stage} {name} {begin} {fields.get('node')} {fields.get('rank')} {fields.get('run')}"
    ended = fields if facts is None else {**fields, "facts": facts}
    return event(begin, "begin", stage, name, span=key, **fields) + event(end, "end", stage, name, span=key, **ended)


def loaded(data: bytes) -> tuple[Events, dict[str, int]]:
    problems = Problems()
    return load([file(data)], problems), {one.kind: one.count for one in problems.listed()}


def report(*parts: bytes, gpus: Gpus | None = None, runs: Iterable[str] = ()) -> Report:
    return analyse([("", [file(b"".join(parts))])], runs, gpus)


def fleet(*fleets: Fleet) -> bytes:
    return b"".join(line for one in fleets for line in lines(one))


def counts(made: Report) -> dict[str, int]:
    """The number of each kind of problem."""
    return {one.kind: one.count for one in made.problems}
