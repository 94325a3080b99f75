"""Eviction policy: which segments are removed when the quota is used up. Pure.

Segments go one by one, those used longest ago first, except

- those of pinned versions, which never go;
- those of the version that wants the space: a file larger than the cache would push itself out from its beginning, and
  the next reader, who begins there, would find nothing;
- those of the newest checkpoints where that many are to be kept, which go only for a newer checkpoint of the same kind,
  and then the oldest first.

If all that may go is less than what is needed, nothing goes, and the new blocks are not cached.

**Checkpoints.** A pattern such as `*.safetensors` or `step-*/*.safetensors` is held against as many components of a
path as it has itself, the last ones (all of them when it begins with /). The checkpoint is what its first component
matches: here each file, there each directory step-N with all files in it that match. Those in one directory are of one
kind.
"""

from __future__ import annotations

import fnmatch
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Retention", "SegmentUse", "checkpoint_of", "matches", "matches_below", "victims"]


@dataclass(frozen=True, slots=True)
class SegmentUse:
    """A segment on disk: bytes that it takes, and when it was last used in seconds since 1970."""

    key: bytes
    number: int
    size: int
    used: float


@dataclass(frozen=True, slots=True)
class Retention:
    """The reason for which a version may stay. checkpoint: its place in its source, "" for none, of which the newest
    `keep` stay.

    changed: when the version was made, in nanoseconds since 1970.
    """

    pinned: bool = False
    source: str = ""
    checkpoint: str = ""
    keep: int = 0
    changed: int = 0

    @property
    def kind(self) -> tuple[str, str]:
        return self.source, posixpath.dirname(self.checkpoint)


def matches(path: str, patterns: Iterable[str]) -> bool:
    """True if one of the patterns matches the absolute `path`."""
    return any(_checkpoint(path, pattern) for pattern in patterns)


def checkpoint_of(path: str, patterns: Iterable[str]) -> str:
    """The checkpoint that the file at `path` belongs to, by the first pattern that matches; "" for none."""
    return next(filter(None, (_checkpoint(path, pattern) for pattern in patterns)), "")


def matches_below(path: str, pattern: str) -> bool:
    """True if the pattern matches the absolute `path` or a directory above it."""
    names = path.strip("/").split("/")
    return any(_checkpoint("/" + "/".join(names[:count]), pattern) for count in range(1, len(names) + 1))


def _checkpoint(path: str, pattern: str) -> str:
    names, wanted = path.strip("/").split("/"), pattern.strip("/").split("/")
    before = len(names) - len(wanted)
    if before < 0 or (pattern.startswith("/") and before):
        return ""
    if not all(fnmatch.fnmatchcase(name, part) for name, part in zip(names[before:], wanted, strict=True)):
        return ""
    return "/" + "/".join(names[: before + 1])


def victims(
    pieces: Sequence[SegmentUse], kept: Mapping[bytes, Retention], wanted: int, least: int, key: bytes, now: float
) -> list[SegmentUse]:
    """The segments to remove for the version `key`, for about `wanted` bytes, or none where that is not `least`.

    now: in seconds since 1970; a segment used later than that was so before the clock was set back.
    """
    stays = _newest(kept)
    mine = kept.get(key, Retention())
    chosen: list[SegmentUse] = []
    freed = 0
    for piece in sorted(pieces, key=lambda piece: _rank(piece, kept, stays, now)):
        if freed >= wanted:
            break
        found = kept.get(piece.key, Retention())
        if found.pinned or piece.key == key:
            continue
        if found.checkpoint in stays:
            newer = mine.checkpoint in stays and mine.kind == found.kind
            if freed >= least or not newer or stays[found.checkpoint] >= stays[mine.checkpoint]:
                continue
        chosen.append(piece)
        freed += piece.size
    return chosen if freed >= least else []


def _rank(
    piece: SegmentUse, kept: Mapping[bytes, Retention], stays: Mapping[str, int], now: float
) -> tuple[int, float]:
    found = kept.get(piece.key)
    return stays.get(found.checkpoint, -1) if found else -1, min(piece.used, now)


def _newest(kept: Mapping[bytes, Retention]) -> dict[str, int]:
    """The checkpoints that are to stay, with the time of each: that of its newest file."""
    times: dict[tuple[str, str], dict[str, int]] = {}
    counts: dict[tuple[str, str], int] = {}
    for version in kept.values():
        if version.checkpoint and version.keep:
            kind = times.setdefault(version.kind, {})
            kind[version.checkpoint] = max(kind.get(version.checkpoint, 0), version.changed)
            counts[version.kind] = max(counts.get(version.kind, 0), version.keep)
    return {
        name: when
        for kind, found in times.items()
        for name, when in sorted(found.items(), key=lambda entry: entry[1], reverse=True)[: counts[kind]]
    }
