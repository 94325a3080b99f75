"""The start-up events that programs have written into a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stripefs.startup_events import LINE_BYTES

__all__ = ["TRACE", "events", "events_in", "pairs"]

TRACE = "00-" + "4" * 32 + "-" + "b" * 16 + "-01"
"""Of W3C: trace 44…, parent bb…."""


def events_in(folder: Path) -> list[dict[str, Any]]:
    """All of them, by the time at which they happened; those of each process are numbered without a gap."""
    found: list[dict[str, Any]] = []
    for path in folder.glob("*.jsonl"):
        events = [json.loads(line) for line in path.read_text().splitlines()]
        assert [one["seq"] for one in events] == list(range(len(events)))
        found += events
    return sorted(found, key=lambda one: int(one["mono_ns"]))


def pairs(events: list[dict[str, Any]]) -> dict[tuple[str, str], tuple[dict[str, Any], dict[str, Any]]]:
    """The begin and the end of each span, by stage and name; each has both, in that order."""
    begins = {one["span"]: one for one in events if one["event"] == "begin"}
    ends = {one["span"]: one for one in events if one["event"] == "end"}
    assert begins.keys() == ends.keys()
    for span, begin in begins.items():
        assert begin["mono_ns"] <= ends[span]["mono_ns"]
        assert begin["stage"] == ends[span]["stage"]
    return {(one["stage"], one.get("name", "")): (one, ends[span]) for span, one in begins.items()}


def _no_constant(text: str) -> None:
    raise AssertionError(f"{text} is no JSON")


def events(folder: Path) -> list[dict[str, Any]]:
    """The events of all files, in the order of the files; each line is whole and strictly JSON."""
    found = []
    for path in sorted(folder.glob("*.jsonl")):
        data = path.read_bytes()
        assert data.endswith(b"\n") or not data
        for line in data.splitlines():
            assert len(line) < LINE_BYTES
            found.append(json.loads(line.decode(), parse_constant=_no_constant))
    return found
