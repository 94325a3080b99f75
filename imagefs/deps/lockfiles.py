"""What lock files pin: `pylock.toml` (PEP 751) and `uv.lock`. Pure.

Each names every package with one version, a commit, or hashes, so nothing of them is open; only directories of this
host are inputs besides.
"""

from __future__ import annotations

import posixpath
import re
import tomllib
from collections.abc import Sequence
from typing import Any

from imagefs.deps.lock import Kind, LockedRequirement
from stripefs.errors import ConfigError

__all__ = ["is_pylock", "read_lock"]

_SOURCES = ("directory", "path", "editable")  # of uv, those that lie on this host


def is_pylock(path: str) -> bool:
    """Whether a file of this name is one that pip and uv take for a `pylock.toml`."""
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


def _kind(wheels: Sequence[str], sdist: object) -> Kind:
    """What is installed of a distribution with these wheels, by name, and an sdist, if any. Where no wheel is for every
    host that may be the sdist."""
    any_host = any(name.endswith("-none-any.whl") for name in wheels)
    return "wheel" if any_host or (wheels and sdist is None) else "sdist"
