"""Requirements, as they are read before anything is installed: which files they consist of, what they pin, what they
leave open.

The syntax is read by pip's own parser, as pip-requirements-parser packages it, and by `packaging`; what it means for a
key is decided here. A requirement is closed when it cannot become another: one version of a name, a hash, a commit, or
a file or directory of this host, whose contents are then inputs themselves. Where a version is pinned does not matter:
in the requirement, in another file, in a constraint. Everything else is an open end, and what is not understood is too.

Pure: files are read by a function of the caller's.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import pip_requirements_parser as pip
from packaging.utils import InvalidSdistFilename, canonicalize_name, parse_sdist_filename

from imagefs.deps.digest import line_parser, lines_of
from imagefs.deps.key import OpenEnd
from imagefs.deps.lock import LockedRequirement, RequirementKind, is_pylock, read_lock, without_secrets
from stripefs.errors import ConfigError

__all__ = ["Reader", "RequirementSource", "Requirements"]

_UNREADABLE = (
    *(pip.PipError, pip.OptionParsingError, ValueError, TypeError, AttributeError, AssertionError),
    RecursionError,  # of brackets without end
)
"""Errors of the parser for lines that pip would not accept either; of its own it has no one class for them."""

_SHOWN = 200
"""Characters of a line, or of a reason, that people are shown."""

_DEEPEST = 64
"""Files that include one another: more than people write, and few enough for Python's stack."""

_PARSER = "pip_requirements_parser: error: "  # with which it begins some of its messages

_VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)\}")  # pip replaces these in requirements files, and nothing else

_OF_KERNEL = re.compile(r"\bplatform_(release|version)\b")

_COMMIT = {
    "git": re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}"),
    "hg": re.compile(r"[0-9a-f]{40}"),
    "svn": re.compile(r"[0-9]+"),
}
"""Names by which a version control system means one state of a repository for good."""

_UNPINNED = "no one version is asked for; write ==VERSION, or pin it in a constraints file, or give hashes"
_NO_COMMIT = "a branch or tag may move; write the whole commit behind @"
_EDITABLE = "it is editable, so of files that stay where they are and may change; leave out -e (uv sync: --no-editable)"
_NO_HASH = "what is there may change; put #sha256=… behind it"


class RequirementSource(NamedTuple):
    """A file or directory of this host that is installed from. editable: it is linked to from what is installed."""

    path: str
    where: str
    editable: bool


class Requirements(NamedTuple):
    """All that was read. find_links: local files and directories in which distributions are looked for. options: of
    requirements files, by which a project of this host is built as well, with passwords. from_source: wheels of
    something are not to be taken.

    pinned: canonical names of which one version, a hash, a commit or a source is given. open_ends: what no resolver
    closes. unpinned: what one does. locked: the distributions, where lock files and hashes say all of it; None where a
    resolver has to.
    """

    sources: Sequence[RequirementSource]
    find_links: Sequence[RequirementSource]
    pinned: frozenset[str]
    open_ends: Sequence[OpenEnd]
    unpinned: Sequence[OpenEnd]
    locked: Sequence[LockedRequirement] | None
    options: Sequence[str] = ()
    from_source: bool = False


class _Finding(NamedTuple):
    """An open end. name: what it is about, which may be pinned somewhere else. loose: hashes close it too. resolved: a
    resolver closes it."""

    open_end: OpenEnd
    name: str = ""
    loose: bool = False
    resolved: bool = False


class Reader:
    """Takes requirements one after the other, from files and from command lines; `finish` says what they are together.

    load: answers the name that a file of this absolute path goes by, wanted as the second argument, and its bytes.
    is_there: whether something exists at an absolute path. variables: those that may stand in files, with their values.
    markers: of the target's Python, None where there is none.
    """

    def __init__(
        self,
        folder: str,
        load: Callable[[str, str], tuple[str, bytes]],
        is_there: Callable[[str], bool],
        variables: Mapping[str, str | None],
        markers: Mapping[str, str] | None,
    ) -> None:
        self._folder = folder
        self._load = load
        self._is_there = is_there
        self._variables = variables
        self._markers = markers
        self._parse_line = line_parser()
        self._seen: set[tuple[str, bool]] = set()
        self._depth = 0
        self._sources: list[RequirementSource] = []
        self._find_links: list[RequirementSource] = []
        self._pinned: set[str] = set()
        self._locked: list[LockedRequirement] = []
        self._build_options: list[str] = []
        self._from_source = False
        self._unhashed = self._hashes_required = False
        self._findings: list[_Finding] = []

    def file(self, path: str, *, constraint: bool = False) -> None:
        """A requirements or constraints file with all that it includes. Raises ConfigError for what cannot be read."""
        self._file(path, self._folder, posixpath.basename(path), constraint)

    def lock(self, path: str, *, copied: bool = False) -> None:
        """A `pylock.toml` or `uv.lock` at an absolute path. copied: nothing of it is installed editable. Raises
        ConfigError."""
        name, data = self._load(path, posixpath.basename(path))
        for package in read_lock(path, data):
            if copied and package.kind == "editable":
                package = package._replace(kind="local")
            if package.kind in ("local", "editable"):
                place = posixpath.normpath(posixpath.join(posixpath.dirname(path), package.source))
                self._sources.append(RequirementSource(place, name, package.kind == "editable"))
                if package.kind == "editable":
                    self.open(name, str(package), _EDITABLE)
                package = package._replace(source=place)
            self._pinned.add(canonicalize_name(package.name))
            self._locked.append(package)

    def requirement(self, where: str, text: str, *, editable: bool = False, constraint: bool = False) -> None:
        """A requirement as it stands on a command line."""
        self._requirement(where, without_secrets(text), editable, constraint, {})

    def option(self, where: str, name: str, value: str = "") -> None:
        """`pre`, `no-binary`, `require-hashes` or `find-links`, wherever it was set."""
        self._option(where, name, value, self._folder)

    def apart(self) -> Reader:
        """Another one, for requirements that take the place of all others of their names: nothing else closes them."""
        return Reader(self._folder, self._load, self._is_there, self._variables, self._markers)

    def take(self, other: Reader) -> None:
        """Take over what another reader has read."""
        said = other.finish()
        self._findings += map(_Finding, said.open_ends)
        self._sources += said.sources
        self._findings += [_Finding(one, resolved=True) for one in said.unpinned]
        self._pinned |= said.pinned
        self._unhashed = True  # it takes the place of what has hashes

    def open(self, where: str, what: str, why: str) -> None:
        """An open end that the caller found."""
        self._findings.append(_Finding(_open_end(where, what, why)))

    def finish(self) -> Requirements:
        """The result of all files together."""
        locked = self._hashes_required or (bool(self._locked) and not self._unhashed)
        left = [one for one in self._findings if not (one.name in self._pinned or (one.loose and locked))]
        return Requirements(
            self._sources,
            self._find_links,
            frozenset(self._pinned),
            [one.open_end for one in left if not one.resolved],
            [one.open_end for one in left if one.resolved],
            self._locked if locked else None,
            self._build_options,
            self._from_source,
        )

    def _file(self, path: str, folder: str, name: str, constraint: bool) -> None:
        absolute = posixpath.normpath(posixpath.join(folder, path))
        if (absolute, constraint) in self._seen:
            return
        self._seen.add((absolute, constraint))
        if self._depth == _DEEPEST:
            raise ConfigError(
                f"{path} is included through more than {_DEEPEST} files", hint="let it be included nearer"
            )
        if is_pylock(path):
            self.lock(absolute)
            return
        name, data = self._load(absolute, name)
        if not _is_list(path):
            self.open(name, posixpath.basename(path), "it names no exact versions; compile it into a requirements file")
            return
        try:
            lines = list(lines_of(data))
        except ValueError as error:
            raise ConfigError(f"{path} is no text") from error
        for line in lines:
            where = f"{name}:{line.number}"
            if line.why:
                self.open(where, line.text, line.why)
            else:
                self._line(where, line.text, absolute, name, constraint)

    def _line(self, where: str, line: str, path: str, name: str, constraint: bool) -> None:
        text = without_secrets(line)
        if unknown := [name for name in _VARIABLE.findall(text) if name not in self._variables]:
            self.open(where, text, f"it depends on a variable; declare that with --env {unknown[0]}")
            return
        text = self._replaced(text)
        try:
            string, options, arguments = self._parse_line(text)
            parsed = pip.ParsedLine(pip.RequirementLine(text), string, options, constraint, arguments)
            entries = list(pip.handle_line(parsed))
        except _UNREADABLE as error:
            self._not_understood(where, text, str(error))
            return
        for entry in entries:
            if isinstance(entry, pip.OptionLine):
                self._options(where, entry.options, path, name)
                self._for_builds(self._replaced(line), posixpath.dirname(path))
            elif not isinstance(entry, pip.ParsedRequirement):
                self._not_understood(where, text, entry.error_message)
            elif entry.invalid_options:
                self._not_understood(where, text, "it has options that need a line of their own")
            else:
                options = entry.options or {}
                self._requirement(where, entry.requirement_string, entry.is_editable, constraint, options)

    def _replaced(self, text: str) -> str:
        return _VARIABLE.sub(lambda found: self._variables.get(found[1]) or found[0], text)

    def _for_builds(self, line: str, folder: str) -> None:
        """Keep what a line says about where build requirements come from."""
        options = self._parse_line(line)[1]
        self._build_options += ["--no-index"] if options.no_index else []
        for option, urls in (("--index-url", [options.index_url]), ("--extra-index-url", options.extra_index_urls)):
            self._build_options += [word for url in urls if url for word in (option, url)]
        for link in options.find_links:
            place = link if _is_remote(link) else posixpath.join(self._beside(link, folder), _local_path(link))
            self._build_options += ["--find-links", place]

    def _beside(self, link: str, folder: str) -> str:
        """The place where a relative path of `--find-links` is looked for."""
        return folder if self._is_there(posixpath.join(folder, link)) else self._folder

    def _options(self, where: str, options: Mapping[str, Any], path: str, name: str) -> None:
        folder = posixpath.dirname(path)
        for option, constraint in (("requirements", False), ("constraints", True)):
            for included in options.get(option, ()):
                if _is_remote(included):
                    self.open(where, included, "it is not on this host; keep a copy here")
                else:
                    near = posixpath.normpath(posixpath.join(posixpath.dirname(name), included))
                    self._depth += 1
                    self._file(included, folder, near, constraint)
                    self._depth -= 1
        if options.get("no_binary"):
            self._option(where, "no-binary", "", folder)
        if options.get("pre"):
            self._option(where, "pre", "", folder)
        if options.get("require_hashes"):
            self._option(where, "require-hashes", "", folder)
        for link in options.get("find_links", ()):
            self._option(where, "find-links", link, self._beside(link, folder))

    def _option(self, where: str, name: str, value: str, folder: str) -> None:
        if name == "require-hashes":
            self._hashes_required = True
        elif name == "no-binary":
            self._from_source = True
        elif name == "pre":
            why = "what is needed besides comes in whatever version is newest, unfinished ones included"
            self._findings.append(_Finding(_open_end(where, "--pre", why), loose=True, resolved=True))
        elif _is_remote(value):
            why = "what is listed there may change; copy it to this host, or give hashes"
            self._findings.append(_Finding(_open_end(where, value, why), loose=True, resolved=True))
        else:
            self._find_links.append(
                RequirementSource(posixpath.join(folder, _local_path(value)), where, editable=False)
            )

    def _requirement(self, where: str, text: str, editable: bool, constraint: bool, options: Mapping[str, Any]) -> None:
        build = pip.build_editable_req if editable else pip.build_install_req
        try:
            found = build(text, pip.RequirementLine(text), options=options, is_constraint=constraint)
            if found.marker is not None and not self._applies(where, text, found.marker):
                return
        except _UNREADABLE as error:
            self._not_understood(where, text, str(error))
            return
        digests = list(found.hash_options or ())
        hashed = bool(digests) or (found.link is not None and found.link.has_hash)
        if not constraint:
            self._unhashed |= not hashed
        name = canonicalize_name(found.name) if found.name else ""
        if found.link is not None:
            self._link(where, text, found.link, name, hashed, editable)
            if hashed and not constraint:
                digests += [f"{found.link.hash_name}:{found.link.hash}"] if found.link.has_hash else []
                self._locked.append(
                    LockedRequirement(name, "", _kind(found.link), digests, found.link.url_without_fragment)
                )
            return
        exact = [one.version for one in found.specifier or () if _is_exact(one)]
        if exact or hashed:
            self._pinned.add(name)
        elif not constraint:
            self._findings.append(_Finding(_open_end(where, text, _UNPINNED), name, resolved=True))
        if hashed and not constraint:
            # The installer decides which of the files it takes, a wheel or one to be built.
            self._locked.append(LockedRequirement(name, exact[0] if exact else "", "sdist", digests))

    def _applies(self, where: str, text: str, marker: Any) -> bool:
        """Tells whether a requirement counts here. Where that is unknown it does."""
        if _OF_KERNEL.search(str(marker)):
            self.open(where, text, "whether it counts depends on the kernel, which is no part of a key")
        return self._markers is None or marker.evaluate({**self._markers, "extra": ""})

    def _link(self, where: str, text: str, link: Any, name: str, hashed: bool, editable: bool) -> None:
        if link.is_vcs:
            system = link.scheme.partition("+")[0]
            revision = urlsplit(link.url).path.rpartition("@")[2]
            if system not in _COMMIT or not _COMMIT[system].fullmatch(revision):
                self.open(where, text, _NO_COMMIT)
        elif link.scheme in ("", "file"):
            path = posixpath.normpath(posixpath.join(self._folder, _local_path(link.url)))
            self._sources.append(RequirementSource(path, where, editable))
            if editable:
                self.open(where, text, _EDITABLE)
            name = name or _name_of_sdist(path)
        elif not hashed:
            self.open(where, text, _NO_HASH)
        if name:
            self._pinned.add(name)

    def _not_understood(self, where: str, text: str, message: str) -> None:
        why = (message.strip().splitlines() or ["it is no requirement"])[0].removeprefix(_PARSER)
        self.open(where, text, f"it is not understood: {_short(without_secrets(why))}")


def _open_end(where: str, what: str, why: str) -> OpenEnd:
    return OpenEnd(where, _short(without_secrets(what)), why)


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _kind(link: Any) -> RequirementKind:
    return "wheel" if link.is_wheel else "sdist"


def _is_exact(specifier: Any) -> bool:
    return specifier.operator == "===" or (specifier.operator == "==" and not specifier.version.endswith(".*"))


def _is_list(path: str) -> bool:
    """Tells whether it holds requirements line by line, as far as its name tells. uv takes the files of projects
    too."""
    return not (path.endswith(".toml") or posixpath.basename(path) in ("setup.py", "setup.cfg"))


def _is_remote(text: str) -> bool:
    return "://" in text and not text.startswith("file:")


def _local_path(url: str) -> str:
    return unquote(urlsplit(url).path) if url.startswith("file:") else url


def _name_of_sdist(path: str) -> str:
    try:
        return parse_sdist_filename(posixpath.basename(path))[0]
    except InvalidSdistFilename:
        return ""
