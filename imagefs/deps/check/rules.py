"""Rules of the checks: findings and the verdict on publishing, sites and their distributions, orphaned files. Pure.

Doubt never publishes, and never fails the job: what was installed stays in use where it is.

Sites are the directories that are imported from. An installer that was killed leaves the files of a package without
what describes it, and `pip check` sees nothing: the package is imported all the same, or half of it. So each file must
be named by a RECORD that lies where modules are imported from, or among the programs beside it, but for those here that
installers and virtual environments make without saying so. Files elsewhere (data, configuration) are for whoever ran
the installer to judge.
"""

from __future__ import annotations

import fnmatch
import posixpath
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from imagefs.deps.inventory import FileFacts

__all__ = [
    "KINDS",
    "Distribution",
    "Finding",
    "FindingKind",
    "Verdict",
    "check_orphans",
    "distributions_in",
    "find_sites",
    "inside",
    "judge",
    "outcome_findings",
    "prefix_of",
]

FindingKind = Literal[
    "status",
    "survivor",
    "outside",
    "record",
    "orphan",
    "conflict",
    "secret",
    "editable",
    "privileged",
    "changed",
    "unmet",
    "bytecode",
]
KINDS: dict[FindingKind, bool] = {
    "status": True,  # the installer failed
    "survivor": True,  # something of it still ran
    "outside": True,  # it wrote where nothing is captured
    "record": True,  # a file is not what the distribution it belongs to says
    "orphan": True,  # a file belongs to no distribution
    "conflict": True,  # distributions do not fit one another
    "secret": True,  # a file that others must not read
    "editable": True,  # a source that may change
    "privileged": True,  # a program that gives privileges, or a device
    "changed": True,  # a file changed while it was packed
    "unmet": False,  # distributions do not fit one another, and need not
    "bytecode": False,  # a source that is no valid program
}
"""Every kind, by importance, and whether it stands against publishing."""

_NAMES = ("site-packages", "dist-packages")
_DIST_INFO = ".dist-info"
_LEGACY = (".egg-info", ".egg-link", ".egg")


class Finding(NamedTuple):
    """subject: the path or name it is about, without what is secret. what: a few words on it, "" where the kind says
    all."""

    kind: FindingKind
    subject: str
    what: str = ""


_SHOWN = 3
"""Findings of one kind that are reported one by one."""

_WORDS: dict[FindingKind, tuple[str, str]] = {
    "status": ("the installer failed", ""),
    "survivor": ("processes still ran when the installer had ended", "start them from the job's own command"),
    "outside": ("it wrote outside the targets", "--ignore-outside PATTERN publishes without them"),
    "record": ("files are not what their packages say", ""),
    "orphan": ("files belong to no package", "as an install that was interrupted leaves them; --allow-file PATTERN"),
    "conflict": ("packages do not fit one another", "--allow-conflicts publishes them"),
    "secret": ("secrets would be published", "keep them out of the target"),
    "editable": ("editable installs may change", "--bytecode checked publishes them"),
    "privileged": ("files give privileges", "--allow-setuid publishes them"),
    "changed": ("files changed while they were packed", ""),
    "unmet": ("packages do not fit one another", ""),
    "bytecode": ("sources that do not compile have no bytecode", ""),
}


class Verdict(NamedTuple):
    """lines: one for each kind of finding, those that stand against publishing first."""

    publish: bool
    lines: tuple[str, ...]


def judge(findings: Iterable[Finding]) -> Verdict:
    """Tells whether nothing speaks against publishing."""
    by_kind: dict[FindingKind, list[Finding]] = {kind: [] for kind in KINDS}
    for finding in findings:
        by_kind[finding.kind].append(finding)
    present = [kind for kind, found in by_kind.items() if found]
    against = [kind for kind in present if KINDS[kind]]
    lines = [_line(kind, by_kind[kind]) for kind in (*against, *(kind for kind in present if not KINDS[kind]))]
    return Verdict(not against, tuple(lines))


def outcome_findings(status: int, survivors: Iterable[tuple[int, str]]) -> list[Finding]:
    """Of an installer: its exit status, and pid and command line of what it left running."""
    found = [Finding("status", f"exit status {status}")] if status else []
    return [*found, *(Finding("survivor", f"{pid} ({command})" if command else str(pid)) for pid, command in survivors)]


def _line(kind: FindingKind, findings: list[Finding]) -> str:
    title, hint = _WORDS[kind]
    told = [f"{one.subject}: {one.what}" if one.what else one.subject for one in findings[:_SHOWN]]
    if len(findings) > _SHOWN:
        told.append(f"and {len(findings) - _SHOWN} more")
    return f"{title}: {', '.join(told)}" + (f" ({hint})" if hint else "")


class Distribution(NamedTuple):
    """Paths are those of an inventory. folder: what describes it, whose RECORD lists its files unless it is `legacy`,
    made by a setuptools of old, which wrote no digests."""

    name: str
    folder: str
    site: str
    legacy: bool = False


def find_sites(entries: Mapping[str, FileFacts], given: Iterable[str] = ()) -> list[str]:
    """Directories that hold distributions, by path: those with such a name or content.

    given: those that modules are imported from, unless that is done from lib/python3.11/site-packages in them. A
    directory below another one is part of a distribution there: setuptools ships whole distributions for itself.
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


def distributions_in(entries: Mapping[str, FileFacts], site: str) -> list[Distribution]:
    """The distributions of a site, by name."""
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
    """Tells whether `path` is `folder` or below it; everything is below ""."""
    return not folder or path == folder or path.startswith(f"{folder}/")


def _shown(folder: str, suffix: str) -> str:
    return folder.removesuffix(suffix).replace("-", " ", 1)


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
    entries: Mapping[str, FileFacts],
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


def _prefixes(entries: Mapping[str, FileFacts], sites: Sequence[str]) -> Iterator[str]:
    """Directories with a bin for the programs of a site: a virtual environment, or the site itself (--target)."""
    yield from sites
    for site in sites:
        prefix = prefix_of(site)
        if prefix is not None and posixpath.join(prefix, "pyvenv.cfg") in entries:
            yield prefix


def _is_explained(
    path: str, entries: Mapping[str, FileFacts], sites: Sequence[str], described: Collection[str]
) -> bool:
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
