"""What is to be made for a thing that is named: a file, or a directory with all that is below it.

All of it is known before anything is written, so that a tree never grows while it is copied. Links of local sources are
followed, since stores have none: what a link of a model's folder points to is what is wanted.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

from stripefs.api import Entry
from stripefs.api.place import Place

__all__ = ["File", "Folder", "expand"]

Trouble = Callable[[Place, OSError], None]


class Folder(NamedTuple):
    """A directory to be there, like `entry` where it is new."""

    source: Place
    entry: Entry
    target: Place


class File(NamedTuple):
    """A file to be copied, which was last seen as `entry`."""

    source: Place
    entry: Entry
    target: Place


def expand(source: Place, entry: Entry, target: Place, trouble: Trouble) -> Iterator[Folder | File]:
    """What `source`, seen as `entry`, is made of, each directory before what is in it.

    `trouble` is told what cannot be listed, or is nothing to copy.
    """
    yield from _expand(source, entry, target, trouble, (os.fsencode(source.files.url_of(source.path)),))


def _expand(
    source: Place, entry: Entry, target: Place, trouble: Trouble, above: tuple[bytes, ...]
) -> Iterator[Folder | File]:
    if entry.type == "file":
        yield File(source, entry, target)
        return
    if entry.type != "directory":
        trouble(source, OSError(errno.EINVAL, "it is no regular file"))
        return
    try:
        entries = source.files.scandir(source.path)
    except OSError as error:
        trouble(source, error)
        return
    yield Folder(source, entry, target)
    for each in entries:
        name = os.fsencode(each.name)
        below, found = source.below(name), each
        if each.type == "symlink":
            try:
                below, found = _followed(below, above)
            except OSError as error:
                trouble(below, error)
                continue
        path = os.fsencode(below.files.url_of(below.path)) if found.type == "directory" else b""
        yield from _expand(below, found, target.below(name), trouble, (*above, path))


def _followed(link: Place, above: tuple[bytes, ...]) -> tuple[Place, Entry]:
    """What a link leads to. above: the directories on the way to it, without links."""
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
