"""Data transfer on the wire, and the DataNodes that refuse it."""

from __future__ import annotations

import random
import struct
import tracemalloc
import zlib
from typing import Any

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stripefs.store.hdfs import transfer_hosts
from stripefs.store.hdfs.transfer_hosts import PAUSE, REFUSALS, Refusals
from stripefs.store.hdfs.transfer_wire import (
    HEAD,
    BlockName,
    BlockRange,
    ChunkSums,
    PacketSums,
    block_name_of,
    data_length,
    packet_head,
    read_answer,
    read_request,
    write_answer,
)

LOCATED: dict[str, Any] = {
    "block": {"blockId": 1073741825, "blockPoolId": "BP-1", "generationStamp": 1001, "numBytes": 8 << 20},
    "blockToken": {"urlString": "AAAAAA"},
}


def sums_of(kind: int, chunk: int, data: bytes) -> bytes:
    crc = zlib.crc32 if kind == 1 else crc32c.crc32c
    return b"".join(struct.pack(">I", crc(data[at : at + chunk])) for at in range(0, len(data), chunk))


@given(st.binary(min_size=1, max_size=3000), st.sampled_from([1, 2]), st.sampled_from([4, 64, 512, 1024]), st.data())
def test_only_the_right_bytes_fit(data: bytes, kind: int, chunk: int, more: st.DataObject) -> None:
    sums = PacketSums(kind, chunk)
    crcs = sums_of(kind, chunk, data)
    assert len(crcs) == sums.length(len(data))
    assert sums.fit(memoryview(crcs), memoryview(data))
    bit = more.draw(st.integers(0, 8 * len(data) - 1))
    wrong = bytearray(data)
    wrong[bit // 8] ^= 1 << bit % 8
    assert not sums.fit(memoryview(crcs), memoryview(wrong))
    bit = more.draw(st.integers(0, 8 * len(crcs) - 1))
    other = bytearray(crcs)
    other[bit // 8] ^= 1 << bit % 8
    assert not sums.fit(memoryview(other), memoryview(data))
    assert sums.fit(memoryview(crcs), memoryview(data))


@given(st.binary(max_size=3000), st.sampled_from([1, 2]), st.sampled_from([4, 64, 512]), st.integers(0, 2**40))
def test_packets_that_are_written_are_those_that_are_read(data: bytes, kind: int, chunk: int, offset: int) -> None:
    crcs = ChunkSums(kind, chunk).of(memoryview(data))
    assert crcs == sums_of(kind, chunk, data)
    head = packet_head(3, offset, len(data), len(crcs))
    assert len(head) == HEAD
    sums = PacketSums(kind, chunk)
    assert data_length(memoryview(head), offset, sums) == len(data)


@pytest.mark.parametrize("length", [600, 0])
def test_each_bit_of_a_head_counts(length: int) -> None:
    """But for those of its number, and of the offset of the last one, whose mark may be any but zero."""
    sums, head = PacketSums(2, 512), packet_head(3, 1024, length, 4 * -(-length // 512))
    free = {*range(8 * 16, 8 * 24)} if length else {*range(8 * 7, 8 * 15), *range(8 * 16, 8 * 24), *range(201, 208)}
    for bit in range(8 * HEAD):
        wrong = bytearray(head)
        wrong[bit // 8] ^= 1 << bit % 8
        if bit in free:
            assert data_length(memoryview(wrong), 1024, sums) == length
        else:
            with pytest.raises(ValueError, match="does not belong here"):
                data_length(memoryview(wrong), 1024, sums)


def test_answers_to_a_new_block() -> None:
    assert write_answer(b"\x08\x01\x12\x03a:1") == ("it answered status 1", "a:1")
    with pytest.raises(ValueError, match="no field 1"):
        write_answer(b"")


@pytest.mark.parametrize("chunk", [512, 1 << 20])
def test_large_packets_take_little_memory(chunk: int) -> None:
    """Those of a DataNode with a large io.file.buffer.size: zeros of a packet stay with each thread that reads."""
    data = bytes(8 << 20)
    crcs = sums_of(2, chunk, data)
    sums = PacketSums(2, chunk)
    tracemalloc.start()
    try:
        assert sums.fit(memoryview(crcs), memoryview(data))
        assert tracemalloc.get_traced_memory()[1] < 1 << 19
    finally:
        tracemalloc.stop()
    assert not sums.fit(memoryview(crcs), memoryview(data[:-1] + b"x"))


def test_two_chunks_that_changed_places_do_not_fit() -> None:
    data = random.Random(1).randbytes(2048)
    assert not PacketSums(2, 512).fit(
        memoryview(sums_of(2, 512, data)), memoryview(data[512:1024] + data[:512] + data[1024:])
    )


@pytest.mark.parametrize(("kind", "chunk"), [(0, 512), (3, 512), (2, 0), (2, 510), (2, 1 << 30)])
def test_sums_that_are_not_known(kind: int, chunk: int) -> None:
    for sums in (PacketSums, ChunkSums):
        with pytest.raises(ValueError, match="checksums of kind"):
            sums(kind, chunk)


@pytest.mark.parametrize(
    "other",
    [
        {"blockToken": {"urlString": "IQAAAA"}},
        {"blockToken": {"urlString": "!"}},
        {"blockToken": 7},
        {"block": LOCATED["block"] | {"blockId": -9223372036854775792}},
        {"block": {"numBytes": 5}},
    ],
)
def test_blocks_that_are_read_by_webhdfs(other: dict[str, Any]) -> None:
    assert block_name_of(LOCATED) == BlockName("BP-1", 1073741825, 1001, 8 << 20)
    assert block_name_of(LOCATED | {"blockToken": None}) is not None
    assert block_name_of(LOCATED | other) is None


def test_the_request_as_hadoop_has_it() -> None:
    """Field by field from datatransfer.proto."""
    piece = BlockRange(BlockName("BP-1", 5, 1001, 300), 128, 172)
    block = b"\x0a\x04BP-1\x10\x05\x18\xe9\x07\x20\xac\x02"
    base = b"\x0a" + bytes([len(block)]) + block + b"\x12\x08\x0a\x00\x12\x00\x1a\x00\x22\x00"
    header = b"\x0a" + bytes([len(base)]) + base + b"\x12\x08stripefs"
    operation = b"\x0a" + bytes([len(header)]) + header + b"\x10\x80\x01\x18\xac\x01"
    assert read_request(piece) == b"\x00\x1c\x51" + bytes([len(operation)]) + operation


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\x08",
        b"\x08\x80",
        b"\x08\x00",
        b"\x0a\x00",
        b"\x08\x00\x22\x09\x0a\x05",
        b"\x08\x00\x22\x09\x0a\x05\x08\x09\x10\x80\x04\x10\x00",
        b"HTTP/1.1 200 OK",
    ],
)
def test_what_is_no_answer(answer: bytes) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        read_answer(answer)
    assert str(caught.value)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(transfer_hosts.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def refusals(clock: list[float]) -> Refusals:
    return Refusals()


def refuse(refusals: Refusals, *addresses: str, of_connection: bool = True) -> None:
    for address in addresses:
        refusals.refused(address, f"{address} is closed", of_connection=of_connection)


@pytest.mark.parametrize("of_connection", [False, True])
def test_as_long_as_none_has_granted_a_read_all_count_together(refusals: Refusals, of_connection: bool) -> None:
    refuse(refusals, "a", "b", of_connection=of_connection)
    assert not refusals.reason("")
    refuse(refusals, "c", of_connection=of_connection)
    assert refusals.reason("") == refusals.reason("d") == "c is closed"
    refusals.granted("d")
    assert not refusals.reason("")
    assert not refusals.reason("a")


def test_a_closed_port_says_nothing_of_other_datanodes(refusals: Refusals) -> None:
    refusals.granted("a")
    refusals.granted("b")
    refuse(refusals, *["b"] * REFUSALS)
    assert refusals.reason("b") == "b is closed"
    assert not refusals.reason("a")
    assert not refusals.reason("")
    assert refusals.paused() == ["b"]
    # It has to grant a read anew: else its silence would count as a host that hangs, not asked in another way.
    assert not refusals.granting("b")
    assert refusals.granting("a")


def test_refused_blocks_say_nothing_of_other_blocks_of_the_datanode(refusals: Refusals) -> None:
    refusals.granted("a")
    refuse(refusals, *["a", "b"] * 10, of_connection=False)
    assert not refusals.paused()
    refuse(refusals, *["a"] * REFUSALS)
    assert refusals.reason("a")


def test_refusals_count_in_a_row(refusals: Refusals) -> None:
    for _ in range(5):
        refusals.granted("a")
        refuse(refusals, "a", "a")
    assert refusals.granting("a")
    assert not refusals.reason("a")


def test_pauses_end_and_grow(refusals: Refusals, clock: list[float]) -> None:
    refusals.granted("b")
    refuse(refusals, *["a"] * (REFUSALS + 5))
    clock[0] += PAUSE
    assert not refusals.reason("a")
    assert refusals.paused() == []
    refuse(refusals, "a")
    clock[0] += PAUSE
    assert refusals.reason("a"), "one more refusal was enough, and the second pause is longer"
