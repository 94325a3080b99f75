"""What the daemon tells, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stripefs.cli.output import table
from stripefs.units import format_size

__all__ = ["describe", "judged"]


def judged(figures: Mapping[str, Any]) -> str:
    """What a start's replay was worth."""
    start = figures.get("start") or {}
    if not start:
        return "the start is not over"
    rows = [("start", f"{start['seconds']:g} s, ended by {start['ended_by']}")]
    if "precision" in start:
        rows.append(("fetched ahead", f"precision {start['precision']:.2f}, recall {start['recall']:.2f}"))
    rows.append(("readers waited", f"{start['waited_ms']:.0f} ms for the store"))
    return table(rows)


def describe(status: Mapping[str, Any]) -> str:
    """The daemon and its images."""
    blocks = status["blocks"]
    rows = [
        ("daemon", f"pid {status['supervisor_pid']}, worker {status['worker_pid']}, {status['restarts']} restarts"),
        ("cache", f"{format_size(blocks['used'])} of {format_size(blocks['limit'])} in {status['cache']}"),
    ]
    served = blocks.get("served", {})  # an older daemon tells none
    sources = {"the cache": sum(served.get(where, 0) for where in ("memory", "disk", "peer"))}
    sources |= blocks.get("upstreams", {})
    rows += [(f"from {where}", format_size(size)) for where, size in sources.items() if size]
    rows += [(f"not from {one['url']}", one["reason"]) for one in blocks.get("mirrors", ()) if one["reason"]]
    parts = [table(rows)]
    for image in status["images"]:
        present = sum(device.get("present", 0) for device in image["devices"])
        total = sum(device.get("blocks", 0) for device in image["devices"])
        share = f"{present} of {total} blocks" if present < total else f"all {total} blocks"
        shown = [
            ("image", image["name"]),
            ("digest", image["image"][:12]),
            ("mounted at", image["mountpoint"] or f"process {image['owner']}"),
            ("used by", _users(image)),
            ("plane", image["plane"]),
            ("local", share),
            ("recording", "yes" if image.get("recording") else image["unrecorded"] or "over"),
        ]
        parts.append(table(shown) + ("\n" + judged(image) if image.get("start") else ""))
    return "\n\n".join(parts)


def _users(image: Mapping[str, Any]) -> str:
    """Of a dependency snapshot or what leases hold: whose mount it is, or that it stays without anybody."""
    processes = ", ".join(str(process) for process, _ in image["users"])
    told = [f"process {processes}"] if processes else []
    for one in image.get("holders", ()):  # an older daemon tells none
        if one["kind"] == "lease":
            label = f" ({one['label']})" if one["label"] else ""
            told.append(f"lease {one['name']} of {one['client']}{label}")
    return " and ".join([*told, *(["whoever comes, until it is unmounted"] if image["kept"] else [])])
