"""What the manifests of striped files say to a listing, and what is kept of that."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace

from stripefs.layout.striped import Heading, Manifest, ManifestError, may_be_manifest
from stripefs.store.base import Kind, Status

__all__ = ["Seen", "SeenManifests", "as_seen", "below", "candidate", "listed_as", "seen_in", "seen_of"]

KEPT = 65_536
"""Headings kept: about 20 MB for as many striped files, so that the second `ls` of a large directory opens nothing."""

SETTLED = 10_000_000_000
"""Nanoseconds after its last change from which a manifest without an id is kept. Manifests are mostly of one length, so
there only the time tells versions apart, and some stores count it in seconds."""

UNKNOWN = "?"

_Key = tuple[int, int, str, bytes]


@dataclass(frozen=True, slots=True)
class Seen:
    """What a heading says for a listing, `damage` the line about one that is no use. No manifest has neither."""

    length: int = -1
    unit: int = 0
    version: str = ""
    damage: str = ""
    hint: str = ""


class SeenManifests:
    """What candidates said, by their identity; for many threads."""

    def __init__(self) -> None:
        self._seen: dict[_Key, Seen] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._seen)

    def get(self, folder: bytes, status: Status) -> Seen | None:
        """What the candidate of `status` in the directory `folder` said, None where that is not kept."""
        return self._seen.get(_key(folder, status))  # one look-up needs no lock

    def keep(self, folder: bytes, status: Status, seen: Seen) -> None:
        if not status.file_id and not 0 < status.mtime_ns < time.time_ns() - SETTLED:
            return
        with self._lock:
            while len(self._seen) >= KEPT:
                del self._seen[next(iter(self._seen))]
            self._seen[_key(folder, status)] = seen


def candidate(status: Status) -> bool:
    """Whether an entry may be a manifest."""
    return status.kind is Kind.FILE and may_be_manifest(status.length)


def seen_in(data: bytes) -> Seen:
    """What a candidate whose bytes these are says."""
    try:
        return seen_of(Heading.from_bytes(data))
    except ManifestError as error:
        return Seen(damage=error.message, hint=error.hint)


def seen_of(found: Heading | Manifest | None) -> Seen:
    return Seen() if found is None else Seen(found.length, found.unit, f"{found.version}.{found.generation}")


def as_seen(status: Status, seen: Seen) -> Status:
    """The status of the file that a candidate stands for."""
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
    )


def listed_as(status: Status, seen: Seen) -> Status:
    """The same for a listing, which also shows what cannot be used."""
    if seen.damage:
        return replace(status, file_id=f"{status.file_id}:{UNKNOWN}")
    return as_seen(status, seen)


def below(folder: bytes, name: bytes) -> bytes:
    """The path of an entry."""
    return folder.rstrip(b"/") + b"/" + name


def _key(folder: bytes, status: Status) -> _Key:
    """Without ids two files may look alike, so there the path tells them apart."""
    path = b"" if status.file_id else below(folder, status.name)
    return status.length, status.mtime_ns, status.file_id, path
