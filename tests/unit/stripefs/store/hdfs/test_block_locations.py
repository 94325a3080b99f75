"""Blocks of a file, asked for by segments, and the addresses of DataNodes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stripefs.errors import StaleVersion
from stripefs.store.base import Block
from stripefs.store.hdfs import block_locations
from stripefs.store.hdfs.block_locations import SEGMENT_BLOCKS, BlockLocations, DataNodes
from stripefs.store.hdfs.namenode_webhdfs import NameNodeRest
from stripefs.store.hdfs.wire import Replica


class Service:
    """Answers as the NameNode does: whole blocks that overlap the range, however uneven they are."""

    def __init__(self, lengths: Sequence[int]) -> None:
        offsets = itertools.accumulate(lengths, initial=0)
        self.blocks = [Block(offset, length, ("a",)) for offset, length in zip(offsets, lengths, strict=False)]
        self.asked: list[tuple[int, int]] = []

    def __call__(self, offset: int, length: int) -> list[Block]:
        self.asked.append((offset, length))
        return [
            block for block in self.blocks if block.offset < offset + length and offset < block.offset + block.length
        ]


@given(
    st.lists(st.integers(1, 4000), min_size=1, max_size=60),
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 10**5), st.integers(0, 10**5)), min_size=1, max_size=5),
)
def test_uneven_blocks(lengths: list[int], block_size: int, ranges: list[tuple[int, int]]) -> None:
    service = Service(lengths)
    total = sum(lengths)
    locations = BlockLocations(total, block_size, service)
    for offset, length in ranges:
        found = locations.overlapping(offset, length)
        stop = min(offset + length, total)
        expected = (
            [b for b in service.blocks if b.offset < stop and offset < b.offset + b.length] if stop > offset else []
        )
        assert found == expected


def test_a_segment_is_asked_for_once() -> None:
    service = Service([10] * (SEGMENT_BLOCKS + 5))
    locations = BlockLocations(10 * (SEGMENT_BLOCKS + 5), 10, service)
    locations.overlapping(0, 10)
    locations.overlapping(10 * (SEGMENT_BLOCKS - 1), 10)
    assert service.asked == [(0, 10 * SEGMENT_BLOCKS)]
    locations.overlapping(10 * (SEGMENT_BLOCKS - 1), 11)
    assert service.asked == [(0, 10 * SEGMENT_BLOCKS), (10 * SEGMENT_BLOCKS, 50)]


def test_asked_again_when_a_host_failed_and_the_answer_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(block_locations.time, "monotonic", lambda: now)
    service = Service([10])
    locations = BlockLocations(10, 10, service)
    locations.overlapping(0, 1)
    locations.refresh(0)
    locations.overlapping(0, 1)
    assert len(service.asked) == 1
    now = 200.0
    locations.refresh(0)
    locations.overlapping(0, 1)
    assert len(service.asked) == 2


def test_a_file_that_grew_keeps_its_length_and_one_that_shrank_is_another_version() -> None:
    assert BlockLocations(15, 10, Service([10, 10])).overlapping(0, 100) == [Block(0, 10, ("a",)), Block(10, 5, ("a",))]
    for lengths in ([], [10]):
        with pytest.raises(StaleVersion):
            BlockLocations(15, 10, Service(lengths)).overlapping(9, 3)


NAME = "10.0.0.1:9866"


@pytest.mark.parametrize("by_hostname", [False, True])
def test_block_locations_tell_where_a_datanode_is_now(by_hostname: bool) -> None:
    nodes = DataNodes(cast("NameNodeRest", None), by_hostname=by_hostname)  # which is not asked for an address
    for ip, hostname, port in (("10.0.0.1", "a", 9864), ("10.0.0.1", "b", 9870), ("10.0.0.2", "b", 9871)):
        nodes.learn([Replica(NAME, ip=ip, hostname=hostname, web_port=port)])
        assert nodes.address(NAME) == f"{hostname if by_hostname else ip}:{port}"
    nodes.learn([Replica(NAME, ip="10.0.0.3", hostname="c", web_port=0)])
    assert nodes.address(NAME).endswith(":9871"), "no address is no news"


@pytest.mark.parametrize(
    ("by_hostname", "name", "address"),
    [
        (False, NAME, NAME),
        (True, NAME, "a.example:9866"),
        (False, "2001:db8::1:9866", "2001:db8::1:9866"),
        (True, "2001:db8::1:9866", "a.example:9866"),
    ],
)
def test_transfer_ports_are_reached_by_address_or_by_name(by_hostname: bool, name: str, address: str) -> None:
    nodes = DataNodes(cast("NameNodeRest", None), by_hostname=by_hostname)
    assert nodes.transfer_address(name) == name, "until block locations tell of it"
    nodes.learn([Replica(name, ip="10.0.0.9", hostname="a.example", web_port=0)])
    assert nodes.transfer_address(name) == address
