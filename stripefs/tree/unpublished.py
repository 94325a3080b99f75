"""Listings of a store in which files that are created and not published yet appear among the others."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from stripefs.store.base import Status, Store
from stripefs.tree.pens import Pens

__all__ = ["Unpublished"]


class Unpublished:
    """What `Listing` walks through. A name that the store has is the store's: it has a version that can be read."""

    def __init__(self, store: Store, pens: Pens) -> None:
        self._store = store
        self._pens = pens

    def scandir(self, path: bytes, after: bytes) -> Iterator[Sequence[Status]]:
        """As `Store.scandir`; runs in a thread, and looks at the pens once."""
        new = sorted(
            (
                dataclasses.replace(pen.status, name=pen.path.rpartition(b"/")[2], file_id=pen.mark)
                for pen in list(self._pens.by_node.values())
                if pen.path is not None and pen.path.rpartition(b"/")[0] == path.rstrip(b"/")
            ),
            key=_name,
        )
        new = [status for status in new if status.name > after]
        for batch in self._store.scandir(path, after):
            if batch and new and new[0].name <= batch[-1].name:
                there = {status.name for status in batch}
                last = batch[-1].name
                batch = sorted([*batch, *(one for one in new if one.name < last and one.name not in there)], key=_name)
                new = [status for status in new if status.name > last]
            yield batch
        if new:
            yield new


def _name(status: Status) -> bytes:
    return status.name
