"""The stages of a start and their seconds, from the events that job and benchmark wrote on one machine. Pure.

Times are seconds of the machine's monotonic clock. A stage takes the union of its spans:

image         fetching and unpacking, from the request to run a container until its program's first line, and imports
              of what the image brings: a lazy image pays for its pages there
dependencies  installing or mounting, and imports of what was installed
checkpoint    mounting or fetching, and loading; bringing it into a cache in the background is not counted here
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness import BenchError

__all__ = ["BACKGROUND", "Course", "Span", "course", "read_events"]

BACKGROUND = "warm"
"""Name of a span beside what the job waits for."""

_WARMING = ("warm", "warmed")
"""Instants of `imagefs run --checkpoint`. The second one lacks where the start is over before all is warm."""

_SOURCES = ("job", "bench")
_IMPORTS = {"image": "image", "dependencies": "dependencies"}
_PARTS = {"container": "image", "image": "image", "dependencies": "dependencies", "checkpoint": "checkpoint"}
_REST = ("model", "first_step")


@dataclass(frozen=True, slots=True)
class Span:
    stage: str
    name: str
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Course:
    """One start: when it was asked for, when its program ran, when it was ready, and the spans between."""

    begin: float
    ready: float
    spans: tuple[Span, ...]

    @property
    def seconds(self) -> float:
        return self.ready - self.begin

    def stage(self, name: str, *, background: bool = False) -> list[tuple[float, float]]:
        """The intervals of a stage, disjoint and in order; with `background` also those that nothing waited for."""
        return _union((span.begin, span.end) for span in self.spans if self._belongs(span, name, background))

    def values(self) -> dict[str, float]:
        """By metric of `bench.harness.results`."""
        found = {f"{name}_stage": _length(self.stage(name)) for name in ("image", "dependencies", "checkpoint")}
        rest = _union((span.begin, span.end) for span in self.spans if span.stage in _REST)
        return {"time": self.seconds, **found, "step_stage": _length(rest), "overlapped": self.overlapped()}

    def overlapped(self) -> float:
        """Seconds before `ready` during which two stages or more went on."""
        edges: list[tuple[float, int]] = []
        for name in ("image", "dependencies", "checkpoint"):
            for begin, end in self.stage(name, background=True):
                edges += [(begin, 1), (min(end, self.ready), -1)]
        total, going, since = 0.0, 0, 0.0
        for when, step in sorted(edges):
            total += (when - since) * (going >= 2)
            going, since = going + step, when
        return total

    @staticmethod
    def _belongs(span: Span, stage: str, background: bool) -> bool:
        if span.name == BACKGROUND and not background:
            return False
        return _IMPORTS.get(span.name) == stage if span.stage == "imports" else _PARTS.get(span.stage) == stage


def read_events(folder: Path) -> list[dict[str, Any]]:
    """All events in the files of a spool folder."""
    return [json.loads(line) for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines()]


def course(begin: float, events: Sequence[dict[str, Any]]) -> Course:
    """Of the start that was asked for at `begin`. Raises BenchError where an event lacks that should be there."""
    spans = list(_closed(events))
    ran, ready = (_moment(events, *which) for which in (("container", "exec"), ("ready", "")))
    launched = _moment(events, "container", "launch")
    warm = [event for event in events if event["stage"] == "checkpoint" and event.get("name") in _WARMING]
    moments = sorted(float(event["mono_ns"] / 1e9) for event in warm)
    background = [Span("checkpoint", BACKGROUND, moments[0], [*moments, ready][1])] if moments else []
    return Course(begin, ready, (*spans, Span("container", "launch", launched, ran), *background))


def _closed(events: Sequence[dict[str, Any]]) -> Iterable[Span]:
    ends = {event["span"]: event["mono_ns"] / 1e9 for event in events if event["event"] == "end"}
    for event in events:
        if event["event"] == "begin" and event["source"] in _SOURCES:
            if event["span"] not in ends:
                raise BenchError(f"the stage {event['stage']} {event.get('name', '')} has no end among the events")
            yield Span(event["stage"], event.get("name", ""), event["mono_ns"] / 1e9, ends[event["span"]])


def _moment(events: Sequence[dict[str, Any]], stage: str, name: str) -> float:
    for event in events:
        which = (event["event"], event["stage"], event.get("name", ""))
        if which == ("instant", stage, name) and event["source"] in _SOURCES:
            return float(event["mono_ns"] / 1e9)
    raise BenchError(f"the events of a start lack {stage} {name}".rstrip())


def _union(intervals: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    merged: list[tuple[float, float]] = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def _length(intervals: Iterable[tuple[float, float]]) -> float:
    return sum(end - begin for begin, end in intervals)
