"""What lock files pin: `pylock.toml` (PEP 751) and `uv.lock`. Pure.

Each names every package with one version, a commit, or hashes, so nothing of them is open; only directories of this
host are inputs besides.
"""

from __future__ import annotations

import posixpath
import re
import tomllib
from typing import Any, NamedTuple

from stripefs.errors import ConfigError

__all__ = ["Locked", "is_pylock", "read_lock"]

_SOURCES = ("directory", "path", "editable")  # of uv, those that lie on this host


class Locked(NamedTuple):
    """A package. version: "" where it has none. path: of a file or directory, as the lock writes it, "" for none."""

    name: str
    version: str
    path: str
    editable: bool


def is_pylock(path: str) -> bool:
    """Whether a file of this name is one that pip and uv take for a `pylock.toml`."""
    return bool(re.fullmatch(r"pylock\.([^.]+\.)?toml", posixpath.basename(path)))


def read_lock(path: str, data: bytes) -> list[Locked]:
    """The packages of a lock file; of which kind it is its name says. Raises ConfigError."""
    try:
        document = tomllib.loads(data.decode())
        return _of_pylock(document) if is_pylock(path) else _of_uv(document)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"{path} is no lock file: {why}") from error


def _of_pylock(document: dict[str, Any]) -> list[Locked]:
    from packaging.pylock import Pylock, PylockValidationError  # which few need

    try:
        packages = Pylock.from_dict(document).packages
    except PylockValidationError as error:
        raise ValueError(str(error)) from error
    found = []
    for package in packages:
        directory = package.directory
        path, editable = (directory.path, bool(directory.editable)) if directory else ("", False)
        found.append(Locked(package.name, str(package.version or ""), path, editable))
    return found


def _of_uv(document: dict[str, Any]) -> list[Locked]:
    found = []
    for package in document["package"]:
        source = package["source"]
        if "virtual" in source:  # a project of which only the dependencies are installed
            continue
        path = next((source[kind] for kind in _SOURCES if kind in source), "")
        if not all(isinstance(text, str) for text in (package["name"], package.get("version", ""), path)):
            raise TypeError("a package has a name, version or path that is no text")
        found.append(Locked(package["name"], package.get("version", ""), path, "editable" in source))
    return found
