"""The queue of what is to be sent: who waits for a place, and what happens to the queue when things end."""

import itertools
import threading

import pytest
import trio

from stripefs.write import Layout
from stripefs.write.effects import Effects
from stripefs.write.hosts import PER_HOST
from stripefs.write.sender import Sender
from stripefs.write.shipment import Shipment
from tests.unit.write.world import DEADLINE, MIB, content, load, save, spread, until, writing

HOSTS = 4


@pytest.fixture
def store(tmp_path):
    return spread(tmp_path)


async def test_files_in_one_piece_that_stay_open_keep_nobody_out(store):
    async with writing(store, layout=Layout.PLAIN) as drafts:
        drafts_open = []
        for number in range(HOSTS * PER_HOST):
            draft = await drafts.begin(b"/open%d" % number, replacing=None)
            await draft.write(0, content(MIB))
            drafts_open.append(draft)
        await until(lambda: drafts.status()["memory_bytes"] == 0)
        await save(drafts, b"/small", b"x")
        for draft in drafts_open:
            await draft.publish(final=True)
    assert load(store, b"/small") == b"x"
    assert load(store, b"/open0") == content(MIB)


async def test_who_hears_of_an_end_may_send_more(store):
    """As the budget does: what comes back from a file that was given up lets others' parts be cut and sent."""
    gate, create = threading.Event(), store.create
    numbers = itertools.count()

    def gated(path, **how):
        assert gate.wait(DEADLINE)
        return create(path, **how)

    def place():
        number = next(numbers)
        return b"/part%d" % number, number

    def shipment(on_end=None):
        return Shipment([b"x"], 1, place, on_end=on_end)

    def send_another(_):
        others.append(shipment())
        sender.submit(others[-1])

    store.create = gated
    sender = Sender(store, Effects(store, 5.0), 5.0)
    others = []
    with trio.fail_after(DEADLINE):
        async with trio.open_nursery() as nursery:
            await nursery.start(sender.run)
            await sender.look()
            first = [shipment() for _ in range(HOSTS * PER_HOST)]
            given_up = [shipment(send_another) for _ in range(5)]
            for each in [*first, *given_up]:
                sender.submit(each)
            assert sender.waiting == len(given_up)
            for each in given_up:
                each.cancel()
            gate.set()
            for each in [*first, *given_up]:
                await each.ended.wait()
            await until(lambda: len(others) == len(given_up) and all(each.landed for each in others))
            assert all(each.landed for each in first)
            assert not any(each.landed for each in given_up)
            assert (sender.flying, sender.waiting) == (0, 0)
            nursery.cancel_scope.cancel()
