"""What the manifests of striped files say to a listing, and what is kept of that."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from operator import attrgetter

from stripefs.format.manifest import MANIFEST_MAX, STRIPED_ID, Manifest, ManifestError, ManifestHeader
from stripefs.store.base import Status

__all__ = [
    "Seen",
    "SeenManifests",
    "as_seen",
    "below",
    "is_seen",
    "listed_as",
    "seen_in",
    "seen_of",
    "too_long",
]

KEPT = 65_536
"""Headings kept: about 45 MB for as many striped files, so that the second `ls` of a large directory opens nothing, and
takes little longer than one of other files."""

SETTLED = 10_000_000_000
"""Nanoseconds after its last change from which a manifest without an id is kept. Manifests are mostly of one length, so
there only the time tells versions apart, and some stores count it in seconds."""

UNKNOWN = "?"

_common = attrgetter("name", "atime_ns", "mode", "owner", "group", "replication", "links")
"""What a listing shows of a manifest as it is, and what makes no other version of it."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a heading says for a listing; `damage` is the line about a marked file that is no whole manifest."""

    length: int = -1
    unit: int = 0
    version: str = ""
    damage: str = ""
    hint: str = ""


@dataclass(slots=True)
class _Kept:
    """The heading of the manifest of this length and time, and `listed`, how a listing last showed it."""

    length: int
    mtime_ns: int
    seen: Seen
    listed: Status


class SeenManifests:
    """The headings of manifests, by their identity; for many threads.

    One version is kept of a file, by its id; without ids two files may look alike, so there the path tells them apart.
    """

    def __init__(self) -> None:
        self._kept: dict[str | bytes, _Kept] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, folder: bytes, status: Status) -> Seen | None:
        """The heading of the manifest of `status` in the directory `folder`, None where that is not kept."""
        kept = self._of(folder, status)
        return None if kept is None else kept.seen

    def listed(self, folder: bytes, status: Status) -> Status | None:
        """`listed_as` the heading of this manifest; None where that is not kept.

        A status of what has not changed is not made again: that would be half of what a second listing costs more than
        one of other files.
        """
        kept = self._of(folder, status)
        if kept is None:
            return None
        listed = kept.listed
        if _common(listed) != _common(status):
            listed = kept.listed = listed_as(status, kept.seen)
        return listed

    def keep(self, folder: bytes, status: Status, seen: Seen) -> Status:
        """Keep a heading, where the identity of its manifest can be relied on; how a listing shows it."""
        listed = listed_as(status, seen)
        if not status.file_id and not 0 < status.mtime_ns < time.time_ns() - SETTLED:
            return listed
        with self._lock:
            while len(self._kept) >= KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[status.file_id or below(folder, status.name)] = _Kept(
                status.length, status.mtime_ns, seen, listed
            )
        return listed

    def _of(self, folder: bytes, status: Status) -> _Kept | None:
        kept = self._kept.get(status.file_id or below(folder, status.name))  # one look-up needs no lock
        if kept is None or kept.length != status.length or kept.mtime_ns != status.mtime_ns:
            return None
        return kept


def too_long(status: Status) -> Seen | None:
    """The damage of a marked file that has more bytes than any manifest; None for others."""
    if status.length <= MANIFEST_MAX:
        return None
    return Seen(damage=f"the manifest is damaged: it has {status.length} bytes, more than any manifest")


def seen_in(data: bytes) -> Seen:
    """The heading of a marked file whose bytes these are."""
    try:
        return seen_of(ManifestHeader.from_bytes(data))
    except ManifestError as error:
        return Seen(damage=error.message, hint=error.hint)


def seen_of(found: ManifestHeader | Manifest | None) -> Seen:
    return Seen() if found is None else Seen(found.length, found.unit, f"{found.version}.{found.generation}")


def as_seen(status: Status, seen: Seen) -> Status:
    """The status of the striped file that a manifest stands for."""
    if not seen.version:
        return status
    # Spelt out, since `replace` takes four times as long, which shows in the listing of a large directory.
    return Status(
        name=status.name,
        kind=status.kind,
        length=seen.length,
        mtime_ns=status.mtime_ns,
        atime_ns=status.atime_ns,
        mode=status.mode,
        owner=status.owner,
        group=status.group,
        file_id=f"{status.file_id}:{seen.version}",
        block_size=seen.unit,
        replication=status.replication,
        links=status.links,
        marked=True,
    )


def is_seen(status: Status, manifest: Manifest | None) -> bool:
    """Whether a file that the view shows is that of `manifest`, with None one that is not striped."""
    version = STRIPED_ID.search(status.file_id)
    if manifest is None or version is None:
        return manifest is None and version is None
    return version[0] == f":{seen_of(manifest).version}"


def listed_as(status: Status, seen: Seen) -> Status:
    """The same for a listing, which also shows what cannot be used."""
    if seen.damage:
        return replace(status, file_id=f"{status.file_id}:{UNKNOWN}")
    return as_seen(status, seen)


def below(folder: bytes, name: bytes) -> bytes:
    """The path of an entry."""
    return folder.rstrip(b"/") + b"/" + name
