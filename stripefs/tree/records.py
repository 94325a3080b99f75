"""How the fields of journal records are packed: little endian, texts as a 16-bit length and the bytes. Pure."""

from __future__ import annotations

import struct

from stripefs.store.base import Kind, Status

__all__ = ["KINDS", "KIND_NUMBER", "RecordReader", "pack_bytes", "pack_status", "unpack_status"]

KINDS = (Kind.FILE, Kind.DIRECTORY, Kind.SYMLINK, Kind.OTHER)
KIND_NUMBER = {kind: number for number, kind in enumerate(KINDS)}

_STATUS = struct.Struct("<BQqqIQII")
_LENGTH = struct.Struct("<H")


class RecordReader:
    __slots__ = ("_at", "_payload")

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._at = 0

    def more(self) -> bool:
        return self._at < len(self._payload)

    def take(self, size: int) -> bytes:
        self._at += size
        return self._payload[self._at - size : self._at]

    def unpack(self, form: struct.Struct) -> tuple[int, ...]:
        self._at += form.size
        return form.unpack_from(self._payload, self._at - form.size)

    def text(self) -> bytes:
        return self.take(*self.unpack(_LENGTH))


def pack_bytes(text: bytes) -> bytes:
    return _LENGTH.pack(len(text)) + text


def pack_status(status: Status) -> bytes:
    return b"".join(
        (
            _STATUS.pack(
                KIND_NUMBER[status.kind],
                status.length,
                status.mtime_ns,
                status.atime_ns,
                status.mode,
                status.block_size,
                status.replication,
                status.links,
            ),
            pack_bytes(status.name),
            pack_bytes(status.owner.encode(errors="surrogateescape")),
            pack_bytes(status.group.encode(errors="surrogateescape")),
            pack_bytes(status.file_id.encode()),
        )
    )


def unpack_status(reader: RecordReader) -> Status:
    kind, length, mtime_ns, atime_ns, mode, block_size, replication, links = reader.unpack(_STATUS)
    return Status(
        name=reader.text(),
        kind=KINDS[kind],
        length=length,
        mtime_ns=mtime_ns,
        atime_ns=atime_ns,
        mode=mode,
        owner=reader.text().decode(errors="surrogateescape"),
        group=reader.text().decode(errors="surrogateescape"),
        file_id=reader.text().decode(),
        block_size=block_size,
        replication=replication,
        links=links,
    )
