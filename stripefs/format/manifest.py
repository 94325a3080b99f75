"""Manifest of a striped file: it maps each byte of the file to a part (docs/format-striped.md).

A striped file is a chain of segments, each written at once: a segment of width K is cut into units, and unit i of it
lies in row i // K of its part i % K. Only the last unit of a segment may be short. An append adds a further segment, so
no part ever changes once a manifest names it. Behind its units every part carries a table of checksums
(`stripefs.format.blocks`); the digest in the manifest is that of the table, so manifest, table and bytes each vouch
for the next.

The manifest stands at the file's own name and bears a mark that no user of a mount can give a file: the block size
MANIFEST_BLOCK_SIZE, or what a store keeps in its place. The mark alone tells it from other files, since users may have
files of any bytes, manifests of other sources among them. A file that bears the mark and is no whole manifest is
damaged. The length (`may_be_manifest`) finds manifests that lost their mark in a copy.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from stripefs.errors import StoreError
from stripefs.format import reserved_names
from stripefs.format.blocks import CHECK, DIGEST, SUM, PartTable, check_sums, digest_of, table_length

__all__ = [
    "CHECK",
    "DIGEST",
    "MAGIC",
    "MANIFEST_BLOCK_SIZE",
    "MANIFEST_MAX",
    "MAX_LENGTH",
    "MAX_PARTS",
    "STRIPED_ID",
    "SUM",
    "UNIT",
    "Manifest",
    "ManifestError",
    "ManifestHeader",
    "Part",
    "PartTable",
    "Piece",
    "Segment",
    "check_sums",
    "digest_of",
    "may_be_manifest",
    "part_data",
    "table_length",
]

UNIT = 4 << 20
"""Bytes of a unit unless said otherwise: 8 of them in a window of 64 MiB keep 8 hosts busy, and leave room."""

MAGIC = b"STRIPEFS\0\r\n\x1a"
"""Magic bytes of a manifest. No text file holds them, and a transfer that mends line ends spoils it."""

STRIPED_ID = re.compile(r":[0-9a-f]{16}\.[0-9]+\Z")
"""Suffix of the ids of striped files: version and generation, which no other file has."""

FORMAT = 1

MANIFEST_MAX = 1 << 16
"""Bytes of a manifest at most: one small read."""

LENGTH_STEP, LENGTH_REST = 4096, 1789
"""A manifest's length leaves LENGTH_REST when divided by LENGTH_STEP; zeros before its checksum make it so."""

MANIFEST_BLOCK_SIZE = (1 << 20) + 4096
"""Block size that manifests are written with, which marks them: `hdfs dfs -stat %o` shows it, `distcp -pb` keeps it. A
multiple of 512 as HDFS wants it, and above the least block size it allows (1 MiB), so no cluster has it as its own."""

MAX_PARTS = 100_000
"""Parts of one file: 6 TiB in parts of 64 MiB, and a list of 4 MB."""

MAX_LENGTH = 1 << 62
MAX_POOL = 4096
UNIT_STEP, MAX_UNIT = 4096, 1 << 30

_OUTSIDE = 1  # flag: the list of segments and parts is an object of the pool

_HEAD = struct.Struct("<12sHHQIIQIIHH16s")
_SEGMENT = struct.Struct("<QII")
_PART = struct.Struct("<QIIQ16s")


class ManifestError(StoreError):
    """A manifest that cannot be used: damaged, or newer than this program."""


@dataclass(frozen=True, slots=True)
class Part:
    """One object of the pool, `VERSION/NUMBER`. length: bytes of the object, its table included.

    digest: `digest_of` its table of checksums.
    """

    version: str
    number: int
    length: int
    digest: bytes

    def path(self, pool: bytes = reserved_names.POOL) -> bytes:
        """The part's place, as a path of the store whose pool this is."""
        return reserved_names.pool_part(self.version, self.number, pool)


@dataclass(frozen=True, slots=True)
class Segment:
    """`length` bytes of the file, round-robin over `parts`. At least one byte, and no part without a unit."""

    length: int
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes [offset, offset + length) of the file, within one unit: they lie in part `part` from `part_offset` on.

    part: index among all parts of the manifest. The whole unit is [unit_offset, unit_offset + unit_length) of the
    file.
    """

    offset: int
    length: int
    part: int
    part_offset: int
    unit_offset: int
    unit_length: int


def part_data(segment_length: int, width: int, index: int, unit: int) -> int:
    """Bytes of units, without the table, in part `index` of a segment of `segment_length` bytes over `width` parts."""
    units, rest = divmod(segment_length, unit)
    rows, over = divmod(units, width)
    return rows * unit + (unit if index < over else rest if index == over else 0)


def may_be_manifest(length: int) -> bool:
    """True if a file of `length` bytes can be a manifest."""
    return length % LENGTH_STEP == LENGTH_REST and length <= MANIFEST_MAX


@dataclass(frozen=True, slots=True)
class ManifestHeader:
    """A manifest without its list: enough for a listing. Fields as in `Manifest`.

    list_digest: the digest of the list of `list_length` bytes; outside: it is not in the manifest but in the pool.
    """

    version: str
    generation: int
    unit: int
    length: int
    pool: bytes
    segments: int
    parts: int
    list_digest: bytes
    outside: bool

    @property
    def list_length(self) -> int:
        return self.segments * _SEGMENT.size + self.parts * _PART.size

    def list_path(self, pool: bytes = reserved_names.POOL) -> bytes:
        """The place of the list when it is outside, as a path of the store whose pool this is."""
        return reserved_names.list_path(self.version, self.list_digest, pool)

    @classmethod
    def from_bytes(cls, data: bytes) -> ManifestHeader:
        """The heading of the manifest that `data` is all of. Raises ManifestError for anything else."""
        _demand(data.startswith(MAGIC), "it does not begin as a manifest")
        if len(data) < _HEAD.size + DIGEST:
            raise ManifestError("the manifest is cut short")
        _, form, flags, version, generation, unit, length, segments, parts, pool, zero, digest = _HEAD.unpack_from(data)
        if form > FORMAT:
            raise ManifestError(
                f"the manifest has format {form}, this program knows {FORMAT}", hint="use a newer stripefs"
            )
        if not may_be_manifest(len(data)) or digest_of(data[:-DIGEST]) != data[-DIGEST:]:
            raise ManifestError("the manifest is damaged: its checksum does not fit")
        path = data[_HEAD.size : _HEAD.size + pool]
        heading = cls(
            f"{version:016x}", generation, unit, length, path, segments, parts, digest, bool(flags & _OUTSIDE)
        )
        inside = 0 if heading.outside else heading.list_length
        begin, end = _HEAD.size + pool, len(data) - DIGEST
        _demand(form == FORMAT and not flags & ~_OUTSIDE and not zero, "fields that must be 1 or 0 are not")
        _demand(begin + inside <= end, "its counts are more than it holds")
        behind = data[begin + inside : end]  # compared as a whole: `any` would take most of what a heading takes
        _demand(behind == bytes(len(behind)), "it has bytes behind its end")
        _demand(segments <= parts <= MAX_PARTS, "it has too many parts or segments")
        _check_shape(unit, length, path)
        return heading


@dataclass(frozen=True)
class Manifest:
    """One published version of a striped file.

    version: 16 hexadecimal digits, new for every writer that opened the file. generation: counts what that writer
    published, from 0. unit: bytes, a multiple of 4096. pool: where the parts lie, an absolute path on the service
    (`StripedStore.pool` of the mount that wrote them). segments: oldest first.

    Raises ManifestError when made of values that do not fit together.
    """

    version: str
    generation: int
    unit: int
    pool: bytes
    segments: tuple[Segment, ...]

    def __post_init__(self) -> None:
        _demand(reserved_names.is_version(self.version), "its version is none")
        _demand(0 <= self.generation < 1 << 32, "its generation is too large")
        _demand(len(self.parts) <= MAX_PARTS, "it has too many parts")
        _check_shape(self.unit, self.length, self.pool)
        for segment in self.segments:
            _check_segment(segment, self.unit)
        names = {(part.version, part.number) for part in self.parts}
        _demand(len(names) == len(self.parts), "it names a part twice")

    @cached_property
    def length(self) -> int:
        """Bytes of the file."""
        return sum(segment.length for segment in self.segments)

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """All parts, segment by segment."""
        return tuple(part for segment in self.segments for part in segment.parts)

    @cached_property
    def versions(self) -> frozenset[str]:
        """The folders of the pool that it needs: its own, and those of the versions that it continues."""
        return frozenset({self.version, *(part.version for part in self.parts)})

    @cached_property
    def _starts(self) -> Sequence[int]:
        """Offsets of the segments in the file, and the file's end."""
        return list(accumulate((segment.length for segment in self.segments), initial=0))

    @cached_property
    def _first_parts(self) -> Sequence[int]:
        return list(accumulate((len(segment.parts) for segment in self.segments), initial=0))

    def pieces(self, offset: int, length: int) -> Iterator[Piece]:
        """The pieces that hold the bytes [offset, offset + length), cut to the file; in order, none across a unit's
        end.

        Finding the first takes O(log segments).
        """
        end = min(offset + length, self.length)
        index = bisect_right(self._starts, offset) - 1
        while offset < end:
            segment, start = self.segments[index], self._starts[index]
            unit, into = divmod(offset - start, self.unit)
            row, column = divmod(unit, len(segment.parts))
            unit_offset = offset - into
            unit_length = min(self.unit, start + segment.length - unit_offset)
            take = min(unit_length - into, end - offset)
            part = self._first_parts[index] + column
            yield Piece(offset, take, part, row * self.unit + into, unit_offset, unit_length)
            offset += take
            index += offset == start + segment.length

    def data_length(self, part: int) -> int:
        """Bytes of units in `parts[part]`, in front of its table. Raises IndexError."""
        if not 0 <= part < len(self.parts):
            raise IndexError(f"the file has no part {part}")
        index = bisect_right(self._first_parts, part) - 1
        segment = self.segments[index]
        return part_data(segment.length, len(segment.parts), part - self._first_parts[index], self.unit)

    def width(self, part: int) -> int:
        """Number of parts of the segment of `parts[part]`."""
        return len(self.segments[bisect_right(self._first_parts, part) - 1].parts)

    # -- bytes -------------------------------------------------------------------------------------------------------

    def _list(self) -> bytes:
        segments = (_SEGMENT.pack(segment.length, len(segment.parts), 0) for segment in self.segments)
        parts = (_PART.pack(int(part.version, 16), part.number, 0, part.length, part.digest) for part in self.parts)
        return b"".join((*segments, *parts))

    def _outside(self, size: int) -> bool:
        return _HEAD.size + len(self.pool) + size + DIGEST > MANIFEST_MAX - LENGTH_STEP + LENGTH_REST

    def to_bytes(self) -> bytes:
        """The document for the file's own name: at most 64 KiB, its length one that `may_be_manifest` knows.

        A list that does not fit is left out: `parts_list` answers it then.
        """
        listed = self._list()
        outside = self._outside(len(listed))
        head = _HEAD.pack(
            MAGIC,
            FORMAT,
            _OUTSIDE if outside else 0,
            int(self.version, 16),
            self.generation,
            self.unit,
            self.length,
            len(self.segments),
            len(self.parts),
            len(self.pool),
            0,
            digest_of(listed),
        )
        body = head + self.pool + (b"" if outside else listed)
        body += bytes((LENGTH_REST - len(body) - DIGEST) % LENGTH_STEP)
        return body + digest_of(body)

    def parts_list(self) -> tuple[bytes, bytes] | None:
        """(path in the store, bytes) of the pool's object to write before the manifest; None where it needs none."""
        listed = self._list()
        if not self._outside(len(listed)):
            return None
        return reserved_names.list_path(self.version, digest_of(listed)), listed

    @classmethod
    def from_bytes(cls, data: bytes, parts_list: bytes | None = None) -> Manifest:
        """The inverse of `to_bytes`; `parts_list` is needed when the heading says that the list is outside.

        Raises ManifestError with one line that says what is wrong.
        """
        heading = ManifestHeader.from_bytes(data)
        begin = _HEAD.size + len(heading.pool)
        listed = (parts_list or b"") if heading.outside else data[begin : begin + heading.list_length]
        _demand(len(listed) == heading.list_length, "its list has not the length it should have")
        _demand(digest_of(listed) == heading.list_digest, "its list has another digest")
        segments = _read_list(listed, heading)
        manifest = cls(heading.version, heading.generation, heading.unit, heading.pool, segments)
        _demand(manifest.length == heading.length, "its segments do not add up to its length")
        return manifest


def _read_list(listed: bytes, heading: ManifestHeader) -> tuple[Segment, ...]:
    middle = heading.segments * _SEGMENT.size
    parts = []
    for version, number, zero, length, digest in _PART.iter_unpack(listed[middle:]):
        _demand(not zero, "fields that must be 0 are not")
        parts.append(Part(f"{version:016x}", number, length, digest))
    segments: list[Segment] = []
    at = 0
    for length, width, zero in _SEGMENT.iter_unpack(listed[:middle]):
        _demand(not zero, "fields that must be 0 are not")
        _demand(width <= len(parts) - at, "its segments have more parts than it lists")
        segments.append(Segment(length, tuple(parts[at : at + width])))
        at += width
    _demand(at == len(parts), "it lists parts of no segment")
    return tuple(segments)


def _check_shape(unit: int, length: int, pool: bytes) -> None:
    _demand(0 < unit <= MAX_UNIT and unit % UNIT_STEP == 0, f"units of {unit} bytes are none")
    _demand(0 <= length <= MAX_LENGTH, "the file is too long")
    components = pool.split(b"/")
    _demand(len(pool) <= MAX_POOL and b"\0" not in pool, "its pool is no path")
    _demand(len(components) > 1 and not components[0], "its pool is no absolute path")
    _demand(components[-1] == reserved_names.POOL_NAME, "its pool is none")
    _demand(not {b"", b".", b".."} & set(components[1:]), "its pool is no plain path")


def _check_segment(segment: Segment, unit: int) -> None:
    width = len(segment.parts)
    _demand(1 <= segment.length <= MAX_LENGTH, "a segment has a length that is none")
    _demand(1 <= width <= -(-segment.length // unit), "a segment has parts without bytes, or none")
    for index, part in enumerate(segment.parts):
        data = part_data(segment.length, width, index, unit)
        _demand(part.length == data + table_length(data, unit), "a part has not the length that its units need")
        _demand(
            reserved_names.is_version(part.version) and 0 <= part.number < 1 << 32, "a part has a name that is none"
        )
        _demand(len(part.digest) == DIGEST, "a part has no digest")


def _demand(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ManifestError(f"the manifest is damaged: {otherwise}")
