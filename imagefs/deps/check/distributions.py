"""Checks of installed distributions: files against RECORD, editable installs, and requirements that fit one another.

A RECORD lists path, digest and size of each file, as installers have written them. Bytecode is made after that and is
not looked at, present or absent; a RECORD stays as the installer left it, so that `pip uninstall` and `uv` find what
they know: both remove the bytecode of a source with the source.

The modules of an editable distribution stay where their source is.

The fit of distributions is the question of `pip check`, answered from the same files with the same library. Nothing is
run, so it can be answered for a container from outside, where no pip is installed (uv needs none), and for a directory
of `--target` without what else its interpreter has.
"""

from __future__ import annotations

import base64
import binascii
import csv
import email.parser
import hashlib
import io
import json
import os
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from imagefs.deps.check.rules import Distribution, Finding
from imagefs.deps.inventory import Inventory

__all__ = [
    "Described",
    "Owned",
    "RecordRow",
    "check_consistent",
    "check_editable",
    "check_records",
    "describe",
    "describe_folder",
    "describe_site",
    "parse_record",
]

_ALGORITHMS = ("sha256", "sha384", "sha512")  # the others that RECORD allows are weaker
_WITHOUT_DIGEST = ("RECORD", "RECORD.jws", "RECORD.p7s")
_SIZE_LIMIT = 64 << 20
"""Bytes of a RECORD, of which the largest known has 2 MB."""

_BATCH = 64  # files that one thread hashes in turn


class RecordRow(NamedTuple):
    """A line of a RECORD. algorithm and digest are "" and b"" where it has none, size -1."""

    path: str
    algorithm: str
    digest: bytes
    size: int


class Owned(NamedTuple):
    """names: all paths that a RECORD names. verified: those whose bytes are as it says."""

    names: frozenset[str]
    verified: frozenset[str]


def parse_record(text: str) -> list[RecordRow]:
    """Raises ValueError for what is no RECORD."""
    rows = []
    for fields in csv.reader(io.StringIO(text, newline="")):
        if not fields:
            continue
        path, spec, size = (*fields, "", "")[:3]
        algorithm, _, encoded = spec.partition("=")
        try:
            digest = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
            rows.append(RecordRow(path, algorithm, digest, int(size) if size else -1))
        except (ValueError, binascii.Error) as error:
            raise ValueError(f"{path or 'a line without a path'}: {error}") from error
    return rows


def check_records(inventory: Inventory, distributions: Sequence[Distribution], at: str) -> tuple[Owned, list[Finding]]:
    """Files that the distributions own, and findings where they are not what they say.

    at: the absolute path that the directory of the inventory had for the installer.
    """
    expected: dict[str, list[RecordRow]] = {}
    findings = []
    for distribution in distributions:
        try:
            for row in _rows(inventory, distribution):
                if path := _place(row.path, distribution.site, inventory, at):
                    expected.setdefault(path, []).append(row)
                elif not _is_bytecode(row.path):
                    findings.append(Finding("record", f"{distribution.name}: {row.path}", "is missing"))
        except ValueError as error:
            findings.append(Finding("record", distribution.name, str(error)))
    verified = set()
    for path, what in _verify(inventory, expected):
        if what:
            findings.append(Finding("record", path, what))
        else:
            verified.add(path)
    return Owned(frozenset(expected), frozenset(verified)), findings


def _rows(inventory: Inventory, distribution: Distribution) -> list[RecordRow]:
    """Raises ValueError."""
    if distribution.legacy:
        raise ValueError("was installed without a RECORD, by a setuptools of old")
    name = posixpath.join(distribution.folder, "RECORD")
    if name not in inventory.entries or not inventory.entries[name].is_file:
        raise ValueError("has no RECORD: its installation has not ended")
    try:
        with open(inventory.path(name), encoding="utf-8") as file:
            text = file.read(_SIZE_LIMIT)
    except (OSError, ValueError) as error:
        raise ValueError(f"its RECORD cannot be read: {error}") from error
    if len(text) == _SIZE_LIMIT:
        raise ValueError(f"its RECORD is longer than {_SIZE_LIMIT} bytes")
    return parse_record(text)


def _place(row: str, site: str, inventory: Inventory, at: str) -> str:
    """The entry that a row of a RECORD in `site` names; "" for none."""
    if row.startswith("/"):
        return _found(posixpath.relpath(row, at), inventory)
    # With --target pip installs elsewhere, as if below lib/python, and then moves everything into one directory.
    moved = posixpath.join(site, row[len("../../") :]) if row.startswith("../../") else ""
    return _found(posixpath.join(site, row), inventory) or (moved and _found(moved, inventory))


def _found(path: str, inventory: Inventory) -> str:
    path = posixpath.normpath(path)
    if path in inventory.entries:
        return path
    if path.startswith("../") or not os.path.lexists(inventory.path(path)):
        return ""
    # Through a link, such as lib64 of a virtual environment.
    folder, name = os.path.split(inventory.path(path))
    path = os.path.relpath(os.path.join(os.path.realpath(folder), name), os.path.realpath(inventory.top))
    return path if path in inventory.entries else ""


def _is_bytecode(path: str) -> bool:
    """Tells whether it is that of a source beside it; other bytecode is a module itself."""
    return path.endswith(".pyc") and posixpath.basename(posixpath.dirname(path)) == "__pycache__"


def _verify(inventory: Inventory, expected: dict[str, list[RecordRow]]) -> Iterator[tuple[str, str]]:
    """Each path with what is wrong with it, "" for nothing, in order."""
    paths = sorted(expected)
    batches = [paths[start : start + _BATCH] for start in range(0, len(paths), _BATCH)]

    def verify(batch: list[str]) -> list[str]:
        return [_difference(inventory, path, expected[path]) for path in batch]

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for batch, answers in zip(batches, pool.map(verify, batches), strict=True):
            yield from zip(batch, answers, strict=True)


def _difference(inventory: Inventory, path: str, rows: Sequence[RecordRow]) -> str:
    """The difference of the file from all its rows: packages that overwrite one another's files leave one of them
    right."""
    facts = inventory.entries[path]
    if _is_bytecode(path):
        return ""
    if not facts.is_file:
        return "is a link, and not the file itself" if facts.is_link else "is not a regular file"
    answers = {_row_difference(inventory, path, facts.size, row) for row in rows}
    return "" if "" in answers else min(answers)


def _row_difference(inventory: Inventory, path: str, size: int, row: RecordRow) -> str:
    if not row.algorithm:
        folder, name = posixpath.split(path)
        return "" if folder.endswith(".dist-info") and name in _WITHOUT_DIGEST else "has no digest"
    if row.algorithm not in _ALGORITHMS:
        return f"has a digest of the kind {row.algorithm}, which proves nothing"
    if row.size not in (-1, size):
        return f"has {size} bytes, not {row.size}"
    try:
        with open(inventory.path(path), "rb") as file:
            digest = hashlib.file_digest(file, row.algorithm).digest()
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return "" if digest == row.digest else "has another digest"


def _editable_source(direct_url: bytes) -> str:
    """The directory of an editable install, from its direct_url.json; "" for any other. Raises ValueError."""
    told = json.loads(direct_url)
    if not isinstance(told, dict) or not isinstance(told.get("dir_info"), dict) or not told["dir_info"].get("editable"):
        return ""
    return unquote(urlsplit(str(told.get("url"))).path)


def check_editable(inventory: Inventory, distributions: Iterable[Distribution], *, checked: bool) -> list[Finding]:
    """One finding for each editable install, but with `checked` bytecode, which follows what becomes of the source."""
    found = []
    for one in distributions:
        name = f"{one.folder}/direct_url.json"
        if checked or name not in inventory.entries or not inventory.entries[name].is_file:
            continue
        try:
            with open(inventory.path(name), "rb") as file:
                source = _editable_source(file.read())
        except (OSError, ValueError, RecursionError):
            found.append(Finding("record", name, "cannot be understood"))
            continue
        if source:
            found.append(Finding("editable", one.name, f"its modules are in {source}"))
    return found


_DESCRIBING = (".dist-info", ".egg-info")


class Described(NamedTuple):
    """A distribution as its metadata tells. requires: as it is written there."""

    name: str
    version: str
    requires: tuple[str, ...]


def describe(metadata: bytes) -> Described:
    """From a METADATA file, whose body, the readme, is not parsed."""
    head = email.parser.BytesHeaderParser().parsebytes(metadata)
    return Described(
        str(head["Name"] or ""), str(head["Version"] or ""), tuple(map(str, head.get_all("Requires-Dist", ())))
    )


def describe_folder(folder: str) -> Described | None:
    """From a directory NAME.dist-info, or NAME.egg-info of old; None for one that does not say. Raises OSError."""
    for name in ("METADATA", "PKG-INFO"):
        path = os.path.join(folder, name)
        if os.path.isfile(path) and not os.path.islink(path):
            with open(path, "rb") as metadata:
                return describe(metadata.read())
    return None


def describe_site(site: str) -> list[Described]:
    """The distributions in a directory that modules are imported from; none where there is none. Raises OSError."""
    if not os.path.isdir(site):
        return []
    folders = [os.path.join(site, name) for name in sorted(os.listdir(site)) if name.endswith(_DESCRIBING)]
    return [described for folder in folders if (described := describe_folder(folder)) is not None]


def check_consistent(
    distributions: Iterable[Described], beside: Iterable[Described], environment: Mapping[str, str]
) -> list[Finding]:
    """One finding for each requirement of `distributions` that is not met.

    beside: what else is found where they are imported, behind them. environment: the interpreter's values for the
    markers of requirements, by name.
    """
    own = list(distributions)
    versions: dict[str, str] = {canonicalize_name(one.name): one.version for one in (*beside, *own)}
    found = []
    for one in own:
        unmet = (_unmet(text, versions, environment) for text in one.requires)
        found += [Finding("conflict", f"{one.name} {one.version}", what) for what in unmet if what]
    return sorted(set(found))


def _unmet(text: str, versions: Mapping[str, str], environment: Mapping[str, str]) -> str:
    try:
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate({**environment, "extra": ""}):
            return ""
    except (InvalidRequirement, UndefinedComparison, UndefinedEnvironmentName) as error:
        return f"requires {text!r}, which cannot be understood: {str(error).splitlines()[0]}"
    version = versions.get(canonicalize_name(requirement.name))
    if version is None:
        return f"requires {requirement.name}, which is not installed"
    try:
        fits = requirement.specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        fits = not requirement.specifier
    return "" if fits else f"requires {requirement.name}{requirement.specifier}, and {version} is installed"
