"""Blocks of all devices by their digests: what is found is what a search of every device would find."""

from __future__ import annotations

import hashlib
import random

import pytest

from imagefs.blocks.block_table import PeerTable


def digest(number: int) -> bytes:
    return hashlib.sha256(number.to_bytes(4, "big")).digest()


@pytest.mark.parametrize("seed", range(5))
def test_a_lookup_finds_what_a_search_of_all_devices_finds(seed: int) -> None:
    chance = random.Random(seed)
    table: PeerTable[str] = PeerTable()
    firsts: dict[str, int] = {}
    model: dict[str, dict[int, int]] = {}  # by device: which content each block has
    for step in range(4000):
        if not firsts or chance.random() < 0.01:
            firsts[f"device{step}"] = table.add_device(f"device{step}", 50)
            model[f"device{step}"] = {}
        device = chance.choice(list(firsts))
        block, content = chance.randrange(50), chance.randrange(300)
        if chance.random() < 0.02:
            for at, what in model.pop(device).items():
                table.discard(digest(what), firsts[device] + at)
            table.remove_device(firsts.pop(device))
        elif (known := model[device].get(block)) is not None and chance.random() < 0.5:
            table.discard(digest(known), firsts[device] + block)
            del model[device][block]
        elif known is None:
            for _ in range(chance.choice((1, 2))):
                table.add(digest(content), firsts[device] + block)
            model[device][block] = content
    assert len(table) == sum(map(len, model.values()))
    for content in range(300):
        there = {(device, at) for device, blocks in model.items() for at, what in blocks.items() if what == content}
        assert set(table.find(digest(content))) == there


def test_what_a_dismissed_device_left_is_no_block_of_another() -> None:
    table: PeerTable[str] = PeerTable()
    table.add_device("first", 10)
    second = table.add_device("second", 10)
    table.add(digest(1), second + 3)
    table.remove_device(second)
    table.add_device("third", 10)
    assert list(table.find(digest(1))) == []


def test_locations_have_an_end() -> None:
    table: PeerTable[str] = PeerTable()
    with pytest.raises(OverflowError):
        table.add_device("too large", 1 << 41)
