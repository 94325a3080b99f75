"""The next of numbered files: which one it is, and look-ahead that goes on in it, in the simulated world."""

import pytest

from stripefs.read.planner import FileSeries
from stripefs.store.base import Block
from tests.unit.stripefs.read.planner.world import MIB, World, eight, limits, placed, played, sequential

PART = 128 * MIB
PARTS = 8


@pytest.mark.parametrize(
    ("before", "path", "after"),
    [
        (b"/m/pytorch_model-2.bin", b"/m/pytorch_model-3.bin", b"/m/pytorch_model-4.bin"),
        (b"/m/part-08", b"/m/part-09", b"/m/part-10"),
        (b"/m/part-9", b"/m/part-10", b"/m/part-11"),
        (b"/2/x", b"/3/x", None),
        (b"/m/part-07", b"/m/part-09", None),
        (b"/m/tp_0_pp_3.pt", b"/m/tp_1_pp_3.pt", b"/m/tp_2_pp_3.pt"),
        (b"/m/tp_1_pp_2.pt", b"/m/tp_1_pp_3.pt", b"/m/tp_1_pp_4.pt"),
        (b"/m/model-00002-of-00004.s", b"/m/model-00003-of-00004.s", b"/m/model-00004-of-00004.s"),
        (b"/m/model-00003-of-00004.s", b"/m/model-00004-of-00004.s", None),
        (None, b"/m/model-00001-of-00004.s", b"/m/model-00002-of-00004.s"),
        (None, b"/m/model-00002-of-00004.s", None),
        (None, b"/m/rank_01.pt", None),
        (None, b"/m/model-00001-of-00001.s", None),
        (None, b"/m/weights.bin", None),
    ],
)
def test_a_file_is_foretold_with_evidence_alone(before, path, after):
    series = FileSeries()
    if before:
        series.read(before)
    assert series.next(path) == after
    if after:
        series.missed(after)
        assert series.next(path) is None


class Loads(World):
    """One reader that goes through files one after the other, each of which is announced where `announces`."""

    def __init__(self, parts, *, announces):
        super().__init__(limits(), eight())
        self.files = [self.open(blocks) for blocks in parts]
        self.announces = announces
        self.announced = 0
        self.client(self.files[0], sequential(PART))

    def _next(self, client):
        super()._next(client)
        number = self.files.index(client.file)
        while self.announces and number <= self.announced < len(self.files) - 1:
            last = self.files[self.announced]
            if (cursor := self.planner.nearing_end(last)) is None:
                break
            self.announced += 1
            self.planner.announce(self.files[self.announced], last, cursor, self.now)
        if client.at == len(client.reads) and number + 1 < len(self.files):
            self.client(self.files[number + 1], sequential(PART))


def loaded(*, announces):
    world = Loads([placed(PART, 8 * MIB, 8, 1, seed) for seed in range(PARTS)], announces=announces)
    world.run()
    assert world.planner.bytes_fetched == PART * PARTS
    return world


def test_look_ahead_goes_on_in_the_next_file():
    alone, on = loaded(announces=False), loaded(announces=True)
    assert on.announced == PARTS - 1
    assert on.now < 0.8 * alone.now  # virtual seconds: the same on every machine
    blocks = [
        Block(number * PART + block.offset, block.length, block.hosts)
        for number in range(PARTS)
        for block in placed(PART, 8 * MIB, 8, 1, number)
    ]
    assert on.now < 1.05 * played(blocks, sequential(PART * PARTS)).now


def test_the_next_file_stays_within_the_window():
    world = Loads([placed(PART, 8 * MIB, 8, 1, seed) for seed in range(2)], announces=False)
    cursor, file = None, world.files[0]
    while cursor is None:
        world._advance(world.clients[0]) or world._step(world.now + 1)
        cursor = world.planner.nearing_end(file)
    cursor.window = file.length - cursor.position + 16 * MIB
    world.planner.announce(world.files[1], file, cursor, world.now)
    world._pump()
    for _ in range(1000):
        world._step(world.now + 0.01)
        if world.now > 2:
            break
    ahead = [end for one, _, end in world.fetched if one is world.files[1]]
    assert 0 < max(ahead) <= 16 * MIB + world.planner.range_size()
