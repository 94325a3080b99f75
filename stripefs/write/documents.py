"""What the documents of a file that is being written say: the manifest of a striped version, the record of an fsync."""

from __future__ import annotations

from collections.abc import Sequence

from stripefs.layout.record import Base, Record, RecordPart, RecordSegment
from stripefs.layout.striped import Manifest, Part, Segment
from stripefs.store.base import Status
from stripefs.write.contents import Contents
from stripefs.write.names import Names
from stripefs.write.policy import Layout
from stripefs.write.segments import Segment as Written
from stripefs.write.shipment import Shipment

__all__ = ["manifest_of", "record_of"]


def manifest_of(
    names: Names, contents: Contents, unit: int, before: Sequence[Segment], generation: int, pool: bytes
) -> Manifest:
    """Of what is written behind the segments `before`. All parts must have flowed."""
    segments = (*before, *(_as_segment(segment, names.version) for segment in contents.segments))
    return Manifest(names.version, generation, unit, pool, segments)


def record_of(
    names: Names,
    contents: Contents,
    unit: int,
    *,
    head: Shipment | None,
    manifest: Manifest | None,
    published: Status | None,
    mode: int | None,
) -> Record:
    """Of all that is written. unit: 0 for what is not striped. head: what has all of it, if there is such a thing.

    manifest, published: of the file that the contents continue.
    """
    segments: list[RecordSegment] = []
    base = None
    if head is not None:
        if head.size:
            segments.append(_as_record(head.size, [head]))
    elif contents.layout is Layout.STRIPED:
        for segment in manifest.segments if manifest is not None else ():
            parts = tuple(RecordPart(part.path(), part.length, part.digest.hex()) for part in segment.parts)
            segments.append(RecordSegment(segment.length, parts))
    elif contents.base is not None and published is not None:
        identity = published.identity
        base = Base(identity.length, identity.mtime_ns, identity.file_id)
    segments += [RecordSegment(each.length, (RecordPart(each.path, each.length),)) for each in contents.stands]
    segments += [_as_record(segment.length, segment.shipments) for segment in contents.segments]
    layout = (contents.layout or Layout.PLAIN).value
    return Record(names.path, names.version, layout, unit, tuple(segments), base, mode)


def _as_record(length: int, shipments: list[Shipment]) -> RecordSegment:
    parts = (RecordPart(shipment.path, shipment.length, shipment.digest.hex()) for shipment in shipments)
    return RecordSegment(length, tuple(parts))


def _as_segment(segment: Written, version: str) -> Segment:
    shipments = segment.shipments
    return Segment(segment.length, tuple(Part(version, s.number, s.length, s.digest) for s in shipments))
