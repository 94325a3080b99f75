"""What is asked for, from what is named to the files that are copied."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from stripefs.api import Entry
from stripefs.api.place import Place
from stripefs.copy.copier import Copied, Copier, Failure
from stripefs.copy.journal import Journal
from stripefs.copy.plan import Thing, assign
from stripefs.copy.tree import File, Folder, expand
from stripefs.errors import ConfigError

__all__ = ["Named", "Order", "carry_out"]


class Named(NamedTuple):
    """A place, the last name that somebody wrote for it (b"" for none), and whether a slash was behind it."""

    place: Place
    name: bytes
    slash: bool = False


class Order(NamedTuple):
    """recursive: copy directories too. exact: the target is the copy itself, not a directory to put it into."""

    sources: Sequence[Named]
    target: Named
    recursive: bool = False
    exact: bool = False


def carry_out(order: Order, copier: Copier, environ: Mapping[str, str], show: Callable[[Copied], None]) -> None:
    """Copy; what became of it is in `copier.found`. environ says where the cache folder is.

    Raises ConfigError for what cannot be meant, OSError where nobody can tell what is at the target or make it.
    """
    target, slash = order.target.place, order.target.slash
    found = list(_found(order, copier))
    there = target.stat()
    journal = None
    if len(order.sources) > 1 or any(entry.type == "directory" for _, entry in found):
        journal = Journal([each.place for each in order.sources], target, environ, exact=order.exact)
    # What a command that was broken off has made does not change what the command means.
    kind = "" if there is None or (journal is not None and journal.whole) else there.type
    names = assign(
        [Thing(str(each.place), each.name, entry.type, each.place.key) for each, entry in found],
        Thing(str(target), order.target.name, kind, target.key),
        recursive=order.recursive,
        exact=order.exact,
        slash=slash,
        several=len(order.sources) > 1,
    )
    items: list[Folder | File] = []
    for (each, entry), name in zip(found, names, strict=True):
        if isinstance(name, ConfigError):
            copier.found.failed.append(Failure(each.place, None, name))
        else:
            items += _expanded(each.place, entry, target.below(name), copier)
    if slash and there is None and items:
        target.files.mkdir(target.path, parents=True, exist_ok=True)
    if journal is not None and not journal.begun:
        journal.whole = not kind and names == [b""]
    copier.run(items, journal if items else None, show)


def _found(order: Order, copier: Copier) -> Sequence[tuple[Named, Entry]]:
    """What is at the sources; those where nothing is have failed."""
    found = []
    for each in order.sources:
        try:
            entry = each.place.stat()
            if entry is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            found.append((each, entry))
        except OSError as error:
            copier.found.failed.append(Failure(each.place, None, error))
    return found


def _expanded(source: Place, entry: Entry, target: Place, copier: Copier) -> Sequence[Folder | File]:
    def failed(place: Place, error: OSError) -> None:
        copier.found.failed.append(Failure(place, None, error))

    return list(expand(source, entry, target, failed))
