"""Documents that writers keep beside a file: the record of the bytes that `fsync` made durable, and the lock.

Both are three parts of ASCII text:

    STRIPEFS-RECORD 1              or STRIPEFS-LOCK 1: its kind, and the version of this format; STRIPEFS-RECORD 2 for
                                   a record that continues another one
    {...}                          one line of JSON, keys sorted, no spaces
    0123456789abcdef…              xxh3-128 of the two lines above with their line ends, 32 hex digits, and a line end

Paths are percent-encoded bytes. A reader refuses another version, a wrong sum, a missing or unknown key.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote_from_bytes, unquote_to_bytes

import xxhash

from stripefs.errors import StoreError

__all__ = [
    "LEASE",
    "DocumentError",
    "LockDocument",
    "Record",
    "RecordBase",
    "RecordLink",
    "RecordPart",
    "RecordSegment",
    "digest_of",
]

LEASE = 60.0
"""Seconds after its lock's last renewal, by the store's clock, that a writer counts as dead."""

_RECORD = "STRIPEFS-RECORD 1"
_CONTINUED = "STRIPEFS-RECORD 2"
_LOCK = "STRIPEFS-LOCK 1"
_LARGEST = 64 << 20
"""Bytes of a record: 100,000 parts have about 10 MiB."""


class DocumentError(StoreError):
    """A record or lock that cannot be read; the message says why."""


@dataclass(frozen=True, slots=True)
class RecordPart:
    """One object of the store: its absolute path, its bytes (a striped part's table included).

    digest: that of a striped part's table, 32 hex digits; "" for concat and plain parts.
    """

    path: bytes
    length: int
    digest: str = ""


@dataclass(frozen=True, slots=True)
class RecordSegment:
    """`length` bytes of the file: a striped segment, or one concat part, whole."""

    length: int
    parts: tuple[RecordPart, ...]


@dataclass(frozen=True, slots=True)
class RecordBase:
    """Identity of the published file that the segments continue."""

    length: int
    mtime_ns: int
    file_id: str


@dataclass(frozen=True, slots=True)
class RecordLink:
    """A record that another one continues: its number, and its `digest_of`."""

    number: int
    digest: str


@dataclass(frozen=True, slots=True)
class Record:
    """The durable bytes of one version.

    layout: concat, striped or plain. unit: of striped segments, else 0. base: the file that the segments continue; None
    when they are the file from its start. mode: permission bits for the file, None for the store's default. after: the
    record that has the segments before these, None where these are all.
    """

    path: bytes
    version: str
    layout: str
    unit: int
    segments: tuple[RecordSegment, ...]
    base: RecordBase | None = None
    mode: int | None = None
    after: RecordLink | None = None

    @property
    def length(self) -> int:
        """Durable bytes of the file, those of `base` included, where it continues no other record."""
        return sum(segment.length for segment in self.segments) + (self.base.length if self.base else 0)

    def to_bytes(self) -> bytes:
        base = None if self.base is None else [self.base.length, self.base.mtime_ns, self.base.file_id]
        segments = [[s.length, [[_text(p.path), p.length, p.digest] for p in s.parts]] for s in self.segments]
        content: dict[str, Any] = {
            "base": base,
            "layout": self.layout,
            "mode": self.mode,
            "path": _text(self.path),
            "segments": segments,
            "unit": self.unit,
            "version": self.version,
        }
        if self.after is None:
            return _document(_RECORD, content)
        return _document(_CONTINUED, {**content, "after": [self.after.number, self.after.digest]})

    @classmethod
    def from_bytes(cls, data: bytes) -> Record:
        """Raises DocumentError."""
        keys = {"base", "layout", "mode", "path", "segments", "unit", "version"}
        continued = data.startswith(_CONTINUED.encode() + b"\n")
        found = _parsed(_CONTINUED, data, {*keys, "after"}) if continued else _parsed(_RECORD, data, keys)
        try:
            number, digest = found["after"] if continued else (0, "")
            base = found["base"]
            segments = tuple(_segment(length, parts) for length, parts in found["segments"])
            mode = found["mode"]
            record = cls(
                unquote_to_bytes(_string(found["path"])),
                _string(found["version"]),
                _string(found["layout"]),
                _size(found["unit"]),
                segments,
                None if base is None else RecordBase(_size(base[0]), _size(base[1]), _string(base[2])),
                None if mode is None else _size(mode),
                RecordLink(_size(number), _string(digest)) if continued else None,
            )
        except (TypeError, ValueError, LookupError) as error:
            raise DocumentError(f"the record does not hold together: {error}") from error
        if record.layout not in ("concat", "striped", "plain"):
            raise DocumentError(f"the record names a layout {record.layout!r} that this program does not know")
        return record


@dataclass(frozen=True, slots=True)
class LockDocument:
    """The writer of the file at `path`. owner is unique to one upload; where and since are for people.

    versions: all those whose hidden things belong to this writer, so that gc spares them.
    """

    owner: str
    path: bytes
    versions: tuple[str, ...]
    where: str = ""
    since: str = ""

    def to_bytes(self, blanks: int = 0) -> bytes:
        """blanks: behind the text; they mean nothing."""
        return _document(
            _LOCK,
            {
                "owner": self.owner,
                "path": _text(self.path),
                "since": self.since,
                "versions": list(self.versions),
                "where": self.where,
            },
            blanks,
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> LockDocument:
        """Raises DocumentError."""
        found = _parsed(_LOCK, data, {"owner", "path", "since", "versions", "where"})
        try:
            return cls(
                _string(found["owner"]),
                unquote_to_bytes(_string(found["path"])),
                tuple(_string(version) for version in found["versions"]),
                _string(found["where"]),
                _string(found["since"]),
            )
        except (TypeError, ValueError) as error:
            raise DocumentError(f"the lock does not hold together: {error}") from error


def digest_of(document: bytes) -> str:
    """The sum at the end of a document, as it says itself."""
    return document[-33:-1].decode("ascii", "replace")


def _segment(length: object, parts: list[Any]) -> RecordSegment:
    found = tuple(RecordPart(unquote_to_bytes(_string(p)), _size(n), _string(d)) for p, n, d in parts)
    return RecordSegment(_size(length), found)


def _text(path: bytes) -> str:
    return quote_from_bytes(path)


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _size(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError(f"{value!r} is no size")
    return value


def _document(title: str, content: dict[str, Any], blanks: int = 0) -> bytes:
    text = json.dumps(content, sort_keys=True, separators=(",", ":")) + " " * blanks
    body = f"{title}\n{text}\n".encode("ascii")
    return body + xxhash.xxh3_128_hexdigest(body).encode() + b"\n"


def _parsed(title: str, data: bytes, keys: set[str]) -> dict[str, Any]:
    if len(data) > _LARGEST:
        raise DocumentError(f"the document has {len(data)} bytes, more than any that was written")
    lines = bytes(data).split(b"\n")
    if lines[0] != title.encode():
        raise DocumentError(f"the document begins with {lines[0][:40]!r}, not with {title!r}")
    if len(lines) != 4 or lines[3]:
        raise DocumentError("the document has been cut short or added to")
    body = b"\n".join(lines[:2]) + b"\n"
    if xxhash.xxh3_128_hexdigest(body).encode() != lines[2]:
        raise DocumentError("the document's sum does not match its text")
    try:
        found = json.loads(lines[1])
    except ValueError as error:
        raise DocumentError(f"the document's text is no JSON: {error}") from error
    if not isinstance(found, dict) or found.keys() != keys:
        raise DocumentError("the document has other keys than this program knows")
    return found
