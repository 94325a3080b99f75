"""Digests of what is installed from: files, and directories with all that is below them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from io import BufferedReader

from imagefs.deps.key import Value, canonical
from imagefs.deps.lock import without_secrets
from imagefs.deps.requirement_lines import lines_of
from stripefs.errors import ConfigError

__all__ = ["Files", "digest_of_file", "digest_of_tree"]

_LEFT_OUT = re.compile(r"(.*/)?(__pycache__|\.git|\.hg|\.svn)|.*\.py[co]")
"""Below a directory: bytecode, and what version control keeps."""

_LARGEST = 16 << 20
"""Bytes of a file that is read line by line: 80,000 requirements with two hashes each, in some twenty seconds."""


class Files:
    """Files and directories by names that are the same wherever they lie, each with its digest.

    without: absolute paths that are no part of any directory.
    """

    def __init__(self, without: Collection[str]) -> None:
        self._without = without
        self._digests: dict[str, str] = {}
        self._names: dict[str, str] = {}

    @property
    def digests(self) -> Mapping[str, str]:
        """By name."""
        return dict(sorted(self._digests.items()))

    @property
    def paths(self) -> Sequence[str]:
        """Absolute, in the order in which they were named."""
        return list(self._names)

    def name_of(self, path: str) -> str:
        """The name of what is at this absolute path, "" for what is not among them."""
        return self._names.get(path, "")

    def text(self, path: str, name: str) -> tuple[str, bytes]:
        """A file in which URLs may have passwords, which do not count: its name and its bytes. Raises ConfigError.

        Of requirements the lines count as pip joins them, without comments and blank lines.
        """
        with _opened(path) as file:
            data = file.read(_LARGEST + 1)
        if len(data) > _LARGEST:
            raise ConfigError(
                f"{path} has more than {_LARGEST >> 20} MiB", hint="is it the file that lists what is installed?"
            )
        counted = without_secrets(_lines(path, data).decode("latin-1")).encode("latin-1")
        return self._put(path, name, hashlib.sha256(counted).hexdigest()), data

    def add(self, path: str, name: str) -> str:
        """A file as it is, or a directory with all that is below it; its name. Raises ConfigError."""
        if known := self._names.get(path):
            return known
        if not os.path.isdir(path):
            return self._put(path, name, digest_of_file(path))
        return self._put(path, f"{name}/", digest_of_tree(path, self._without))

    def project(self, path: str, name: str) -> str:
        """A directory that is built; its digest is the caller's to give. Its name."""
        return self._put(path, f"{name}/", "")

    def _put(self, path: str, name: str, digest: str) -> str:
        """The name under which it is kept: the one wanted, with a number where another path has that."""
        if known := self._names.get(path):
            return known
        found, number = name, 1
        while found in self._digests:
            number += 1
            found = f"{name}#{number}"
        self._digests[found] = digest
        self._names[path] = found
        return found


def _lines(path: str, data: bytes) -> bytes:
    if path.endswith((".toml", ".lock", ".py", ".cfg")):
        return data
    try:
        return "".join(f"{line.text.strip()}\n" for line in lines_of(data)).encode()
    except ValueError:  # no text, which whoever reads it as such tells
        return data


def digest_of_file(path: str) -> str:
    """SHA-256 in hexadecimal. Raises ConfigError."""
    with _opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def _opened(path: str) -> Iterator[BufferedReader]:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode) and not os.path.isdir(path):
            raise ConfigError(f"{path} can be read but once", hint="put what it brings into a file")
        with open(path, "rb") as file:
            yield file
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


def digest_of_tree(top: str, without: Collection[str] = ()) -> str:
    """SHA-256 over names, contents, links and who may execute what, in the order of the names; times do not count.

    Links are not followed: they count as the path they lead to, and those to files outside by their contents too.
    without: absolute paths that are left out with all that is below them. Raises ConfigError for what cannot be read,
    and for a link to a directory outside.
    """
    try:
        entries = list(_entries(top, "", without))
    except OSError as error:
        raise ConfigError(f"{error.filename or top} cannot be read: {error.strerror}") from error
    return hashlib.sha256(canonical(entries)).hexdigest()


def _entries(top: str, below: str, without: Collection[str]) -> Iterator[Value]:
    folder = os.path.join(top, below) if below else top
    for name in sorted(os.listdir(folder), key=os.fsencode):
        inner = f"{below}{name}"
        path = os.path.join(folder, name)
        if _LEFT_OUT.fullmatch(inner) or path in without:
            continue
        found = os.lstat(path)
        if stat.S_ISDIR(found.st_mode):
            yield [inner, "directory"]
            yield from _entries(top, f"{inner}/", without)
        elif stat.S_ISREG(found.st_mode):
            yield [inner, "executable" if found.st_mode & 0o111 else "file", digest_of_file(path)]
        elif stat.S_ISLNK(found.st_mode):
            yield [inner, "link", os.readlink(path), *_outside(top, path)]
        else:
            yield [inner, "other", stat.S_IFMT(found.st_mode)]


def _outside(top: str, path: str) -> list[str]:
    """The digest of the file outside of `top` that a link leads to, if it does. Raises ConfigError for a directory."""
    real, inside = os.path.realpath(path), f"{os.path.realpath(top)}/"
    if f"{real}/".startswith(inside) or not os.path.exists(real):
        return []
    if os.path.isdir(real):
        raise ConfigError(f"{path} leads to a directory outside of {top}", hint="declare that one with --input instead")
    return [digest_of_file(real)]
