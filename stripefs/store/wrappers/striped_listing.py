"""Listings of directories with striped files: all manifests of a page are looked at, and the next page is on its way.

A listing of the inner store comes in pages. What may be a manifest and is not known is looked at in groups, since a
call for several files costs less than as many calls, and as many groups at once as there are workers. While that goes
on, a worker asks for the next page and begins to look at what it holds, so that neither waits for the other nor for
whoever takes the entries. One page is ahead, never more. Of a page without unknown manifests nothing is to wait for:
there the next one is asked for when it is wanted.

Nothing outlives a listing that is given up but calls that are under way and end by themselves.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future

from stripefs.errors import StoreError
from stripefs.executor import Lane
from stripefs.format.manifest import MANIFEST_MAX
from stripefs.format.reserved_names import is_hidden
from stripefs.store.base import Status, Store
from stripefs.store.wrappers.striped_seen import Seen, SeenManifests, below, listed_as, seen_in
from stripefs.units import shown

__all__ = ["StripedListing"]

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
        seen: SeenManifests,
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
        for path, status, answer in zip(paths, group, self._store.glance_each(paths, MANIFEST_MAX), strict=True):
            if isinstance(answer, StoreError):
                log.info("listing %s: %s", shown(path), answer)
                found.append(listed_as(status, Seen(damage=answer.message)))
            else:
                found.append(self._seen.keep(self._folder, status, seen_in(bytes(answer))))
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
