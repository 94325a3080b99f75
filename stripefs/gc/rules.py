"""Rules of gc: which of the hidden things that writers make may be removed. Pure, from a listing.

A writer that lives has a lock whose time is at most `LEASE` seconds old, and the lock names the versions it works on. A
version that a manifest names is part of a file. A thing that is neither, and has not changed for a day by the store's
own clock, was left by a crash. The day is there for what a scan cannot see: writers of a store without locks, a
manifest that somebody is just moving.

An fsync record whose file was never published serves `stripefs recover`. It keeps the parts that it names for a week.
"""

from __future__ import annotations

import enum
from collections.abc import Set
from dataclasses import dataclass, field

from stripefs.format.lock_and_record import LEASE

__all__ = ["AGE", "FORCED_AGE", "RECOVERABLE", "Circumstances", "GcVerdict", "HiddenKind", "Item", "judge"]

AGE = 86_400.0
"""Seconds without a change after which unneeded files may go."""

FORCED_AGE = 2 * LEASE
"""The same with `--force`: a writer makes its lock first, so what it makes is seen with a live lock or is young."""

RECOVERABLE = 7 * AGE
"""Seconds for which a record that was not published keeps what it names."""


class HiddenKind(enum.Enum):
    """Kinds of hidden things. VERSION: a folder of the pool with the parts of one version of a striped file."""

    LOCK = "lock"
    PART = "part"
    RECORD = "record"
    MANIFEST = "manifest"
    SCRATCH = "scratch"
    VERSION = "version"


class GcVerdict(enum.Enum):
    """RUBBISH may go. Everything else stays: needed by a file, protected by a live lock, not old enough, of use to
    `stripefs recover`, or possibly named by a manifest that could not be read."""

    RUBBISH = "rubbish"
    REFERENCED = "referenced"
    LEASED = "leased"
    YOUNG = "young"
    RECOVERABLE = "recoverable"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Item:
    """A hidden thing. `path` from the store's root; `name` is the file that it belongs to, as a path, b"" in the pool.

    version: its 16 hex digits, "" for a lock. length in bytes, of all that is in it. changed_ns: the newest time in it,
    by the store's clock, 0 where the store has none. published: of a record, that nothing of it is left to recover.
    """

    path: bytes
    kind: HiddenKind
    name: bytes = b""
    version: str = ""
    length: int = 0
    changed_ns: int = 0
    published: bool = False


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Result of a whole scan. now_ns: the store's clock.

    leased: versions that live locks name; locked: the files (paths) of those locks. referenced: versions that manifests
    name. recorded: versions that records of files never published name. complete: every directory was listed and every
    manifest read.

    ended: of one directory in which no lock lives, the versions that locks name which have run out; None for a scan
    of a whole tree. A writer has a living lock in every directory where something hidden of it lies, so these are
    without one, however young they are. A thing that no lock names may be a lock that is about to replace another: that
    takes `FORCED_AGE`.
    """

    now_ns: int
    leased: Set[str] = frozenset()
    locked: Set[bytes] = frozenset()
    referenced: Set[str] = frozenset()
    recorded: Set[str] = field(default_factory=frozenset)
    complete: bool = True
    force: bool = False
    ended: Set[str] | None = None


def judge(item: Item, facts: Circumstances) -> GcVerdict:
    """Verdict on `item`: RUBBISH if it may be removed, else the reason why it stays."""
    if item.version in facts.leased or item.name in facts.locked or _is_live(item, facts.now_ns):
        return GcVerdict.LEASED
    if item.kind is HiddenKind.VERSION:
        if item.version in facts.referenced:
            return GcVerdict.REFERENCED
        if not facts.complete:
            return GcVerdict.UNKNOWN
    if not _has_ended(item, facts) and not older(item.changed_ns, _age(facts), facts.now_ns):
        return GcVerdict.YOUNG
    if item.kind is HiddenKind.RECORD:
        kept = not item.published and not facts.force and not older(item.changed_ns, RECOVERABLE, facts.now_ns)
        return GcVerdict.RECOVERABLE if kept else GcVerdict.RUBBISH
    return GcVerdict.RECOVERABLE if item.version in facts.recorded else GcVerdict.RUBBISH


def older(changed_ns: int, seconds: float, now_ns: int) -> bool:
    """True if what changed then has not changed for so long. A time that is not known, or to come, is not old."""
    return 0 < changed_ns <= now_ns - int(seconds * 1e9)


def _age(facts: Circumstances) -> float:
    return AGE if facts.ended is None and not facts.force else FORCED_AGE


def _has_ended(item: Item, facts: Circumstances) -> bool:
    return facts.ended is not None and (item.kind is HiddenKind.LOCK or item.version in facts.ended)


def _is_live(item: Item, now_ns: int) -> bool:
    return item.kind is HiddenKind.LOCK and not older(item.changed_ns, LEASE, now_ns)
