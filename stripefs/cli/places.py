"""What a PATH or URL on the command line means: a mount's source and a path in it, a store, a file somewhere in one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from stripefs import config as configuration
from stripefs.cli.mounting import absolute
from stripefs.errors import ConfigError, NotADirectory, NotFound, PermissionDenied
from stripefs.format.reserved_names import POOL
from stripefs.settings import Settings, redact
from stripefs.store.base import Kind, Store

if TYPE_CHECKING:
    from stripefs.store.striped import StripedStore

__all__ = ["inside_mount", "open_tree", "opened_file", "opened_source", "place", "unfollowed", "view_of"]

_LEVELS = 32
"""Directories above a file in which its pool is looked for."""


def place(path: str, flags: configuration.Given, config: str, *, follow: bool = True) -> tuple[Settings, bytes]:
    """Settings of a store, and the path in it; b"" for a URL or a path outside all mounts, which names it itself.

    Inside a mount its source and the way it reaches it are taken, changed by what flags say. follow: of a path whose
    last name is a link, what it leads to.
    """
    from stripefs.store.url import refuse_half_url

    settings = configuration.resolve(flags, config=config)
    refuse_half_url(path)
    if "://" not in path:
        found = inside_mount(os.path.realpath(path) if follow else unfollowed(path))
        if found is not None:
            mounted, inside = found
            mounted = mounted._replace(mount=settings.mount, write=settings.write)
            chosen = {o.attribute: o.section for o in configuration.OPTIONS if o.name in flags}
            for section in ("store", "read", "cache"):
                ours, theirs = getattr(settings, section), getattr(mounted, section)
                changed = {name: getattr(ours, name) for name, where in chosen.items() if where == section}
                mounted = mounted._replace(**{section: theirs._replace(**changed)})
            return mounted, inside
    return settings._replace(store=settings.store._replace(url=absolute(path))), b""


def unfollowed(path: str) -> str:
    """`path` without links in front of its last name."""
    above, name = os.path.split(path.rstrip("/"))
    if name in ("", ".", ".."):
        return os.path.realpath(path)
    return os.path.join(os.path.realpath(above), name)


def inside_mount(path: str) -> tuple[Settings, bytes] | None:
    """How the mount that shows `path` reaches its source, and the path in there; None when no mount of ours does."""
    from stripefs.fuse.control import find_mounts, query

    for mount in reversed(find_mounts()):  # a mount inside another one comes after it
        inside = os.path.relpath(path, mount.mountpoint)
        if inside != ".." and not inside.startswith("../"):
            told = query(mount.mountpoint, "status")["settings"]
            settings = Settings.from_json(json.dumps(told | {"mount": {"options": []}}))
            return settings, b"/" + (b"" if inside == "." else os.fsencode(inside))
    return None


@contextmanager
def opened_source(settings: Settings, inside: bytes) -> Iterator[Store]:
    """The store of a source as a whole, from what `place` answered. Raises ConfigError for a path inside a mount."""
    if inside not in (b"", b"/"):
        raise ConfigError("this takes a source as a whole", hint="give its URL or the mountpoint")
    from stripefs.store.url import open_store

    with closing(open_store(settings.store)) as store:
        yield store


@contextmanager
def opened_file(settings: Settings, inside: bytes) -> Iterator[tuple[Store, bytes]]:
    """The store that a file belongs to and its path there, from what `place` answered; the file need not exist.

    A URL does not say where a source begins: it is the nearest directory above the file that holds a pool of striped
    parts, else the file's own directory.
    """
    from stripefs.store.url import open_store

    store, path = (open_store(settings.store), inside) if inside else _nearest(settings)
    with closing(store):
        yield store, path


def open_tree(settings: Settings, inside: bytes) -> tuple[Store, bytes]:
    """As `opened_file`, of a file or a directory that is there: also the one that holds the pool itself."""
    from stripefs.cli.probing import open_at, parent_and_name
    from stripefs.store.url import open_store

    if inside:
        return open_store(settings.store), inside
    url = settings.store.url
    store, path = open_at(settings.store)
    store.close()
    return _with_pool(settings, url if path == b"/" else parent_and_name(url)[0], path)


def view_of(store: Store, settings: Settings) -> StripedStore:
    """The view of the striped files in an opened store, with the pools that the user trusts."""
    from stripefs.store.striped import StripedStore
    from stripefs.store.url import opener

    return StripedStore(store, settings.write.trust_pool, opener(settings.store))


def _nearest(settings: Settings) -> tuple[Store, bytes]:
    from stripefs.cli.probing import parent_and_name

    first, path = parent_and_name(settings.store.url)
    if path == b"/":
        raise ConfigError(f"{redact(first)} names no file", hint="give the URL of a file")
    return _with_pool(settings, first, path)


def _with_pool(settings: Settings, first: str, path: bytes) -> tuple[Store, bytes]:
    """The store of the nearest directory with a pool, from that at the URL `first` up, else that; and `path` of that in
    it."""
    from stripefs.cli.probing import parent_and_name
    from stripefs.store.url import open_store

    def opened(url: str) -> Store:
        return open_store(settings.store._replace(url=url))

    url, inside = first, path
    for _ in range(_LEVELS):
        try:
            with closing(opened(url)) as store:
                if _has_pool(store):
                    return opened(url), inside
        except (NotFound, NotADirectory, PermissionDenied):
            break  # no directory, or above what this user may see
        url, name = parent_and_name(url)
        if name == b"/":
            break
        inside = name + inside.rstrip(b"/")
    return opened(first), path


def _has_pool(store: Store) -> bool:
    try:
        return store.stat(POOL).kind is Kind.DIRECTORY
    except NotFound:
        return False
