"""HDFS's data transfer protocol on the wire, pure: requests to read and write a block, answers, packets, checksums.

Source: DataTransferProtocol, datatransfer.proto, hdfs.proto and PacketHeader of Hadoop 3.4.

**Checksums.** Each packet carries a CRC for every chunk of 512 bytes. That of a whole packet follows from them, so one
call of the CRC library checks 256 KiB (`PacketSums`): 0.11 CPU s for a GB, where a call a chunk takes 1.3 (AMD EPYC).
"""

from __future__ import annotations

import base64
import struct
import threading
import zlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import crc32c

from stripefs.store.hdfs.protobuf import bytes_field, delimited, field, fields, number_field

__all__ = [
    "CHECKSUM_OK",
    "HEAD",
    "LONGEST",
    "BlockName",
    "BlockRange",
    "ChunkSums",
    "PacketSums",
    "acknowledged",
    "block_name_of",
    "data_length",
    "packet_head",
    "read_answer",
    "read_request",
    "refusal_of",
    "write_answer",
    "write_request",
]

CHECKSUM_OK = bytes([2, 0x08, 6])
"""The client's word that all of an answer came and was right: ClientReadStatusProto, its length before it."""

LONGEST = 16 << 20
"""Bytes of the longest packet or message that is accepted, as by Hadoop's own client."""

_VERSION = 28  # DataTransferProtocol.DATA_TRANSFER_VERSION
_READ_BLOCK = 81  # Op.READ_BLOCK
_WRITE_BLOCK = 80  # Op.WRITE_BLOCK
_NEW_BLOCK = 6  # OpWriteBlockProto.BlockConstructionStage.PIPELINE_SETUP_CREATE
_NO_TOKEN = bytes_field(1, b"") + bytes_field(2, b"") + bytes_field(3, b"") + bytes_field(4, b"")
_CLIENT = b"stripefs"
_LENGTHS = struct.Struct(">iH")  # bytes of a packet but for its header and this word; bytes of the header
_HEADER = struct.Struct("<BqBqB?Bi")  # PacketHeaderProto: offset in the block, sequence number, last, bytes of data
_TAGS = (0x09, 0x11, 0x18, 0x25)

_CRC32, _CRC32C = 1, 2  # ChecksumTypeProto
_ONES = 0xFFFFFFFF
_AT_ONCE = 256 << 10
"""Bytes checked by one call; zeros of this size stay with each thread. It takes 10 us and keeps the interpreter's lock,
which 24 threads that checked packets of 64 KiB without it gave each other 33 times for each MiB."""

HEAD = _LENGTHS.size + _HEADER.size
"""Bytes before the checksums of a packet."""


@dataclass(frozen=True, slots=True)
class BlockName:
    """A block's name for its DataNodes: pool, id, generation stamp, and its bytes when it was located."""

    pool: str
    id: int
    stamp: int
    length: int


@dataclass(frozen=True, slots=True)
class BlockRange:
    """Bytes [offset, offset + length) of a block, length > 0."""

    block: BlockName
    offset: int
    length: int


def block_name_of(located: Mapping[str, Any]) -> BlockName | None:
    """The name in an element of `locatedBlocks` of WebHDFS; None for blocks that cannot be asked for by it alone.

    Those are groups of an erasure coded file (their ids are negative) and blocks of clusters that want tokens.
    """
    block = located["block"]
    try:
        token = str((located.get("blockToken") or {}).get("urlString") or "")
        wanted = any(base64.b64decode(token + "=" * (-len(token) % 4), b"-_", validate=True))
        number = int(block["blockId"])
        name = BlockName(str(block["blockPoolId"]), number, int(block["generationStamp"]), int(block["numBytes"]))
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return None if wanted or number < 0 else name


def refusal_of(defaults: Mapping[str, Any]) -> str:
    """The reason in FsServerDefaults for which this protocol is not for a cluster, "" for none."""
    if defaults.get("encryptDataTransfer"):
        return "the cluster encrypts data transfer"
    if defaults.get("keyProviderUri"):
        return "the cluster has a key provider, and files of encryption zones are decrypted by WebHDFS"
    return ""


def read_request(piece: BlockRange) -> bytes:
    """The operation that asks for `piece`: OpReadBlockProto, with version, operation and length before it."""
    block = piece.block
    extended = bytes_field(1, block.pool.encode()) + number_field(2, block.id)
    extended += number_field(3, block.stamp) + number_field(4, block.length)
    operation = number_field(2, piece.offset) + number_field(3, piece.length)
    return _request(_READ_BLOCK, extended, b"", _CLIENT, operation)


def write_request(
    block: bytes,
    stamp: int,
    token: bytes,
    client: bytes,
    onward: Sequence[bytes],
    sums: ChunkSums,
    storage_types: Sequence[int],
    storage_ids: Sequence[bytes],
) -> bytes:
    """The operation that begins a new block: OpWriteBlockProto. `onward`: DatanodeInfoProtos of the further replicas.
    storage_types, storage_ids: of all replicas, or none."""
    operation = b"".join(bytes_field(2, each) for each in onward)
    operation += number_field(4, _NEW_BLOCK) + number_field(5, 1 + len(onward))
    operation += number_field(6, 0) + number_field(7, 0) + number_field(8, stamp)
    operation += bytes_field(9, number_field(1, sums.kind) + number_field(2, sums.chunk))
    if storage_types:
        operation += number_field(11, storage_types[0])
        operation += b"".join(number_field(12, each) for each in storage_types[1:])
        operation += bytes_field(16, storage_ids[0]) + b"".join(bytes_field(17, each) for each in storage_ids[1:])
    return _request(_WRITE_BLOCK, block, token, client, operation)


def _request(code: int, block: bytes, token: bytes, client: bytes, operation: bytes) -> bytes:
    header = bytes_field(1, bytes_field(1, block) + bytes_field(2, token or _NO_TOKEN)) + bytes_field(2, client)
    return struct.pack(">HB", _VERSION, code) + delimited(bytes_field(1, header) + operation)


def write_answer(answer: bytes) -> tuple[str, str]:
    """A BlockOpResponseProto for a new block: the reason of a refusal, and the DataNode (ip:port) of a further replica
    that could not be reached. "" for none. Raises ValueError for another shape."""
    told = dict(fields(answer))
    status = field(told, 1, int)
    if not status:
        return "", ""
    first_bad = field(told, 2, bytes, b"").decode("utf-8", "replace")
    return field(told, 5, bytes, b"").decode("utf-8", "replace") or f"it answered status {status}", first_bad


def acknowledged(message: bytes) -> tuple[int, int | None]:
    """A PipelineAckProto: the sequence number of a packet, and the number of the replica that has failed, None for
    none. Raises ValueError."""
    number, replies = None, []
    for which, value in fields(message):
        if which == 1 and isinstance(value, int):
            number = (value >> 1) ^ -(value & 1)
        elif which == 2 and isinstance(value, int):
            replies.append(value)
    if number is None:
        raise ValueError("an acknowledgement of nothing")
    return number, next((at for at, status in enumerate(replies) if status), None)


def packet_head(number: int, offset: int, length: int, sums: int) -> bytes:
    """The head of the packet `number` that holds `length` bytes from `offset` of the block on, and `sums` bytes of
    checksums; the last packet of a block is the one without data."""
    header = _HEADER.pack(_TAGS[0], offset, _TAGS[1], number, _TAGS[2], not length, _TAGS[3], length)
    return _LENGTHS.pack(4 + sums + length, len(header)) + header


def read_answer(answer: bytes) -> tuple[PacketSums, int] | str:
    """A BlockOpResponseProto: the checksums and the offset in the block of the first byte, or the reason of a refusal.

    That offset is where the chunk of the first byte asked for begins. Raises ValueError for another shape.
    """
    told = dict(fields(answer))
    status = field(told, 1, int)
    if status:
        return field(told, 5, bytes, b"").decode("utf-8", "replace") or f"it answered status {status}"
    info = dict(fields(field(told, 4, bytes)))
    checksum = dict(fields(field(info, 1, bytes)))
    return PacketSums(field(checksum, 1, int), field(checksum, 2, int)), field(info, 2, int)


def data_length(head: memoryview, begin: int, sums: PacketSums) -> int:
    """Bytes of data in the packet with this head, 0 for the last one; its data has to begin at `begin` of the block.

    Raises ValueError for a packet that does not belong there.
    """
    whole, header = _LENGTHS.unpack_from(head)
    tag1, offset, tag2, _, tag3, last, tag4, data = _HEADER.unpack_from(head, _LENGTHS.size)
    if (
        header != _HEADER.size
        or (tag1, tag2, tag3, tag4) != _TAGS
        or not 0 <= data <= LONGEST
        or whole != 4 + sums.length(data) + data
        or last != (not data)
        or (data and offset != begin)
    ):
        raise ValueError("a packet that does not belong here")
    return int(data)


class ChunkSums:
    """Makes the CRCs of `chunk` bytes each, big-endian. kind: ChecksumTypeProto. Raises ValueError.

    0.34 CPU s for a GB in chunks of 512 bytes (AMD EPYC).
    """

    def __init__(self, kind: int, chunk: int) -> None:
        self.kind, self.chunk = kind, chunk
        self._crc = _crc_of(kind, chunk)
        self._chunks = struct.Struct(f"{chunk}s")

    def of(self, data: memoryview) -> bytes:
        """The CRCs of `data`, which begins with a chunk."""
        whole = len(data) - len(data) % self.chunk
        crc = self._crc
        words = array("I", [crc(each) for (each,) in self._chunks.iter_unpack(data[:whole])])
        if whole < len(data):
            words.append(crc(data[whole:]))
        words.byteswap()
        return words.tobytes()


def _crc_of(kind: int, chunk: int) -> Callable[..., int]:
    if kind not in (_CRC32, _CRC32C) or not 0 < chunk <= LONGEST or chunk % 4:
        raise ValueError(f"checksums of kind {kind} over {chunk} bytes")
    return zlib.crc32 if kind == _CRC32 else crc32c.crc32c


class PacketSums:
    """CRCs of `chunk` bytes each, big-endian, checked for many chunks at once. kind: ChecksumTypeProto.

    A CRC is affine in its message. So that of n chunks is the sum over GF(2) of a constant, which depends on n alone,
    and of every chunk's CRC moved on by as many zeros as follow the chunk. A CRC over zeros moves on: the sum is that
    of n - 1 chunks of zeros in which each chunk's CRC stands where the next chunk begins, plus the last chunk's.
    """

    def __init__(self, kind: int, chunk: int) -> None:
        self.chunk = chunk
        self._crc = _crc_of(kind, chunk)
        if kind == _CRC32C:
            self._crc = partial(self._crc, gil_release_mode=0)
        self._chunks = max(1, _AT_ONCE // chunk)  # checked by one call
        self._zeros = _zeros(kind, chunk)

    def length(self, data: int) -> int:
        """Bytes of the CRCs of `data` bytes that begin with a chunk."""
        return 4 * -(-data // self.chunk)

    def fit(self, crcs: memoryview, data: memoryview) -> bool:
        """True if `crcs` are those of `data`, which begins with a chunk."""
        chunks = self._chunks
        if len(crcs) <= 4 * chunks:
            return self._fit(crcs, data)
        return all(
            self._fit(crcs[4 * at :][: 4 * chunks], data[self.chunk * at :][: self.chunk * chunks])
            for at in range(0, len(crcs) // 4, chunks)
        )

    def _fit(self, crcs: memoryview, data: memoryview) -> bool:
        words = array("I", bytes(crcs))
        words.byteswap()
        rest = len(data) % self.chunk
        if rest:
            if self._crc(data[len(data) - rest :]) != words.pop():
                return False
            data = data[: len(data) - rest]
        return not data or self._crc(data) == self._joined(words)

    def _joined(self, words: array[int]) -> int:
        """The CRC of the chunks whose CRCs these are, one behind the other."""
        before = len(words) - 1
        if not before:
            return words[0]
        constant = self._zeros.constants.get(before)
        if constant is None:
            one = self._crc(bytes(self.chunk))
            zeros, places = self._zeros.hold(len(words))
            places[:] = memoryview(array("I", bytes(4 * len(words))))
            constant = self._zeros.constants[before] = self._crc(zeros) ^ self._moved(array("I", [one]) * before) ^ one
        return self._moved(words[:before]) ^ words[before] ^ constant

    def _moved(self, words: array[int]) -> int:
        zeros, places = self._zeros.hold(len(words))
        places[:] = memoryview(words)
        return self._crc(zeros, _ONES) ^ _ONES


class _Zeros(threading.local):
    """Chunks of zeros that a thread writes CRCs into, and the constants of `PacketSums` by number of CRCs."""

    def __init__(self, chunk: int) -> None:
        self._chunk = chunk
        self._held = 0
        self.constants: dict[int, int] = {}

    def hold(self, number: int) -> tuple[memoryview, memoryview]:
        """`number` chunks, zeros but for the first words of each, and these words."""
        if self._held < number:
            self._held = number
            self._zeros = memoryview(bytearray(self._chunk * number))
            self._words = self._zeros.cast("I")
        return self._zeros[: self._chunk * number], self._words[: self._chunk // 4 * number : self._chunk // 4]


_zeros_by_kind: dict[tuple[int, int], _Zeros] = {}


def _zeros(kind: int, chunk: int) -> _Zeros:
    return _zeros_by_kind.setdefault((kind, chunk), _Zeros(chunk))
