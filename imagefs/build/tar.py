"""The members of a tar archive: every dialect that image builders use, and nothing taken on trust.

Read are v7, ustar, star, GNU (long names, numbers in base 256, sparse files) and pax (records, sparse files 0.0, 0.1
and 1.0), as container runtimes read them: global pax records say nothing about members. Unlike tar programs this never
skips what it does not understand: an archive that is damaged in its middle is an error, where others see its end and
lose the rest. Headers of one member take bounded memory, whatever they claim.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from imagefs.errors import BuildError, HostileLayer
from imagefs.format.inodes import shown
from imagefs.settings import LayerLimits

__all__ = ["Member", "Pieces", "members"]

_BLOCK = 512
_ZEROS = bytes(_BLOCK)
_WINDOW = 64 << 10  # read at once: the headers of some small files with what is between them
_HEADER = struct.Struct("<100s56xc100s8s64x8s8s155s12s")
"""name, type, link, magic, major, minor, prefix, rest: all but the numbers between name and type."""

_NUMBERS = struct.Struct("<100x8s8s8s12s12s8s")
_PLAIN = re.compile(rb"([0-7]{7})[\0 ]([0-7]{7})[\0 ]([0-7]{7})[\0 ]([0-7]{11})[\0 ]([0-7]{11})[\0 ]([0-7]{6})\0 ")
"""The same numbers as nearly all programs write them."""

_USTAR, _GNU = b"ustar\0", b"ustar  \0"
_STAR = b"tar\0"
_PAX, _PAX_GLOBAL, _LONG_NAME, _LONG_LINK, _SPARSE = b"x", b"g", b"L", b"K", b"S"
_EXTENSIONS = frozenset((_PAX, _PAX_GLOBAL, _LONG_NAME, _LONG_LINK))
_NODES = (b"3", b"4")
_WITHOUT_DATA = frozenset((b"1", b"2", b"3", b"4", b"5", b"6"))  # a size that they claim counts for nothing
_SPARSE_KEYS = frozenset(b"GNU.sparse." + key for key in (b"major", b"minor", b"map", b"offset", b"numbytes"))
_OCTAL = re.compile(rb"[0-7]*")
_INTEGER = re.compile(rb"-?[0-9]{1,19}")
_TIME = re.compile(rb"(-?)([0-9]{1,19})(?:\.([0-9]*))?")
_MOST = (1 << 63) - 1
Pieces = tuple[tuple[int, int, int], ...]


@dataclass(slots=True)
class Member:
    """One member, its extended headers applied.

    `kind` is its type flag, "\\0" replaced by "0" or "5"; `mtime` and `mtime_ns` as in Inode; `size` bytes of the file,
    holes among them; `pieces` where its data lies: offset in the file, length, offset in the archive; `records` all pax
    records.
    """

    name: bytes
    kind: bytes
    link: bytes
    mode: int
    uid: int
    gid: int
    mtime: int
    mtime_ns: int
    size: int
    device: tuple[int, int]
    pieces: Pieces
    records: dict[bytes, bytes]


def members(path: str, limits: LayerLimits) -> Iterator[Member]:
    """The members of the archive at `path`, in order. Raises HostileLayer, and BuildError for a damaged archive."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield from _TarReader(descriptor, limits).members()
    finally:
        os.close(descriptor)


def _damaged(what: str) -> BuildError:
    return BuildError(f"a layer is no tar archive, or a damaged one: {what}")


class _TarReader:
    def __init__(self, descriptor: int, limits: LayerLimits) -> None:
        self._descriptor = descriptor
        self._limits = limits
        self._size = os.fstat(descriptor).st_size
        self._at = 0
        self._window = b""
        self._window_at = 0

    def members(self) -> Iterator[Member]:
        records: list[tuple[bytes, bytes]] = []
        name = link = b""
        spent = 0
        while (header := self._header()) is not None:
            block, numbers = header
            kind = block[156:157]
            size = numbers[3]
            if kind not in _EXTENSIONS:
                yield self._member(block, numbers, records, name, link)
                records, name, link, spent = [], b"", b"", 0
                continue
            if size < 0:
                raise _damaged("a header of negative length")
            spent += size
            self._bound(_text(block[:100]), spent)
            data = self._read(self._at, size)
            self._at += size + -size % _BLOCK
            if kind == _PAX:
                records = list(_records(data))
            elif kind == _LONG_NAME:
                name = data.partition(b"\0")[0]
            elif kind == _LONG_LINK:
                link = data.partition(b"\0")[0]
            else:
                list(_records(data))  # must hold together, but says nothing about any member
        if records or name or link:
            raise _damaged("it ends behind headers of a member that is not there")

    def _header(self) -> tuple[bytes, Sequence[int]] | None:
        """The next block with a checksum and its numbers: mode, owner, group, size, time, checksum; None at the end."""
        if self._at >= self._size:
            return None  # without the two blocks of zeros, as some builders leave it
        block = self._read(self._at, _BLOCK)
        if block == _ZEROS:
            if self._at + _BLOCK < self._size and self._read(self._at + _BLOCK, _BLOCK) != _ZEROS:
                raise _damaged("a block of zeros stands between its members")
            return None
        self._at += _BLOCK
        numbers = _numbers(block)
        if numbers[5] != sum(block) - sum(block[148:156]) + 8 * 32:
            signed = memoryview(block).cast("b")  # as some old programs count
            if numbers[5] != sum(signed) - sum(signed[148:156]) + 8 * 32:
                raise _damaged(f"the header at byte {self._at - _BLOCK} has a wrong checksum")
        return block, numbers

    def _member(
        self,
        block: bytes,
        numbers: Sequence[int],
        found: Sequence[tuple[bytes, bytes]],
        long_name: bytes,
        long_link: bytes,
    ) -> Member:
        name, kind, link, magic, major, minor, prefix, rest = _HEADER.unpack(block)
        mode, uid, gid, size, mtime, _ = numbers
        member = Member(
            name=_name(name, magic, prefix, rest),
            kind=kind,
            link=_text(link),
            mode=mode,
            uid=uid,
            gid=gid,
            mtime=mtime,
            mtime_ns=0,
            size=size,
            device=(_number(major), _number(minor)) if kind in _NODES and magic.startswith((_USTAR, _GNU)) else (0, 0),
            pieces=(),
            records=dict(found),
        )
        self._apply(member)
        member.name = long_name or member.name
        member.link = long_link or member.link
        if b"\0" in member.name or b"\0" in member.link:
            raise HostileLayer(f"{shown(member.name)}: no name for a file")
        if kind == b"\0":
            member.kind = kind = b"5" if member.name.endswith(b"/") else b"0"
        begin, stored = self._at, 0 if kind in _WITHOUT_DATA else member.size
        if stored < 0:
            raise HostileLayer(f"{shown(member.name)}: a file of {stored} bytes")
        if stored > self._size - begin:
            raise _damaged(f"{shown(member.name)}: unexpected end of data")
        if kind in _WITHOUT_DATA:
            member.size = 0
        elif kind == _SPARSE:
            begin = self._old_sparse(member, block, magic, stored)
        elif not _SPARSE_KEYS.isdisjoint(member.records):
            self._pax_sparse(member, found, stored)
        else:
            member.pieces = ((0, stored, begin),) if stored else ()
        self._at = begin + stored + -stored % _BLOCK
        return member

    def _apply(self, member: Member) -> None:
        """The pax records that stand for fields of the header. An empty one stands for nothing."""
        records = member.records
        if not records:
            return
        member.name = records.get(b"path") or member.name
        member.link = records.get(b"linkpath") or member.link
        if text := records.get(b"size"):
            member.size = _integer(text)
        if text := records.get(b"uid"):
            member.uid = _integer(text)
        if text := records.get(b"gid"):
            member.gid = _integer(text)
        if text := records.get(b"mtime"):
            member.mtime, member.mtime_ns = _time(text)

    # -- sparse files: begin and length of every piece of data, which lie one behind the other ----------------------

    def _old_sparse(self, member: Member, block: bytes, magic: bytes, stored: int) -> int:
        """As GNU tar has it by itself: four pieces in the header, more in blocks behind it; where the data begins."""
        if magic != _GNU:
            raise _damaged(f"{shown(member.name)}: a sparse file of another program than GNU tar")
        member.size = _number(block[483:495])
        numbers = _sparse_numbers(block, 386, 4)
        more, at, spent = block[482], self._at, 0
        while more:
            spent += _BLOCK
            self._bound(member.name, spent)
            block = self._read(at, _BLOCK)
            numbers += _sparse_numbers(block, 0, 21)
            more, at = block[504], at + _BLOCK
        if stored > self._size - at:
            raise _damaged(f"{shown(member.name)}: unexpected end of data")
        self._set_pieces(member, numbers, at, stored)
        return at

    def _pax_sparse(self, member: Member, found: Sequence[tuple[bytes, bytes]], stored: int) -> None:
        records = member.records
        version = records.get(b"GNU.sparse.major", b""), records.get(b"GNU.sparse.minor", b"")
        if version not in ((b"", b""), (b"0", b"0"), (b"0", b"1"), (b"1", b"0")):
            raise _damaged(f"{shown(member.name)}: a sparse file of an unknown version")
        member.name = records.get(b"GNU.sparse.name") or member.name
        size = records.get(b"GNU.sparse.realsize") or records.get(b"GNU.sparse.size")
        if size:
            member.size = _integer(size)
        begin = self._at
        if version == (b"1", b"0"):
            numbers, length = self._map_in_data(member, stored)
            begin, stored = begin + length, stored - length
        elif b"GNU.sparse.map" in records:
            text = records[b"GNU.sparse.map"]
            numbers = [_integer(number) for number in text.split(b",")] if text else []
        else:
            keys = (b"GNU.sparse.offset", b"GNU.sparse.numbytes")
            pairs = [(key, value) for key, value in found if key in keys]
            if any(key != keys[number % 2] for number, (key, _) in enumerate(pairs)):
                raise _damaged(f"{shown(member.name)}: its map of holes is damaged")
            numbers = [_integer(value) for _, value in pairs]
        self._set_pieces(member, numbers, begin, stored)

    def _map_in_data(self, member: Member, stored: int) -> tuple[list[int], int]:
        """The map of version 1.0: decimal lines in front of the data, in whole blocks. Its numbers and its length."""
        lines: list[bytes] = []
        wanted, length, rest = 1, 0, b""
        while len(lines) < wanted:
            if length + _BLOCK > stored:
                raise _damaged(f"{shown(member.name)}: its map of holes has no end")
            *new, rest = (rest + self._read(self._at + length, _BLOCK)).split(b"\n")
            length += _BLOCK
            self._bound(member.name, length)
            lines += new
            if lines:
                wanted = 1 + 2 * _integer(lines[0])
        return [_integer(line) for line in lines[1:wanted]], length

    def _bound(self, name: bytes, length: int) -> None:
        if length > self._limits.header_bytes:
            raise HostileLayer(f"{shown(name)}: its headers are longer than {self._limits.header_bytes} bytes")

    def _set_pieces(self, member: Member, numbers: Sequence[int], begin: int, stored: int) -> None:
        pieces: list[tuple[int, int, int]] = []
        at, end = begin, 0
        for offset, length in zip(numbers[::2], numbers[1::2], strict=False):
            if offset < end or length < 0 or offset + length > member.size:
                raise HostileLayer(f"{shown(member.name)}: its map of holes contradicts itself")
            if length:
                pieces.append((offset, length, at))
            at, end = at + length, offset + length
        if len(numbers) % 2 or at - begin != stored or member.size < 0:
            raise HostileLayer(f"{shown(member.name)}: its map of holes contradicts itself")
        member.pieces = tuple(pieces)

    def _read(self, at: int, length: int) -> bytes:
        begin = at - self._window_at
        if begin < 0 or begin + length > len(self._window):
            self._window = os.pread(self._descriptor, max(length, _WINDOW), at)
            self._window_at, begin = at, 0
        data = self._window[begin : begin + length]
        if len(data) != length:
            raise _damaged("unexpected end of data")
        return data


def _name(name: bytes, magic: bytes, prefix: bytes, rest: bytes) -> bytes:
    """A name from its two fields. GNU has times where ustar has the prefix, but Go before 1.8 put names there."""
    if magic == _GNU:
        if all(_is_number(field) for field in (prefix[:12], prefix[12:24])) or not _text(prefix).isascii():
            return _text(name)
    elif not magic.startswith(_USTAR):
        return _text(name)
    elif rest[8:] == _STAR:
        prefix = prefix[:131]
    above = _text(prefix)
    return above + b"/" + _text(name) if above else _text(name)


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _numbers(block: bytes) -> Sequence[int]:
    found = _PLAIN.match(block, 100)
    if found is not None:
        return [int(digits, 8) for digits in found.groups()]
    return [_number(field) for field in _NUMBERS.unpack_from(block)]


def _number(field: bytes) -> int:
    """Octal digits, or base 256 with the first bit set."""
    if field[0] & 0x80:
        value = int.from_bytes(field, "big") & (1 << 8 * len(field) - 1) - 1
        if field[0] & 0x40:
            value -= 1 << 8 * len(field) - 1
        if abs(value) > _MOST:
            raise _damaged("a number is out of range")
        return value
    text = field.strip(b" \0").partition(b"\0")[0]
    if not _OCTAL.fullmatch(text):
        raise _damaged(f"{text!r} is no number")
    return int(text, 8) if text else 0


def _is_number(field: bytes) -> bool:
    return bool(field[0] & 0x80 or _OCTAL.fullmatch(field.strip(b" \0").partition(b"\0")[0]))


def _integer(text: bytes) -> int:
    if not _INTEGER.fullmatch(text) or abs(value := int(text)) > _MOST:
        raise _damaged(f"{shown(text)!r} is no number")
    return value


def _time(text: bytes) -> tuple[int, int]:
    """Seconds, and nanoseconds that are never negative; what is finer is cut off towards zero."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise _damaged(f"{shown(text)!r} is no time")
    sign, seconds, fraction = found.groups()
    total = int(seconds) * 10**9 + int((fraction or b"").ljust(9, b"0")[:9])
    whole, nanoseconds = divmod(-total if sign else total, 10**9)
    if abs(whole) > _MOST:
        raise _damaged(f"{shown(text)!r} is no time")
    return whole, nanoseconds


def _records(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Key and value of each pax record ("LENGTH KEY=VALUE\\n")."""
    at = 0
    while at < len(data):
        space = data.find(b" ", at, at + 12)
        number = data[at:space]
        if space < 0 or not number.isdigit():
            raise _damaged("a pax record has no length")
        end = at + int(number)
        key, equals, value = data[space + 1 : end - 1].partition(b"=")
        if end > len(data) or end <= space or data[end - 1 : end] != b"\n" or not key or not equals or b"\0" in key:
            raise _damaged("a pax record is cut short")
        yield key, value
        at = end


def _sparse_numbers(block: bytes, at: int, count: int) -> list[int]:
    """Up to `count` pairs of numbers, the first empty one being the end."""
    numbers: list[int] = []
    for begin in range(at, at + 24 * count, 24):
        if not block[begin]:
            break
        numbers += (_number(block[begin : begin + 12]), _number(block[begin + 12 : begin + 24]))
    return numbers
