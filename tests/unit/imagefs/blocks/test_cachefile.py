"""Files and tables of blocks on local disk, and the blocks of all devices by their digests."""

from __future__ import annotations

import hashlib
import os
import random
from pathlib import Path

import pytest
import xxhash

from imagefs.blocks.block_table import COARSE, ROW, BlockTable, PeerTable, oldest, present_rows
from imagefs.blocks.cachefile import LocalDevice
from imagefs.format.index import BLOCK
from tests.support.images.devices import noise

NAME = "ab" * 32
SIZE = 3 * BLOCK + 8192
BLOCKS = {0: noise(1)[0], 2: noise(1, seed=2)[0], 3: noise(1, seed=3)[0][:5000]}
NOW = 1_800_000_000.0


def opened(folder: Path) -> LocalDevice:
    return LocalDevice(folder, NAME, 4, SIZE)


def write(device: LocalDevice, block: int, now: float = NOW) -> None:
    checksum = xxhash.xxh3_64_intdigest(BLOCKS[block])
    device.write(block, BLOCKS[block], checksum, now)
    device.table.add(block, checksum, now)


def read(device: LocalDevice, block: int) -> bytes:
    buffer = bytearray(len(BLOCKS[block]))
    device.read(block * BLOCK, buffer)
    return bytes(buffer)


def test_one_is_found_without_its_index(tmp_path: Path) -> None:
    device = opened(tmp_path)
    write(device, 2)
    device.close()
    found = LocalDevice.found(tmp_path, NAME)
    assert found is not None
    assert (found.blocks, found.table.present, read(found, 2)) == (4, 1, BLOCKS[2])
    found.close()
    os.truncate(found.path, 100 * BLOCK)
    assert LocalDevice.found(tmp_path, NAME) is None
    with pytest.raises(OSError, match="No such file"):
        LocalDevice.found(tmp_path, "cd" * 32)


def test_a_mark_holds_as_long_as_the_data_is_the_same(tmp_path: Path) -> None:
    device = opened(tmp_path)
    for block in BLOCKS:
        write(device, block)
    assert not device.marked
    assert device.mark(device.sync())
    device.close()
    device = opened(tmp_path)
    assert device.marked
    device.clear(2)
    assert not device.marked
    device.close()
    device = opened(tmp_path)
    assert device.marked  # it was cleared in memory only
    stamp = device.sync()
    os.utime(device.path)
    assert not device.mark(stamp)
    device.close()
    device = opened(tmp_path)
    assert not device.marked
    assert not (tmp_path / f"{NAME}.complete").exists()
    assert device.mark(device.sync())
    device.unmark()
    device.unmark()
    device.close()
    device = opened(tmp_path)
    assert not device.marked
    assert device.mark(device.sync())
    device.remove()
    assert device.closed
    assert list(tmp_path.iterdir()) == []


# -- tables, compared with plain dictionaries --------------------------------------------------------------------------


TODAY = 1_800_000_000


def random_table(chance: random.Random, blocks: int) -> tuple[BlockTable, dict[int, int]]:
    """A table after some thousand changes, and the time of use of each block that is in it."""
    table, model = BlockTable(bytearray(ROW * blocks)), dict[int, int]()
    now = TODAY
    for _ in range(4 * blocks):
        now += chance.choice((0, 1, 20, 300))
        block = chance.randrange(blocks)
        match chance.choice(("add", "add", "touch", "clear")):
            case "add":
                table.add(block, block + 1, now)
                model[block] = now
            case "touch":
                table.touch(block, now)
                if block in model and now >= model[block] + COARSE:
                    model[block] = now
            case "clear":
                assert table.clear(block) == (block in model)
                model.pop(block, None)
    return table, model


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("again", [False, True])
def test_a_table_holds_what_a_dictionary_does(seed: int, again: bool) -> None:
    table, model = random_table(random.Random(seed), 700)
    if again:  # as the next process reads it
        table = BlockTable(bytearray(table.rows()))
    assert sorted(table.blocks()) == sorted(model)
    assert (table.present, table.bound <= min(model.values())) == (len(model), True)
    assert all(table.checksum(block) == (block + 1 if block in model else None) for block in range(700))
    began = 1577836800
    assert {block: when + began for block, when in present_rows(table.rows())} == model


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("count", [0, 1, 17, 300, 10_000])
@pytest.mark.parametrize("later", [0, 10_000_000])
def test_the_longest_unused_are_given_up(seed: int, count: int, later: int) -> None:
    """The order of recent uses is exact to a minute."""
    chance = random.Random(seed)
    made = [random_table(chance, blocks) for blocks in (700, 30, 256)]
    tables, times = [table for table, _ in made], dict[tuple[int, int], int]()
    for number, (_, model) in enumerate(made):
        times |= {(number, block): when for block, when in model.items()}
    victims = []
    for number, blocks in oldest(tables, count, TODAY + later):
        for block in blocks:
            assert tables[number].clear(block)
            victims.append((number, block))
    assert len(set(victims)) == len(victims) == min(count, len(times))
    kept = [when for one, when in times.items() if one not in set(victims)]
    if victims and kept:
        slack = max(COARSE, (TODAY + later - min(times.values())) // 16)
        assert max(times[one] for one in victims) <= min(kept) + slack
        if count > 1:
            assert sum(times[one] for one in victims) / len(victims) < sum(kept) / len(kept)


def test_what_was_spared_is_found_again() -> None:
    table, model = random_table(random.Random(1), 700)
    _, spared = next(step for step in oldest([table], 10, TODAY) if step[1])
    table.restore(spared)
    assert table.bound <= min(model.values()) - 1577836800
    assert next(step for step in oldest([table], 10, TODAY) if step[1])[1] == spared


def test_a_use_right_after_another_is_not_worth_a_write() -> None:
    table = BlockTable(bytearray(ROW))
    table.add(0, 1, TODAY)
    for later, pages in ((0, 1), (COARSE - 1, 0), (COARSE, 1)):
        table.touch(0, TODAY + later)
        assert (table.dirty, len(table.take_dirty())) == (bool(pages), pages)


def test_an_eviction_looks_at_few_pages_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = 1 << 16
    table = BlockTable(bytearray(ROW * blocks))
    for block in range(blocks):
        table.add(block, 1, TODAY + block)
    looks = []
    page = BlockTable._page
    monkeypatch.setattr(BlockTable, "_page", lambda self, number: looks.append(number) or page(self, number))
    for _ in range(4):
        victims = [block for _, some in oldest([table], 512, TODAY + blocks) for block in some]
        for block in victims:
            table.clear(block)
    assert table.present == blocks - 4 * 512
    assert len(looks) <= 4 * 512 // 256 + 8


# -- blocks of all devices by their digests --------------------------------------------------------------------------


def digest(number: int) -> bytes:
    return hashlib.sha256(number.to_bytes(4, "big")).digest()


@pytest.mark.parametrize("seed", range(5))
def test_a_lookup_finds_what_a_search_of_all_devices_finds(seed: int) -> None:
    chance = random.Random(seed)
    table: PeerTable[str] = PeerTable()
    firsts: dict[str, int] = {}
    model: dict[str, dict[int, int]] = {}  # by device: which content each block has
    left = 0  # blocks of removed devices that were not discarded
    for step in range(4000):
        if not firsts or chance.random() < 0.01:
            firsts[f"device{step}"] = table.add_device(f"device{step}", 50)
            model[f"device{step}"] = {}
        device = chance.choice(list(firsts))
        block, content = chance.randrange(50), chance.randrange(300)
        if chance.random() < 0.02:
            gone = list(model.pop(device).items())
            left += len(gone) // 2
            for at, what in gone[len(gone) // 2 :]:
                table.discard(digest(what), firsts[device] + at)
            table.remove_device(firsts.pop(device))
        elif (known := model[device].get(block)) is not None and chance.random() < 0.5:
            table.discard(digest(known), firsts[device] + block)
            del model[device][block]
        elif known is None:
            for _ in range(chance.choice((1, 2))):
                table.add(digest(content), firsts[device] + block)
            model[device][block] = content
    assert len(table) == sum(map(len, model.values())) + left
    for content in range(300):
        there = {(device, at) for device, blocks in model.items() for at, what in blocks.items() if what == content}
        assert set(table.find(digest(content))) == there
    for first in firsts.values():
        table.remove_device(first)
    assert not any(list(table.find(digest(content))) for content in range(300))
