"""Places that are copied from and to, and the expansion of a source: a file, or a directory with all that is below it.

All of it is known before anything is written, so that a tree never grows while it is copied. Links of local sources are
followed, since stores have none: users want the files that the links of a model's folder point to.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from stripefs.api import Entry, FileSystem
from stripefs.api.sources import in_service
from stripefs.settings import redact
from stripefs.units import shown
from stripefs.write.upload_names import join_path

__all__ = ["CopyItem", "Place", "expand"]


@dataclass(frozen=True, slots=True)
class Place:
    """`path` in `files`. local: a plain path of this host, where files are written as any program writes them."""

    files: FileSystem
    path: bytes
    local: bool = False

    def __str__(self) -> str:
        """For messages: a path, or a URL without parameters and secrets."""
        url = self.files.url_of(self.path)
        return shown(os.fsencode(url)) if url.startswith("/") else redact(url).partition("?")[0]

    @property
    def key(self) -> tuple[str, bytes]:
        """The service and the path in it: two places of one key are one place."""
        return in_service(self.files.url_of(self.path), of_file=True)

    def below(self, name: bytes) -> Place:
        """The place `name` (with slashes, a path) below this one; itself for b""."""
        return Place(self.files, join_path(self.path, name), self.local) if name else self

    def stat(self) -> Entry | None:
        """The entry at the path, links not followed; None for nothing. Raises OSError."""
        try:
            return self.files.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return None


Trouble = Callable[[Place, OSError], None]


class CopyItem(NamedTuple):
    """A directory to be there, like `entry` where it is new, or a file to be copied, which was last seen as that."""

    source: Place
    entry: Entry
    target: Place


def expand(source: Place, entry: Entry, target: Place, trouble: Trouble) -> Iterator[CopyItem]:
    """The entries of `source`, seen as `entry`, each directory before its entries.

    `trouble` is called with each entry that cannot be listed, or copied.
    """
    ahead: list[tuple[CopyItem, tuple[bytes, ...]]] = [(CopyItem(source, entry, target), (_path(source),))]
    while ahead:
        (source, entry, target), above = ahead.pop()
        if entry.type == "file":
            yield CopyItem(source, entry, target)
            continue
        if entry.type != "directory":
            trouble(source, OSError(errno.EINVAL, "it is no regular file"))
            continue
        try:
            entries = source.files.scandir(source.path)
        except OSError as error:
            trouble(source, error)
            continue
        yield CopyItem(source, entry, target)
        inside = [_inside(source, each, target, trouble, above) for each in entries]
        ahead += [each for each in reversed(inside) if each is not None]


def _inside(
    folder: Place, entry: Entry, target: Place, trouble: Trouble, above: tuple[bytes, ...]
) -> tuple[CopyItem, tuple[bytes, ...]] | None:
    """The entry of a directory under a name, links followed, and the directories on the way there; None on errors."""
    name = os.fsencode(entry.name)
    if name in (b"", b".", b"..") or b"/" in name:  # which a store may say, and which would lead out of the target
        trouble(folder, OSError(errno.EINVAL, f"it lists {entry.name!r}, which is no name"))
        return None
    place, found = folder.below(name), entry
    if entry.type == "symlink":
        try:
            place, found = _followed(place, above)
        except OSError as error:
            trouble(place, error)
            return None
    path = _path(place) if found.type == "directory" else b""
    return CopyItem(place, found, target.below(name)), (*above, path)


def _path(place: Place) -> bytes:
    return os.fsencode(place.files.url_of(place.path))


def _followed(link: Place, above: tuple[bytes, ...]) -> tuple[Place, Entry]:
    """The target of a link. above: the directories on the way to it, without links."""
    if not link.local:
        raise OSError(errno.ELOOP, "it is a symbolic link, which are followed below plain local paths only")
    path = os.path.realpath(link.path)
    if path in above:
        raise OSError(errno.ELOOP, "it is a link to a directory that it lies in")
    place = Place(link.files, path, local=True)
    entry = place.stat()
    if entry is None or entry.type == "symlink":
        raise FileNotFoundError(errno.ENOENT, "it is a link that leads nowhere")
    return place, entry
