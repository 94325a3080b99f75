"""A resolved lock: the distributions that an installation will bring, each with its version, kind and digests. Pure.

A lock is what a resolver answers for a set of requirements, an interpreter and an index. It is part of the key of a
dependency snapshot, the installer is held to it, and it is kept beside the snapshot. Two locks are equal if and only if
an installation of either brings the same distributions; order of answers and spelling of names do not count. No URL in
it has what gives access.

Lock files are `pylock.toml` (PEP 751) and `uv.lock`. Each names every package with one version, a commit, or hashes, so
nothing of them is open; only directories of this host are inputs besides.
"""

from __future__ import annotations

import posixpath
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

from packaging.utils import canonicalize_name, canonicalize_version
from packaging.version import InvalidVersion, Version

from imagefs.deps.key import Value
from imagefs.errors import FormatError
from stripefs.errors import ConfigError

__all__ = ["Lock", "LockedRequirement", "RequirementKind", "is_pylock", "read_lock", "without_secrets"]

_USERINFO = re.compile(r"(?<=://)[^/?#\s\"'\\]*@")
_PARAMETER = re.compile(
    r"(?i)([?&](?=[^=&#\s]*=)[^=&#\s]*(?:auth|credential|key|passw|secret|signature|token)[^=&#\s]*=)[^&#\s\"'\\]*"
    r"|[?&][^=&#\s]*"
)
"""A parameter without a secret is matched as well, as a whole: to try each of its characters takes the square of the
time."""


def without_secrets(text: str) -> str:
    """`text` in which no URL has a user, a password, or the value of a parameter that is called like a secret."""
    return _PARAMETER.sub(lambda found: found[1] or found[0], _USERINFO.sub("", text))


RequirementKind = Literal["wheel", "sdist", "vcs", "local", "editable"]
"""The form in which a distribution comes: as a wheel, as an archive of sources, from a repository, from a file or
directory of this host, or as a link to such a directory."""

_DIGEST = re.compile(r"[a-z0-9_]+:[0-9a-f]{32,128}")


class LockedRequirement(NamedTuple):
    """One distribution.

    name: canonical. version: "" where only a build tells it. digests: `ALGORITHM:HEX` of the files that may be
    installed, sorted; of a local source that was built, that of its wheel. source: URL without secrets, repository with
    its commit, or path; "" for a file of an index.
    """

    name: str
    version: str
    kind: RequirementKind
    digests: Sequence[str] = ()
    source: str = ""

    @property
    def is_built(self) -> bool:
        """Tells whether it is built where it is installed, so that the host's build environment decides as well."""
        return self.kind != "wheel"

    @property
    def is_pinned(self) -> bool:
        """Tells whether equal entries bring equal sources: by digest, or by the commit of a repository."""
        return bool(self.digests) or self.kind == "vcs"

    def __str__(self) -> str:
        """As a requirements file writes it, without digests."""
        if self.source:
            return f"{self.name} @ {self.source}"
        return f"{self.name}=={self.version}" if self.version else self.name


class Lock(NamedTuple):
    """requirements: sorted by name. tool: what resolved them, such as `uv 0.5.1`, or the name of a lock file."""

    requirements: Sequence[LockedRequirement]
    tool: str = ""

    @classmethod
    def of(cls, requirements: Iterable[LockedRequirement], tool: str = "") -> Lock:
        """The lock of these in any order and spelling. A lock file may name one in several versions, of which markers
        choose. Where a directory lies differs between nodes, so of one that is no editable the path does not count."""
        found = {
            LockedRequirement(
                canonicalize_name(one.name),
                _version(one.version),
                one.kind,
                tuple(sorted(set(one.digests))),
                "" if one.kind == "local" else without_secrets(one.source),
            )
            for one in requirements
        }
        return cls(tuple(sorted(found)), tool)

    def lacks(self, installed: Mapping[str, str]) -> list[str]:
        """Installed distributions that are not in it, as `NAME VERSION`, sorted. installed: versions
        by name."""
        known: dict[str, set[str]] = {}
        for one in self.requirements:
            known.setdefault(one.name, set()).add(canonicalize_version(one.version))
        return sorted(
            f"{name} {version}"
            for name, version in installed.items()
            if not known.get(canonicalize_name(name), set()) & {"", canonicalize_version(version)}
        )

    @property
    def unpinned(self) -> Sequence[LockedRequirement]:
        """Distributions whose files no digest and no commit decides."""
        return [one for one in self.requirements if not one.is_pinned]

    @property
    def built(self) -> Sequence[LockedRequirement]:
        """Distributions that are built from source when they are installed."""
        return [one for one in self.requirements if one.is_built]

    def to_key(self) -> Value:
        """The part of it that is in a key: all but the tool."""
        return [[one.name, one.version, one.kind, list(one.digests), one.source] for one in self.requirements]

    def to_document(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"tool": self.tool, "requirements": self.to_key()}

    @classmethod
    def from_document(cls, document: Any) -> Lock:
        """The inverse of `to_document`. Raises FormatError for anything else."""
        try:
            return cls.of([_entry(one) for one in document["requirements"]], _text(document["tool"]))
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError("the document of a lock is damaged") from error

    def to_text(self) -> str:
        """A requirements file with hashes, one distribution a line."""
        lines = []
        for one in self.requirements:
            hashes = one.digests if one.kind in ("wheel", "sdist") else ()
            lines.append(" \\\n    ".join([str(one), *(f"--hash={digest}" for digest in hashes)]))
        return "".join(f"{line}\n" for line in lines)

    def constraints(self, *, hashed: bool) -> str:
        """A constraints file for the installer. hashed: with digests, as uv checks them; pip would then ask for digests
        of all that it is given."""
        lines = []
        for one in self.requirements:
            if one.version:
                hashes = one.digests if hashed and one.kind in ("wheel", "sdist") else ()
                lines.append(" ".join([f"{one.name}=={one.version}", *(f"--hash={digest}" for digest in hashes)]))
        return "".join(f"{line}\n" for line in lines)


def _entry(value: Any) -> LockedRequirement:
    name, version, kind, digests, source = value
    if kind not in get_args(RequirementKind) or not all(_DIGEST.fullmatch(_text(one)) for one in digests):
        raise ValueError(kind)
    return LockedRequirement(_text(name), _text(version), kind, tuple(digests), _text(source))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _version(text: str) -> str:
    """The canonical spelling of a version; one that is none is left as it is."""
    try:
        return str(Version(text))
    except InvalidVersion:
        return text


_SOURCES = ("directory", "path", "editable")  # of uv, those that lie on this host


def is_pylock(path: str) -> bool:
    """Tells whether a file of this name is one that pip and uv take for a `pylock.toml`."""
    return bool(re.fullmatch(r"pylock\.([^.]+\.)?toml", posixpath.basename(path)))


def read_lock(path: str, data: bytes) -> list[LockedRequirement]:
    """The packages of a lock file; of which kind it is its name says. The source of a directory of this host is its
    path as the file writes it. Raises ConfigError."""
    try:
        document = tomllib.loads(data.decode())
        return _of_pylock(document) if is_pylock(path) else _of_uv(document)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"{path} is no lock file: {why}") from error


def _of_pylock(document: dict[str, Any]) -> list[LockedRequirement]:
    from packaging.pylock import Pylock, PylockValidationError  # which few need

    try:
        packages = Pylock.from_dict(document).packages
    except PylockValidationError as error:
        raise ValueError(str(error)) from error
    found = []
    for package in packages:
        kind = _kind([wheel.filename for wheel in package.wheels or ()], package.sdist)
        source = ""
        files: list[Any] = [*(package.wheels or ()), *filter(None, [package.sdist, package.archive])]
        if package.vcs is not None:
            kind, source = "vcs", f"{package.vcs.type}+{package.vcs.url or package.vcs.path}@{package.vcs.commit_id}"
        elif package.directory is not None:
            kind, source = "editable" if package.directory.editable else "local", package.directory.path
        elif package.archive is not None:
            source = package.archive.url or ""
            kind = "wheel" if (source or package.archive.path or "").endswith(".whl") else "sdist"
        digests = [f"{name}:{value}" for file in files for name, value in file.hashes.items()]
        found.append(LockedRequirement(package.name, str(package.version or ""), kind, digests, source))
    return found


def _of_uv(document: dict[str, Any]) -> list[LockedRequirement]:
    found = []
    for package in document["package"]:
        source = package["source"]
        if "virtual" in source:  # a project of which only the dependencies are installed
            continue
        wheels, sdist = package.get("wheels", []), package.get("sdist")
        kind = _kind([file.get("url") or file.get("path") or file["filename"] for file in wheels], sdist)
        place = next((source[one] for one in _SOURCES if one in source), "")
        if place:
            kind = "editable" if "editable" in source else "local"
        elif "git" in source:
            kind, place = "vcs", f"git+{source['git']}"
        digests = [file["hash"] for file in (*wheels, *([sdist] if sdist else ())) if "hash" in file]
        if not all(isinstance(text, str) for text in (package["name"], package.get("version", ""), place, *digests)):
            raise TypeError("a package has a name, version, digest or path that is no text")
        found.append(LockedRequirement(package["name"], package.get("version", ""), kind, digests, place))
    return found


def _kind(wheels: Sequence[str], sdist: object) -> RequirementKind:
    """The form that is installed of a distribution with these wheels, by name, and an sdist, if any. Where no wheel is
    for every host that may be the sdist."""
    any_host = any(name.endswith("-none-any.whl") for name in wheels)
    return "wheel" if any_host or (wheels and sdist is None) else "sdist"
