"""The start-up events that programs have written into a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["events_in", "pairs"]


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
