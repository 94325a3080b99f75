"""Striped files: which byte lies in which part, and the manifest that says so (docs/format-striped.md).

A striped file is a chain of segments, each written at once: a segment of width K is cut into units, and unit i of it
lies in row i // K of its part i % K. Only the last unit of a segment may be short. What is appended later is a further
segment, so no part ever changes once a manifest names it. Behind its units every part carries a table of checksums,
one for each check (`CHECK` bytes counted from a unit's start, shorter at its end); the digest in the manifest is that
of the table, so manifest, table and bytes each vouch for the next.

The manifest stands at the file's own name. Its length alone (`may_be_manifest`) tells all but one in 4096 other small
files apart without opening them, on every store.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import xxhash

from stripefs.layout import hidden
from stripefs.layout.blocks import CHUNK

__all__ = [
    "CHECK",
    "DIGEST",
    "MANIFEST_BLOCK_SIZE",
    "MAX_PARTS",
    "SUM",
    "UNIT",
    "Manifest",
    "Part",
    "PartTable",
    "Piece",
    "Segment",
    "check_sums",
    "part_length",
    "table_length",
]

UNIT = 4 << 20
"""Bytes of a unit unless said otherwise: 8 of them in a window of 64 MiB keep 8 hosts busy and leave room for the next."""

CHECK = CHUNK
"""Bytes that one checksum covers: what is fetched is whole chunks, so whatever arrives can be verified."""

SUM = 8
"""Bytes of a checksum in a part's table: xxh3-64, big-endian as everywhere in xxhash's canonical form."""

DIGEST = 16
"""Bytes of a digest: xxh3-128."""

MANIFEST_BLOCK_SIZE = (1 << 20) + 4096
"""Block size that manifests are written with where the store has one, so that `hdfs dfs -stat %o` shows what they are.
A multiple of 512 as HDFS wants it, and above the least block size it allows (1 MiB). Readers do not demand it, since
copies lose it."""

MAX_PARTS = 100_000
"""Parts of one file: 6 TiB in parts of 64 MiB."""

MAX_LENGTH = 1 << 62
UNIT_STEP = 4096
MAX_UNIT = 1 << 30


@dataclass(frozen=True, slots=True)
class Part:
    """One object of the pool, `VERSION/NUMBER`. length: bytes of the object, its table included.

    digest: xxh3-128 of its table of checksums, 16 bytes.
    """

    version: str
    number: int
    length: int
    digest: bytes

    def path(self, pool: bytes = hidden.POOL) -> bytes:
        """Where it lies, as a path of the store whose pool this is."""
        return hidden.pool_part(self.version, self.number, pool)


@dataclass(frozen=True, slots=True)
class Segment:
    """`length` bytes of the file, round-robin over `parts`. At least one byte, and no part without a unit."""

    length: int
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes [offset, offset + length) of the file, within one unit: they lie in part `part` from `part_offset` on.

    part: index among all parts of the manifest. unit_offset, unit_length: the whole unit in the file, and
    part_offset - (offset - unit_offset) is where that begins in the part.
    """

    offset: int
    length: int
    part: int
    part_offset: int
    unit_offset: int
    unit_length: int


@dataclass(frozen=True)
class Manifest:
    """One published version of a striped file.

    version: 16 hexadecimal digits, new for every writer that opened the file. generation: counts what one writer
    published, from 0. unit: bytes, a multiple of 4096. pool: where the parts lie, an absolute path on the service
    (`StripedStore.pool` of the mount that wrote them). segments: oldest first.

    Raises ValueError when made of values that do not fit together.
    """

    version: str
    generation: int
    unit: int
    pool: bytes
    segments: tuple[Segment, ...]

    @cached_property
    def length(self) -> int:
        """Bytes of the file."""
        return sum(segment.length for segment in self.segments)

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """All parts, segment by segment."""
        return tuple(part for segment in self.segments for part in segment.parts)

    def part_of(self, unit: int) -> int:
        """Which of `parts` holds the unit with this number, counted from the start of the file. Raises IndexError."""
        raise NotImplementedError

    def pieces(self, offset: int, length: int) -> Iterator[Piece]:
        """What the bytes [offset, offset + length), cut to the file, lie in; in order, none across a unit's end."""
        raise NotImplementedError

    def to_bytes(self) -> bytes:
        """The document for the file's own name: at most 64 KiB, its length one that `may_be_manifest` knows.

        A part list that does not fit is left out: `parts_list` answers it then.
        """
        raise NotImplementedError

    def parts_list(self) -> tuple[bytes, bytes] | None:
        """(path in the store, bytes) of the pool object to write before the manifest; None where it needs none."""
        raise NotImplementedError

    @classmethod
    def from_bytes(cls, data: bytes, parts_list: bytes | None = None) -> Manifest:
        """Raises ManifestError (a StoreError) with one line that says what is wrong."""
        raise NotImplementedError


class PartTable:
    """The checksums of one part while its bytes are written, unit after unit.

    `add` every byte of the part in order; then `finish` answers the table to write behind them, and `digest`.
    """

    def __init__(self, unit: int) -> None:
        self._unit = unit

    def add(self, data: bytes | bytearray | memoryview) -> None:
        raise NotImplementedError

    def finish(self) -> bytes:
        raise NotImplementedError


def check_sums(data: bytes | bytearray | memoryview) -> bytes:
    """The checksums of bytes that begin at a unit's or a check's start and do not cross a unit's end."""
    view = memoryview(data)
    return b"".join(xxhash.xxh3_64_digest(view[at : at + CHECK]) for at in range(0, len(view), CHECK))


def table_length(data_length: int, unit: int) -> int:
    """Bytes of the table behind `data_length` bytes of a part."""
    units, rest = divmod(data_length, unit)
    return SUM * (units * -(-unit // CHECK) + -(-rest // CHECK))


def part_length(segment_length: int, width: int, index: int, unit: int) -> int:
    """Bytes of units (without table) in part `index` of a segment of `segment_length` bytes over `width` parts."""
    units, rest = divmod(segment_length, unit)
    rows, over = divmod(units, width)
    return rows * unit + (unit if index < over else rest if index == over else 0)
