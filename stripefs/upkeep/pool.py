"""The pool of striped parts as its keepers see it: `/.stripefs/VERSION/…`, listed and removed version by version."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from stripefs.errors import NotADirectory, NotEmpty, NotFound, Unsupported
from stripefs.format.reserved_names import POOL, is_version, version_folder
from stripefs.store.base import Kind, Store

__all__ = ["Stored", "look", "put_stone", "remove_version", "versions"]


@dataclass(frozen=True, slots=True)
class Stored:
    """What lies in the folder of a version: so many files of so many bytes; the newest time among them and the folder.

    0 stands for a time that the store does not know; `odd` for a folder that holds what no writer put there.
    """

    version: str
    files: int = 0
    length: int = 0
    changed_ns: int = 0
    odd: bool = False


def versions(store: Store, after: str = "") -> Iterator[tuple[str, int]]:
    """The versions that have a folder in the pool, those greater than `after`, in order, with the folders' times."""
    with contextlib.suppress(NotFound, NotADirectory):
        for batch in store.scandir(POOL, after.encode()):
            for status in batch:
                name = status.name.decode("ascii", "replace")
                if status.kind is Kind.DIRECTORY and is_version(name):
                    yield name, status.mtime_ns


def look(store: Store, version: str) -> Stored:
    """What is in the folder of `version` now. Raises NotFound."""
    folder = version_folder(version)
    changed_ns, files, length, odd = store.stat(folder).mtime_ns, 0, 0, False
    for batch in store.scandir(folder):
        for status in batch:
            files += 1
            length += status.length
            changed_ns = max(changed_ns, status.mtime_ns)
            odd = odd or status.kind is not Kind.FILE
    return Stored(version, files, length, changed_ns, odd)


def put_stone(store: Store, version: str) -> None:
    """Make what is in the folder of `version` young. One that is gone stays gone."""
    folder = version_folder(version)
    with contextlib.suppress(NotFound):
        store.stat(folder)
        store.put(folder + b"/stone", (), replace=True)


def remove_version(store: Store, version: str) -> None:
    """Remove the folder of `version` with all files in it; what is gone already is no error.

    A file that appears meanwhile keeps the folder. Raises StoreError where something cannot be removed.
    """
    folder = version_folder(version)
    with contextlib.suppress(NotFound):
        for batch in store.scandir(folder):
            for status in batch:
                with contextlib.suppress(NotFound):
                    store.remove(folder + b"/" + status.name)
    # A store without folders has none left that could be removed.
    with contextlib.suppress(NotFound, NotEmpty, Unsupported):
        store.rmdir(folder)
