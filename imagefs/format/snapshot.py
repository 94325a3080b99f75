"""The document of a dependency snapshot: what it was installed from, and which image holds what came of it. The caches
that a job's start filled are a snapshot of their own kind.

Canonical JSON (ASCII, sorted keys, no spaces), named by the SHA-256 of its key, itself as canonical JSON:

    bootseer   "deps", and `version` 1
    key        everything that the installation depended on, any JSON
    image      the digest of the image; the `source` in its manifest is the name of this document
    kind       "host" for a directory, "container" for what was changed in a container, "cache" for start-up caches
    targets    the absolute paths that were installed to, one for a host and for caches
    made       `at`, seconds since 1970, and `seconds`, how long the installation took
    findings   lines for people: what was noticed and no reason not to publish
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Literal, get_args

from imagefs.errors import FormatError, UnknownVersion
from imagefs.format import first_line, is_digest

__all__ = ["SHORT", "Snapshot", "SnapshotKind", "canonical", "key_digest"]

VERSION = 1

SHORT = 12
"""Digits of a key that people are shown."""

SnapshotKind = Literal["host", "container", "cache"]

_LATEST = 1e11
"""Seconds since 1970, in the year 5138: what is later no calendar can tell."""


def canonical(value: Any) -> bytes:
    """A JSON value as canonical JSON. Raises FormatError for what is none."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise FormatError(f"a key of a snapshot is no JSON: {first_line(error)}") from error


def key_digest(key: Any) -> str:
    """The name of the snapshot with this key."""
    return hashlib.sha256(canonical(key)).hexdigest()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A dependency snapshot. made_at in seconds since 1970, made_seconds as long as the installation took."""

    key: Any
    image: str
    kind: SnapshotKind
    targets: tuple[str, ...]
    made_at: float
    made_seconds: float
    findings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Under which it is stored."""
        return key_digest(self.key)

    def to_json(self) -> bytes:
        """The document. Raises FormatError for a key that is no JSON."""
        document = {
            "bootseer": "deps",
            "version": VERSION,
            "key": self.key,
            "image": self.image,
            "kind": self.kind,
            "targets": list(self.targets),
            "made": {"at": self.made_at, "seconds": self.made_seconds},
            "findings": list(self.findings),
        }
        return canonical(document)

    @classmethod
    def from_json(cls, data: bytes, name: str) -> Snapshot:
        """The inverse of `to_json` for the document under `name`. Raises FormatError."""
        try:
            document = json.loads(data)
            if document["bootseer"] != "deps":
                raise FormatError("this document is no dependency snapshot")
            if document["version"] != VERSION:
                raise UnknownVersion(
                    f"a dependency snapshot of version {document['version']!r}, which this program does not know"
                )
            made = document["made"]
            snapshot = cls(
                document["key"],
                document["image"],
                document["kind"],
                tuple(document["targets"]),
                made["at"],
                made["seconds"],
                tuple(document["findings"]),
            )
            if snapshot.name != name:
                raise FormatError(f"the snapshot {name[:12]} holds the key of another one")
            _check(snapshot)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise FormatError(f"the snapshot {name[:12]} is damaged: {first_line(error)}") from error
        return snapshot


def _check(snapshot: Snapshot) -> None:
    if not isinstance(snapshot.image, str) or not is_digest(snapshot.image):
        raise FormatError("the snapshot names no image")
    if snapshot.kind not in get_args(SnapshotKind):
        raise FormatError(f"the snapshot is of kind {snapshot.kind!r}, which this program does not know")
    texts = (*snapshot.targets, *snapshot.findings)
    if not all(isinstance(one, str) for one in texts) or not all(one.startswith("/") for one in snapshot.targets):
        raise FormatError("the snapshot has a target that is no absolute path")
    if not snapshot.targets or (snapshot.kind != "container" and len(snapshot.targets) != 1):
        raise FormatError("the snapshot of a host, or of caches, must have one target")
    times = (snapshot.made_at, snapshot.made_seconds)
    if not all(isinstance(one, int | float) and not isinstance(one, bool) and 0 <= one < _LATEST for one in times):
        raise FormatError("the snapshot does not say when it was made")
