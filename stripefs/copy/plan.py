"""Copy plan: the destination of each source that is named, by the rules of cp(1). Pure.

A directory as the destination takes things under their own names; so does a path that ends with a slash, and is made
where nothing is there. Any other path is the name of the one copy. As with cp, one directory that is copied to where
nothing is becomes just that, slash or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stripefs.errors import ConfigError

__all__ = ["CopySource", "assign"]


class CopySource(NamedTuple):
    """A source that was named, as `text`, at a place of this `key` (`Place.key`).

    name: its own, b"" where the text says none (a root, `.`, `..`). kind: as `Entry.type`, "" for nothing there.
    """

    text: str
    name: bytes
    kind: str
    key: tuple[str, bytes]


def assign(
    sources: Sequence[CopySource],
    target: CopySource,
    *,
    recursive: bool,
    exact: bool = False,
    slash: bool = False,
    several: bool = False,
) -> list[bytes | ConfigError]:
    """For each source its name in the target, b"" for the target itself, or why it is not copied.

    exact: the target is the copy itself, also where a directory is there already. slash: its text ends with one.
    several: more than one thing was named, whatever became of the others. Raises ConfigError for what cannot
    be meant at all.
    """
    if target.kind not in ("", "file", "directory"):
        raise ConfigError(f"{target.text} is no regular file", hint="stripefs cat writes to anything")
    if slash and target.kind == "file":
        raise ConfigError(f"{target.text} is a file, not a directory")
    into = (target.kind == "directory" or slash) and not exact
    if several and not into:
        raise ConfigError(
            f"{target.text} is no directory to put several things into",
            hint="" if target.kind or exact else "end it with / to have it made",
        )
    if not several and sources and sources[0].kind == "directory" and not target.kind:
        into = False
    taken: dict[bytes, CopySource] = {}
    return [_name(source, target, taken, recursive=recursive, into=into) for source in sources]


def _name(
    source: CopySource, target: CopySource, taken: dict[bytes, CopySource], *, recursive: bool, into: bool
) -> bytes | ConfigError:
    directory = source.kind == "directory"
    if not directory and source.kind != "file":
        return ConfigError(f"{source.text} is no regular file")
    if directory and not recursive:
        return ConfigError(f"{source.text} is a directory", hint="-r copies directories")
    name = source.name if into else b""
    if not name and target.kind and directory != (target.kind == "directory"):
        one, other = (source, target) if directory else (target, source)
        return ConfigError(f"{one.text} is a directory, {other.text} is not")
    before = taken.setdefault(name, source)
    if before is not source and not (directory and before.kind == "directory"):
        return ConfigError(f"{source.text} would take the place of the copy of {before.text}")
    service, path = target.key
    there = path if not name else path.rstrip(b"/") + b"/" + name
    if (service, there) == source.key:
        return ConfigError(f"{source.text} would be copied onto itself")
    if directory and service == source.key[0] and there.startswith(source.key[1].rstrip(b"/") + b"/"):
        return ConfigError(f"{source.text} cannot be copied into itself")
    return name
