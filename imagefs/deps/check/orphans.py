"""Files of an installation that belong to no distribution. Pure.

An installer that was killed leaves the files of a package without what describes it, and `pip check` sees nothing: the
package is imported all the same, or half of it. So each file must be named by a RECORD that lies where modules are
imported from, or among the programs beside it, but for those here that installers and virtual environments make without
saying so. What lies elsewhere (data, configuration) is for whoever ran the installer to judge.
"""

from __future__ import annotations

import fnmatch
import posixpath
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from imagefs.deps.check.finding import Finding
from imagefs.deps.check.sites import Distribution, inside, prefix_of
from imagefs.deps.inventory import Facts

__all__ = ["check_orphans"]

_OF_DISTRIBUTIONS = (
    *("INSTALLER", "RECORD", "REQUESTED", "direct_url.json"),  # packaging.python.org, recording installed projects
    *("uv_build.json", "uv_cache.json"),
)
_OF_SITES = (".lock", "_virtualenv.pth", "_virtualenv.py")  # uv and virtualenv
_OF_PROGRAMS = (
    *("python", "python[23]", "python[23].*"),
    *("activate", "activate.*", "Activate.ps1", "activate_this.py", "deactivate.bat", "pydoc.bat"),
)  # venv, virtualenv and uv


def check_orphans(
    entries: Mapping[str, Facts],
    sites: Sequence[str],
    distributions: Iterable[Distribution],
    owned: Collection[str],
    allowed: Sequence[str] = (),
) -> list[Finding]:
    """One finding for each file, or for each directory where there is nothing else in it.

    allowed: patterns of paths that need no owner; one that matches a directory holds for all below it.
    """
    described = {one.folder for one in distributions}
    programs = [posixpath.join(prefix, "bin") for prefix in _prefixes(entries, sites)]
    lost = []
    for path, facts in entries.items():
        if facts.is_directory or facts.is_whiteout or path in owned or _is_allowed(path, allowed):
            continue
        folder, name = posixpath.split(path)
        if folder in programs:
            if not any(fnmatch.fnmatchcase(name, pattern) for pattern in _OF_PROGRAMS):
                lost.append(path)
        elif any(inside(path, site) for site in sites) and not _is_explained(path, entries, sites, described):
            lost.append(path)
    return [Finding("orphan", path, f"{count} files" if count else "") for path, count in _joined(lost, owned, sites)]


def _prefixes(entries: Mapping[str, Facts], sites: Sequence[str]) -> Iterator[str]:
    """Directories with a bin for the programs of a site: a virtual environment, or the site itself (--target)."""
    yield from sites
    for site in sites:
        prefix = prefix_of(site)
        if prefix is not None and posixpath.join(prefix, "pyvenv.cfg") in entries:
            yield prefix


def _is_explained(path: str, entries: Mapping[str, Facts], sites: Sequence[str], described: Collection[str]) -> bool:
    folder, name = posixpath.split(path)
    if folder in sites:
        return name in _OF_SITES
    if folder in described:
        return name in _OF_DISTRIBUTIONS
    above, below = posixpath.split(folder)
    if below == "__pycache__" and name.endswith(".pyc"):
        return posixpath.join(above, name.partition(".")[0] + ".py") in entries  # which has an owner, or is an orphan
    return False


def _is_allowed(path: str, allowed: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(path, pattern) or fnmatch.fnmatchcase(path, f"{pattern}/*") for pattern in allowed)


def _joined(lost: Sequence[str], owned: Collection[str], sites: Sequence[str]) -> Iterator[tuple[str, int]]:
    """The paths. Instead of those in a directory of a site in which nothing is owned, that directory, with a count."""
    mixed = {_package(path, sites) for path in owned}
    together: dict[str, int] = {}
    for path in sorted(lost):
        package = _package(path, sites)
        if package == path or package in mixed:
            yield path, 0
        else:
            together[package] = together.get(package, 0) + 1
    yield from together.items()


def _package(path: str, sites: Sequence[str]) -> str:
    """The entry directly in a site that `path` is, or is below; `path` itself outside of them."""
    for site in sites:
        if inside(path, site):
            begin = len(site) + 1 if site else 0
            return path[:begin] + path[begin:].partition("/")[0]
    return path
