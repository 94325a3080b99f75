"""The key of a dependency snapshot: everything that decides what an installation brings, and its SHA-256.

A key is a document in canonical JSON (ASCII, sorted keys, no spaces, no fractions), so equal inputs have equal bytes on
every host:

    bootseer     "deps-key", and `version` 2
    components   by name, those of `NAMES`, all of them; what each holds is told in docs/deps.md

Pure.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from imagefs.errors import FormatError
from imagefs.format import documents, is_digest

__all__ = ["NAMES", "VERSION", "Changes", "Key", "Value", "canonical", "changes", "diff", "explain", "told"]

VERSION = 2
"""The schema: raised whenever the same request is to have another key."""

NAMES = (
    "namespace",
    "base_image",
    "system",
    "libc",
    "python",
    "accelerator",
    "installers",
    "command",
    "files",
    "lock",
    "build",
    "environment",
    "indexes",
    "settings",
    "targets",
    "salt",
    "epoch",
    "unpinned",
)
"""The components, in the order in which people are told of them."""


Value = str | int | bool | None | Sequence["Value"] | Mapping[str, "Value"]
"""A value of a component: JSON without fractions, whose text would depend on who writes it."""

_V = TypeVar("_V")


class Key(NamedTuple):
    """The components that a snapshot was made from. Two requests may share a snapshot if and only if these are
    equal."""

    components: Mapping[str, Value]

    @property
    def digest(self) -> str:
        """The SHA-256 of `to_json`, in hexadecimal: the name of the snapshot in a store."""
        return documents.key_digest(self.to_document())

    @property
    def short(self) -> str:
        """As much of the digest as people are shown."""
        return self.digest[: documents.SHORT]

    def to_json(self) -> bytes:
        """The document. Raises FormatError for components that are none."""
        return canonical(self.to_document())

    def to_document(self) -> dict[str, Any]:
        """The same as plain values, to be put into another document."""
        return {"bootseer": "deps-key", "version": VERSION, "components": self.components}

    @classmethod
    def from_json(cls, data: bytes) -> Key:
        """The key in a document, canonical or not. Raises FormatError."""
        try:
            return cls.from_document(json.loads(data))
        except (ValueError, RecursionError) as error:
            raise FormatError("the document of a key is no JSON") from error

    @classmethod
    def from_document(cls, document: Any) -> Key:
        """The key that `to_document` made these values of. Raises FormatError."""
        if not isinstance(document, dict) or document.get("bootseer") != "deps-key":
            raise FormatError("this is not the document of a key", hint="`imagefs deps key --json` writes one")
        if document.get("version") != VERSION or isinstance(document["version"], bool):
            raise FormatError(f"the key is of version {document.get('version')!r}, which this program does not know")
        components = document.get("components")
        if not isinstance(components, dict) or set(document) != {"bootseer", "version", "components"}:
            raise FormatError("the document of a key is damaged")
        if set(components) != set(NAMES):
            raise FormatError("the document of a key lacks components, or has others than it may have")
        key = cls({name: components[name] for name in NAMES})
        key.to_json()
        return key


def canonical(value: Value) -> bytes:
    """The one text of these values. Raises FormatError for what has none: a fraction, or a name that is no text."""
    _check(value)
    return documents.canonical(value)


def _check(value: Any) -> None:
    if isinstance(value, Mapping):
        if not all(isinstance(name, str) for name in value):
            raise FormatError("a component of a key has a name that is no text")
        for inner in value.values():
            _check(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check(inner)
    elif not (value is None or isinstance(value, str | int)):
        raise FormatError(f"a component of a key holds a {type(value).__name__}, which it may not")


class Changes(NamedTuple, Generic[_V]):
    """Differences between two collections of named things, by name. changed: what it was and what it is."""

    added: Mapping[str, _V]
    removed: Mapping[str, _V]
    changed: Mapping[str, tuple[_V, _V]]

    def __bool__(self) -> bool:
        return any(self)


def changes(first: Mapping[str, _V], second: Mapping[str, _V]) -> Changes[_V]:
    """The changes that make `second` of `first`. Names come sorted."""
    return Changes(
        {name: second[name] for name in sorted(second.keys() - first.keys())},
        {name: first[name] for name in sorted(first.keys() - second.keys())},
        {
            name: (first[name], second[name])
            for name in sorted(first.keys() & second.keys())
            if first[name] != second[name]
        },
    )


def diff(first: Key, second: Key) -> Changes[Value]:
    """Differences between two keys, by the path of each single value, such as `files.requirements.txt`."""
    return changes(dict(_leaves(first.components)), dict(_leaves(second.components)))


def explain(key: Key) -> list[tuple[str, str]]:
    """Every component for people: its name, and what it holds, a line for each part. Digests are cut short."""
    lines = []
    for name in NAMES:
        leaves = list(_leaves(key.components[name])) or [("", "")]
        lines += [(name, f"{path} {told(value)}".lstrip()) for path, value in leaves]
    return lines


def told(value: Value) -> str:
    """One value on one line for people."""
    if isinstance(value, str):
        return (value[: documents.SHORT] if is_digest(value) else value) or "none"
    if isinstance(value, Sequence):
        return shlex.join(told(one) for one in value) or "none"
    return "none" if value is None else str(value)


def _leaves(value: Value, path: str = "") -> Iterator[tuple[str, Value]]:
    """The single values in it with their paths; a list of such is one itself."""
    if isinstance(value, Mapping):
        inner: Iterable[tuple[str, Value]] = value.items()
    elif isinstance(value, Sequence) and any(isinstance(one, list | tuple | Mapping) for one in value):
        inner = ((str(number), one) for number, one in enumerate(value, 1))
    else:
        yield path, value
        return
    for name, one in inner:
        yield from _leaves(one, f"{path}.{name}" if path else name)
