"""Listings of directories with striped files: the manifests of a page are read ahead, and their headers are cached.

A listing of the inner store comes in pages. Files that may be manifests and whose headers are not cached are read in
groups, since a call for several files costs less than as many calls, and as many groups at once as there are workers.
Meanwhile a worker asks for the next page and begins to read its manifests, so neither waits for the other nor for the
caller. One page is ahead, never more. A page without unknown manifests has nothing to wait for: the next one is asked
for when it is wanted.

Nothing outlives a listing that is given up but calls that are under way and end by themselves.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from operator import attrgetter

from stripefs.errors import StoreError
from stripefs.executor import Lane
from stripefs.format.manifest import MANIFEST_MAX, STRIPED_ID, Manifest, ManifestError, ManifestHeader
from stripefs.format.reserved_names import is_hidden
from stripefs.store.base import Status, Store
from stripefs.units import shown

__all__ = [
    "UNKNOWN",
    "HeaderCache",
    "ListedHeader",
    "StripedListing",
    "as_striped",
    "below",
    "header_in",
    "header_of",
    "is_version_of",
    "listed_as",
    "too_long",
]

KEPT = 65_536
"""Headings kept: about 45 MB for as many striped files, so that the second `ls` of a large directory opens nothing, and
takes little longer than one of other files."""

SETTLED = 10_000_000_000
"""Nanoseconds after its last change from which a manifest without an id is kept. Manifests are mostly of one length, so
there only the time tells versions apart, and some stores count it in seconds."""

UNKNOWN = "?"
"""Stands for the version in the id of a striped file whose manifest is damaged."""

_common = attrgetter("name", "atime_ns", "mode", "owner", "group", "replication", "links")
"""The attributes of a manifest that a listing shows unchanged, and that make no other version of it."""


@dataclass(frozen=True, slots=True)
class ListedHeader:
    """The facts of a header for a listing; `damage` is the line about a marked file that is no whole manifest."""

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
    seen: ListedHeader
    listed: Status


class HeaderCache:
    """The headings of manifests, by their identity; for many threads.

    One version is kept of a file, by its id; without ids two files may look alike, so there the path tells them apart.
    """

    def __init__(self) -> None:
        self._kept: dict[str | bytes, _Kept] = {}
        self._lock = threading.Lock()

    def get(self, folder: bytes, status: Status) -> ListedHeader | None:
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

    def keep(self, folder: bytes, status: Status, seen: ListedHeader) -> Status:
        """Keep a heading, where the identity of its manifest can be relied on; the status that a listing shows."""
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


def too_long(status: Status) -> ListedHeader | None:
    """The damage of a marked file that has more bytes than any manifest; None for others."""
    if status.length <= MANIFEST_MAX:
        return None
    return ListedHeader(damage=f"the manifest is damaged: it has {status.length} bytes, more than any manifest")


def header_in(data: bytes) -> ListedHeader:
    """The heading of a marked file whose bytes these are."""
    try:
        return header_of(ManifestHeader.from_bytes(data))
    except ManifestError as error:
        return ListedHeader(damage=error.message, hint=error.hint)


def header_of(found: ManifestHeader | Manifest) -> ListedHeader:
    return ListedHeader(found.length, found.unit, f"{found.version}.{found.generation}")


def as_striped(status: Status, seen: ListedHeader) -> Status:
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
        encrypted=status.encrypted,
    )


def is_version_of(status: Status, manifest: Manifest | None) -> bool:
    """True if a file that the view shows is that of `manifest`, with None one that is not striped."""
    version = STRIPED_ID.search(status.file_id)
    if manifest is None or version is None:
        return manifest is None and version is None
    return version[0] == f":{header_of(manifest).version}"


def listed_as(status: Status, seen: ListedHeader) -> Status:
    """The same for a listing, which also shows what cannot be used."""
    if seen.damage:
        return replace(status, file_id=f"{status.file_id}:{UNKNOWN}")
    return as_striped(status, seen)


def below(folder: bytes, name: bytes) -> bytes:
    """The path of an entry."""
    return folder.rstrip(b"/") + b"/" + name


log = logging.getLogger(__name__)

GROUP = 8
"""Manifests of one call at most: with 8 the calls themselves cost little, and a host that hangs delays few others."""


class StripedListing:
    """The entries of `folder` behind the name `after` as the view shows them; iterate once, by one thread at a time.

    workers look into manifests, pages asks for the next page.
    """

    def __init__(
        self,
        store: Store,
        folder: bytes,
        after: bytes,
        seen: HeaderCache,
        workers: Executor | Lane,
        pages: Executor | Lane,
        at_once: int,
    ) -> None:
        self._store = store
        self._folder = folder
        self._batches = store.scandir(folder, after)
        self._seen = seen
        self._workers = workers
        self._pages = pages
        self._at_once = at_once

    def __iter__(self) -> Iterator[Sequence[Status]]:
        page = self._next()
        ahead: Future[_Page | None] | None = None
        try:
            while page is not None:
                ahead = self._pages.submit(self._next) if page.groups else None
                yield page.entries()
                page = self._next() if ahead is None else ahead.result()
        finally:
            if page is not None:
                page.drop()
            if ahead is not None and not ahead.cancel():
                ahead.add_done_callback(_drop)

    def _next(self) -> _Page | None:
        """The next page, whose manifests are being looked at; None at the end."""
        batch = next(self._batches, None)
        if batch is None:
            return None
        page = _Page([status for status in batch if not is_hidden(status.name)])
        unknown = []
        for index, status in enumerate(page.statuses):
            if status.marked:
                listed = self._seen.listed(self._folder, status)
                if listed is None:
                    unknown.append(index)
                else:
                    page.statuses[index] = listed
        size = max(1, min(GROUP, len(unknown) // self._at_once))
        for begin in range(0, len(unknown), size):
            group = unknown[begin : begin + size]
            page.groups.append((group, self._workers.submit(self._look, [page.statuses[index] for index in group])))
        return page

    def _look(self, group: Sequence[Status]) -> list[Status]:
        paths = [below(self._folder, status.name) for status in group]
        found = []
        for path, status, answer in zip(paths, group, self._store.read_small_files(paths, MANIFEST_MAX), strict=True):
            if isinstance(answer, StoreError):
                log.info("listing %s: %s", shown(path), answer)
                found.append(listed_as(status, ListedHeader(damage=answer.message)))
            else:
                found.append(self._seen.keep(self._folder, status, header_in(bytes(answer))))
        return found


class _Page:
    """`groups`: which of `statuses` a call looks at, and its answers to come."""

    def __init__(self, statuses: list[Status]) -> None:
        self.statuses = statuses
        self.groups: list[tuple[Sequence[int], Future[list[Status]]]] = []

    def entries(self) -> Sequence[Status]:
        """All as they are shown. Waits."""
        for indexes, answers in self.groups:
            for index, listed in zip(indexes, answers.result(), strict=True):
                self.statuses[index] = listed
        return self.statuses

    def drop(self) -> None:
        for _, answers in self.groups:
            answers.cancel()


def _drop(ahead: Future[_Page | None]) -> None:
    """Called with a page that nobody waits for any more."""
    if not ahead.cancelled() and ahead.exception() is None and (page := ahead.result()) is not None:
        page.drop()
