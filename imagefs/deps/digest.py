"""Digests of what is installed from: files, and directories with all that is below them.

Of requirements files the lines count, joined and split by pip's own parser. One that the parser would read for minutes
is told instead.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import os
import re
import shlex
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from io import BufferedReader
from typing import Any, NamedTuple

import pip_requirements_parser as pip

from imagefs.deps.key import Value, canonical
from imagefs.deps.lock import without_secrets
from stripefs.errors import ConfigError

__all__ = ["LONGEST", "Files", "digest_of_file", "digest_of_tree", "line_parser", "lines_of"]

LONGEST = 65_536
"""Characters of a line with all that continues it: 800 hashes. Releases have some hundreds of files at most."""

_BLANK = re.compile(r"\s{1000}")
"""More than people write in one place. The parser looks for comments in a time that grows with the square of it."""

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


class RequirementLine(NamedTuple):
    """number: of its first line in the file. why: it is not to be read, "" for nothing."""

    number: int
    text: str
    why: str


def lines_of(data: bytes) -> Iterator[RequirementLine]:
    """The lines that say something. Raises ValueError for bytes that are no text."""
    for number, text in pip.join_lines(enumerate(pip.auto_decode(data).splitlines(), start=1)):
        if text.lstrip().startswith("#"):
            continue
        if len(text) > LONGEST:
            yield RequirementLine(number, text, f"it is longer than {LONGEST} characters; break it up")
        elif _BLANK.search(text):
            yield RequirementLine(number, text, "it has a thousand blanks in a row; take them out")
        else:
            for found in pip.split_comments([(number, text)]):
                if not isinstance(found, pip.CommentLine):
                    yield RequirementLine(number, found[1], "")


def line_parser() -> Callable[[str], tuple[str, Any, Sequence[str]]]:
    """A parser of lines as `pip.get_line_parser` makes it, which makes all of pip's options anew for each."""
    parser = pip.build_parser()
    defaults = parser.get_default_values()

    def parse(line: str) -> tuple[str, Any, Sequence[str]]:
        arguments, words = pip.break_args_options(line)
        options, rest = parser.parse_args(shlex.split(words), copy.deepcopy(defaults))  # lists among them are added to
        return arguments, options, rest

    return parse


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
