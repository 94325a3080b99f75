"""Striped files made in memory: what the pool holds, and the manifest for it."""

from __future__ import annotations

from collections.abc import Sequence

from stripefs.format.manifest import Manifest, Part, PartTable, Segment, digest_of

POOL = b"/data/.stripefs"
VERSION = "0123456789abcdef"


def stripe(
    data: bytes, widths: Sequence[tuple[int, int]], unit: int, version: str = VERSION, pool: bytes = POOL
) -> tuple[Manifest, dict[bytes, bytes]]:
    """`data` in segments of (bytes, width) each: the manifest, and the parts' bytes by their path in the store."""
    objects: dict[bytes, bytes] = {}
    segments = []
    at = 0
    for length, width in widths:
        units = [data[start : min(start + unit, at + length)] for start in range(at, at + length, unit)]
        parts = []
        for index in range(width):
            table = PartTable(unit)
            mine = b"".join(units[index::width])
            table.add(mine)
            behind = table.finish()
            part = Part(version, len(objects), len(mine) + len(behind), digest_of(behind))
            objects[part.path()] = mine + behind
            parts.append(part)
        segments.append(Segment(length, tuple(parts)))
        at += length
    assert at == len(data)
    return Manifest(version, 0, unit, pool, tuple(segments)), objects
