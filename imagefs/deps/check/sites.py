"""Where packages lie in a tree: directories that an interpreter imports from, and the distributions in each."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from imagefs.deps.inventory import Facts

__all__ = ["Distribution", "distributions_in", "find_sites", "inside", "prefix_of"]

_NAMES = ("site-packages", "dist-packages")
_DIST_INFO = ".dist-info"
_LEGACY = (".egg-info", ".egg-link", ".egg")


class Distribution(NamedTuple):
    """Paths are those of an inventory. folder: what describes it, whose RECORD lists its files unless it is `legacy`,
    made by a setuptools of old, which wrote no digests."""

    name: str
    folder: str
    site: str
    legacy: bool = False


def find_sites(entries: Mapping[str, Facts], given: Iterable[str] = ()) -> list[str]:
    """Directories that hold distributions, by path: those with such a name or content.

    given: those that modules are imported from, unless that is done from lib/python3.11/site-packages in them. What
    lies below another one is part of a distribution there: setuptools ships whole distributions for itself.
    """
    found, above = set(), set()
    for path, facts in entries.items():
        if facts.is_directory:
            folder, name = posixpath.split(path)
            if name in _NAMES:
                found.add(path)
                above.add(prefix_of(path))
            elif name.endswith(_DIST_INFO):
                found.add(folder)
    found |= {path.strip("/") for path in given} - above
    outermost: list[str] = []
    for path in sorted(found, key=lambda one: one.count("/") if one else -1):
        if path in entries and not any(inside(path, other) for other in outermost):
            outermost.append(path)
    return sorted(outermost)


def distributions_in(entries: Mapping[str, Facts], site: str) -> list[Distribution]:
    """Those of a site, by name."""
    found = []
    for path, facts in entries.items():
        folder, name = posixpath.split(path)
        if folder == site and name and not facts.is_whiteout:
            if name.endswith(_DIST_INFO):
                found.append(Distribution(_shown(name, _DIST_INFO), path, site))
            elif suffix := next((one for one in _LEGACY if name.endswith(one)), ""):
                found.append(Distribution(_shown(name, suffix), path, site, legacy=True))
    return sorted(found)


def prefix_of(site: str) -> str | None:
    """The directory of an environment whose lib/python3.11/site-packages this is; None for a site that is not."""
    library, name = posixpath.split(site)
    above, version = posixpath.split(library)
    prefix, lib = posixpath.split(above)
    named = name in _NAMES and version.startswith("python") and lib in ("lib", "lib64")
    return prefix if named else None


def inside(path: str, folder: str) -> bool:
    """Whether `path` is `folder` or below it; everything is below ""."""
    return not folder or path == folder or path.startswith(f"{folder}/")


def _shown(folder: str, suffix: str) -> str:
    return folder.removesuffix(suffix).replace("-", " ", 1)
