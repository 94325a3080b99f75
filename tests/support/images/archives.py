"""Tar archives byte by byte: every dialect, and headers that no honest program would write."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = [
    "CHARACTER",
    "DEVICE",
    "DIRECTORY",
    "END",
    "FIFO",
    "GNU",
    "LINK",
    "REGULAR",
    "SYMLINK",
    "USTAR",
    "V7",
    "file",
    "gnu_sparse",
    "header",
    "long",
    "member",
    "pax",
    "pax_sparse",
    "records",
]

BLOCK = 512
END = bytes(2 * BLOCK)

USTAR, GNU, V7 = b"ustar\x0000", b"ustar  \0", bytes(8)
REGULAR, LINK, SYMLINK, CHARACTER, DEVICE, DIRECTORY, FIFO = (b"%d" % number for number in range(7))

_HEADER = struct.Struct("<100s8s8s8s12s12s8sc100s8s32s32s8s8s155s12s")

Holes = Sequence[tuple[int, bytes]]


def header(
    name: bytes,
    kind: bytes = REGULAR,
    size: int | bytes = 0,
    *,
    mode: int = 0o644,
    uid: int = 0,
    gid: int = 0,
    mtime: int = 0,
    link: bytes = b"",
    device: tuple[int, int] = (0, 0),
    magic: bytes = USTAR,
    prefix: bytes = b"",
    rest: bytes = b"",
    checksum: int | None = None,
) -> bytes:
    """One header. Numbers that octal digits cannot say are in base 256; `size` may be the bytes of the field."""
    if isinstance(size, int):
        size = _number(size, 12)
    fields: list[Any] = [name, _number(mode, 8), _number(uid, 8), _number(gid, 8), size, _number(mtime, 12)]
    more: list[Any] = [kind, link, magic, b"", b"", _number(device[0], 8), _number(device[1], 8), prefix, rest]
    found = sum(_HEADER.pack(*fields, b" " * 8, *more)) if checksum is None else checksum
    return _HEADER.pack(*fields, b"%06o\0 " % found, *more)


def _number(value: int, width: int) -> bytes:
    if 0 <= value < 8 ** (width - 1):
        return b"%0*o\0" % (width - 1, value)
    return ((value & (1 << 8 * width - 1) - 1) | 1 << 8 * width - 1).to_bytes(width, "big")


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % BLOCK)


def member(name: bytes, kind: bytes = REGULAR, data: bytes = b"", **facts: Any) -> bytes:
    """Header and data; names that are too long for it come in GNU's way."""
    link = facts.get("link", b"")
    front = (long(name) if len(name) > 100 else b"") + (long(link, b"K") if len(link) > 100 else b"")
    facts["link"] = link[:100]
    return front + header(name[:100], kind, len(data), **facts) + padded(data)


def long(name: bytes, kind: bytes = b"L") -> bytes:
    """A name or a link's target of any length for the next header."""
    return header(b"././@LongLink", kind, len(name) + 1, magic=GNU) + padded(name + b"\0")


def records(found: Mapping[bytes, bytes] | Sequence[tuple[bytes, bytes]]) -> bytes:
    """Pax records as they stand in an extended header."""
    out = b""
    for key, value in found.items() if isinstance(found, Mapping) else found:
        length = len(key) + len(value) + 3
        length += len(str(length + len(str(length))))
        out += b"%d %s=%s\n" % (length, key, value)
    return out


def pax(found: Mapping[bytes, bytes] | Sequence[tuple[bytes, bytes]] | bytes, kind: bytes = b"x") -> bytes:
    """An extended header for the next one, of these records, or of these bytes as they are."""
    data = found if isinstance(found, bytes) else records(found)
    return header(b"PaxHeaders/x", kind, len(data)) + padded(data)


def file(
    name: bytes,
    kind: bytes = REGULAR,
    data: bytes = b"",
    *,
    mtime: str = "",
    xattrs: Mapping[str, bytes] | None = None,
    **facts: Any,
) -> bytes:
    """A member with everything in pax records that a plain header has no room for."""
    found = {b"SCHILY.xattr." + key.encode(): value for key, value in (xattrs or {}).items()}
    if mtime:
        found[b"mtime"] = mtime.encode()
    if len(name) > 100 or not name.isascii():
        found[b"path"] = name
    link = facts.get("link", b"")
    if len(link) > 100 or not link.isascii():
        found[b"linkpath"] = link
        facts["link"] = b"long"
    for key in ("uid", "gid"):
        if facts.get(key, 0) >= 1 << 21:
            found[key.encode()] = b"%d" % facts.pop(key)
    front = pax(found) if found else b""
    return front + header(b"long" if b"path" in found else name, kind, len(data), **facts) + padded(data)


def pax_sparse(version: str, name: bytes, size: int, holes: Holes, **facts: Any) -> bytes:
    """A file of `size` with only these pieces in it, (offset, data), as GNU tar writes it in a pax archive."""
    data = b"".join(piece for _, piece in holes)
    pairs = [(offset, len(piece)) for offset, piece in holes] + [(size, 0)]
    flat = b",".join(b"%d,%d" % pair for pair in pairs)
    found: list[tuple[bytes, bytes]]
    if version == "1.0":
        lines = b"%d\n" % len(pairs) + b"".join(b"%d\n%d\n" % pair for pair in pairs)
        data = padded(lines) + data
        found = [(b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0"), (b"GNU.sparse.realsize", b"%d" % size)]
    elif version == "0.1":
        found = [(b"GNU.sparse.size", b"%d" % size), (b"GNU.sparse.numblocks", b"%d" % len(pairs))]
        found.append((b"GNU.sparse.map", flat))
    else:
        found = [(b"GNU.sparse.size", b"%d" % size), (b"GNU.sparse.numblocks", b"%d" % len(pairs))]
        for offset, length in pairs:
            found += [(b"GNU.sparse.offset", b"%d" % offset), (b"GNU.sparse.numbytes", b"%d" % length)]
    if version != "0.0":
        found.append((b"GNU.sparse.name", name))
    return (
        pax(found)
        + header(name if version == "0.0" else b"GNUSparseFile.1", REGULAR, len(data), **facts)
        + padded(data)
    )


def gnu_sparse(name: bytes, size: int, holes: Holes, **facts: Any) -> bytes:
    """The same in GNU tar's own archives."""
    pairs = [(offset, len(piece)) for offset, piece in holes] + [(size, 0)]
    numbers = [_number(offset, 12) + _number(length, 12) for offset, length in pairs]
    data = b"".join(piece for _, piece in holes)
    first, more = numbers[:4], numbers[4:]
    plain = bytearray(header(name, b"S", len(data), magic=GNU, **facts))
    plain[386 : 386 + 24 * len(first)] = b"".join(first)
    plain[482] = bool(more)
    plain[483:495] = _number(size, 12)
    plain[148:156] = b" " * 8
    plain[148:156] = b"%06o\0 " % sum(plain)
    out = bytes(plain)
    while more:
        block = b"".join(more[:21]).ljust(504, b"\0")
        more = more[21:]
        out += (block + bytes([bool(more)])).ljust(BLOCK, b"\0")
    return out + padded(data)
