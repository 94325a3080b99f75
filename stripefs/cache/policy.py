"""Policies of the cache: which segments are removed for new ones, and when the cache is not read. Pure.

**Eviction.** When the quota is used up, segments go one by one, those used longest ago first, except

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

**Bypass.** The cache is not read while its disk is slower than the store. Rates are bytes by the time in which anything
was under way, however many reads that were: a loader needs the rate of all its reads together. Times are in seconds of
any clock that does not jump, rates in bytes a second.
"""

from __future__ import annotations

import fnmatch
import heapq
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

__all__ = [
    "BYPASS",
    "BusyRate",
    "BypassPolicy",
    "Retention",
    "SegmentUse",
    "checkpoint_of",
    "matches",
    "matches_below",
    "victims",
]

LEAST_BUSY = 0.5
"""Seconds of reading after which a rate means something: 5 ms a seek no longer count then, nor does what others write
for a moment."""

LEAST_BYTES = 8 << 20
"""And bytes: a few small reads say how long a seek takes, not how fast the disk is."""

LONG_BUSY = 2.0
"""Seconds after which it means something however few bytes came: longer than good disks falter."""

FORGETS = 8.0
"""Seconds of being busy after which what was before counts half: in less, a disk at nine tenths of the store's rate
would not cost what is `LOST`."""

SLOWER = 0.9
"""Share of the store's rate: a disk that is nearly as fast spares the store and the network."""

LOST = 0.8
"""Seconds that a disk may cost, against the store, before it is left alone: a tenth of the 8 s in which 2 GiB come from
eight hosts of 40 MB/s. To leave a good disk alone costs far more: where a program keeps the processors from those who
read, one of 800 MB/s came below the store's 250 for a while."""

LOST_FRESH = 4.0
"""The same while what is read is being written, half of what can be lost: where four processes read 2 GiB as one after
the other fetches it, each gets 170 MB/s of such a disk, and one alone 240 from the store. Were it left alone, each of
them would fetch all of it."""

FRESH = 5.0
"""Seconds after which nobody writes any more."""

BYPASS = 60.0
"""Seconds for which a disk that was too slow is left alone; then it may show that it has become faster."""

_SORTED = 4096
"""Segments that are sorted in one go: some milliseconds."""


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

    def rank(piece: SegmentUse) -> tuple[int, float]:
        found = kept.get(piece.key)
        return stays.get(found.checkpoint, -1) if found else -1, min(piece.used, now)

    # Sorted in parts: no other thread runs while `sorted` compares, 100 ms for 100,000 segments.
    parts = (sorted(pieces[first : first + _SORTED], key=rank) for first in range(0, len(pieces), _SORTED))
    for piece in heapq.merge(*parts, key=rank):
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


class BusyRate:
    """A rate over the time in which something was under way."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.bytes = 0
        self._under_way = 0
        self._since = 0.0

    def began(self, now: float) -> None:
        if not self._under_way:
            self._since = now
        self._under_way += 1

    def ended(self, now: float, count: int) -> None:
        """One read is over that brought `count` bytes."""
        self._under_way -= 1
        self.seconds += now - self._since
        self._since = now
        self.bytes += count
        if self.seconds > FORGETS:
            self.seconds /= 2
            self.bytes //= 2

    def look(self, now: float) -> None:
        """Count what is under way up to now: a disk that hangs ends no read."""
        if self._under_way:
            self.seconds += now - self._since
            self._since = now

    def forget(self) -> None:
        self.seconds, self.bytes = 0.0, 0

    @property
    def rate(self) -> float | None:
        """None as long as too little was read to tell."""
        if self.seconds < LEAST_BUSY or (self.bytes < LEAST_BYTES and self.seconds < LONG_BUSY):
            return None
        return self.bytes / self.seconds


class BypassPolicy:
    """Compares the disk with the store."""

    def __init__(self) -> None:
        self.disk = BusyRate()
        self.store = BusyRate()
        self._until = 0.0
        self._fresh_until = -FRESH

    def note_fresh(self, now: float) -> None:
        """The blocks that are read were written just now."""
        self._fresh_until = now + FRESH

    def bypass(self, now: float, remembered: float = 0.0) -> bool:
        """True if the disk is to be avoided. remembered: the rate at which the file came from the store when it did."""
        if now < self._until:
            return True
        self.disk.look(now)
        disk, store = self.disk.rate, self.store.rate or remembered
        if disk is None or disk >= SLOWER * store:
            return False
        if self.disk.seconds - self.disk.bytes / store < (LOST_FRESH if now < self._fresh_until else LOST):
            return False
        self.disk.forget()
        self._until = now + BYPASS
        return True
