"""What the documents of a file that is being written say: the manifest of a striped version, the record of an fsync."""

from __future__ import annotations

from collections.abc import Sequence

from stripefs.format.lock_and_record import Record, RecordBase, RecordLink, RecordPart, RecordSegment
from stripefs.format.manifest import Manifest, Part, Segment
from stripefs.store.base import Status
from stripefs.write.contents import Contents
from stripefs.write.names import Names
from stripefs.write.policy import Layout
from stripefs.write.segments import Segment as Written
from stripefs.write.shipment import Shipment

__all__ = ["count_of", "manifest_of", "record_of"]


def manifest_of(
    names: Names, contents: Contents, unit: int, before: Sequence[Segment], generation: int, pool: bytes
) -> Manifest:
    """Of what is written behind the segments `before`. All parts must have flowed."""
    segments = (*before, *(_as_segment(segment, names.version) for segment in contents.segments))
    return Manifest(names.version, generation, unit, pool, segments)


def count_of(contents: Contents, *, head: Shipment | None, manifest: Manifest | None) -> int:
    """Segments that `record_of` names, from the first one."""
    if head is not None:
        return 1 if head.size else 0
    return len(_before(contents, manifest)) + len(contents.stands) + len(contents.segments)


def record_of(
    names: Names,
    contents: Contents,
    unit: int,
    *,
    head: Shipment | None,
    manifest: Manifest | None,
    published: Status | None,
    mode: int | None,
    start: int = 0,
    after: RecordLink | None = None,
) -> Record:
    """Of all that is written, from segment `start` on, which continues the record `after`. unit: 0 for what is not
    striped. head: what has all of it, if there is such a thing. manifest, published: of the file that is continued.
    """
    base = None
    if head is None and contents.layout is not Layout.STRIPED and contents.base is not None and published is not None:
        identity = published.identity
        base = RecordBase(identity.length, identity.mtime_ns, identity.file_id)
    if head is not None:
        segments = [_as_record(head.size, [head])] if head.size else []
    else:
        before = _before(contents, manifest)
        segments = [_as_named(each) for each in before[start:]]
        start = max(0, start - len(before))
        stands = contents.stands
        segments += [RecordSegment(each.length, (RecordPart(each.path, each.length),)) for each in stands[start:]]
        start = max(0, start - len(stands))
        segments += [_as_record(each.length, each.shipments) for each in contents.segments[start:]]
    layout = (contents.layout or Layout.PLAIN).value
    return Record(names.path, names.version, layout, unit, tuple(segments), base, mode, after)


def _before(contents: Contents, manifest: Manifest | None) -> tuple[Segment, ...]:
    return manifest.segments if manifest is not None and contents.layout is Layout.STRIPED else ()


def _as_named(segment: Segment) -> RecordSegment:
    parts = (RecordPart(part.path(), part.length, part.digest.hex()) for part in segment.parts)
    return RecordSegment(segment.length, tuple(parts))


def _as_record(length: int, shipments: list[Shipment]) -> RecordSegment:
    parts = (RecordPart(shipment.path, shipment.length, shipment.digest.hex()) for shipment in shipments)
    return RecordSegment(length, tuple(parts))


def _as_segment(segment: Written, version: str) -> Segment:
    shipments = segment.shipments
    return Segment(segment.length, tuple(Part(version, s.number, s.length, s.digest) for s in shipments))
