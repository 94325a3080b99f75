"""A trace in a few figures, for people and programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from imagefs.format.trace import Trace, path_to_text

__all__ = ["summary"]


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
