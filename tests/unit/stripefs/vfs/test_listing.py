"""Directories, and stores that are away for a while."""

from __future__ import annotations

import threading

import pytest
import trio
import trio.testing

from stripefs.errors import ServiceDown, StoreError
from stripefs.vfs import ROOT, NodeAttributes, Tree, UnknownHandle, read_handles
from tests.unit.stripefs.vfs.world import MemoryStore, failing, listed, make, quiet


async def opened(store: MemoryStore, count: int) -> tuple[list[bytes], Tree, int]:
    """Names of files that are put into the root, in order; a tree, and a handle that lists its root."""
    names = [b"%03d" % number for number in range(count)]
    for name in names:
        store.put(b"/" + name)
    tree = make(store)
    return names, tree, await tree.opendir(ROOT)


async def test_transient_failures_are_tried_again(store: MemoryStore, clock: trio.testing.MockClock) -> None:
    store.put(b"/f", b"x")
    store.before = failing("", ServiceDown("away"), 5)
    tree = make(store)
    node = await tree.lookup(ROOT, b"f")
    assert await tree.read(await tree.open(node.id), 0, 1) == b"x"
    assert tree.snapshot()["metadata_retries"] == 5


async def test_a_call_that_hangs_is_abandoned(store: MemoryStore) -> None:
    gate = threading.Event()
    store.before = lambda call, path: (gate.wait(10), None)[1]
    tree = make(store, io_timeout=0.05)
    with pytest.raises(ServiceDown, match="no answer within"):
        await tree.lookup(ROOT, b"f")
    gate.set()


async def test_listing_pages_and_positions(store: MemoryStore) -> None:
    names, tree, handle = await opened(store, 20)
    assert len(await listed(tree, handle, most=5)) == 5
    assert len(store.calls) == 2  # the first entries come before all are listed
    whole = await listed(tree, handle, 0)
    assert [name for name, _ in whole] == names
    cookies = dict(whole)
    assert await listed(tree, handle, 0) == whole
    for at in (5, 4, 0, 19, 12):
        assert await listed(tree, handle, cookies[names[at]], most=3) == whole[at + 1 : at + 4]
    with pytest.raises(UnknownHandle):
        await listed(tree, handle, 1000)


async def test_going_back_among_many_names_holds_nobody_up(store: MemoryStore, nursery: trio.Nursery) -> None:
    names, tree, handle = await opened(store, 9)
    whole = await listed(tree, handle)
    await listed(tree, handle, whole[4][1])  # pages before it are not kept
    count = 10 * read_handles._LEARNED_AT_ONCE
    tree.state.directories[handle].names.extend(b"gone-%06d" % number for number in range(count))
    steps: list[int] = []

    async def note_steps() -> None:
        while True:
            known = len(tree._listings[handle]._known)
            await trio.lowlevel.checkpoint()
            steps.append(len(tree._listings[handle]._known) - known)

    nursery.start_soon(note_steps)
    assert await listed(tree, handle, 0) == whole
    assert len(tree._listings[handle]._known) == count + len(names)
    assert 0 < max(steps) <= 2 * read_handles._LEARNED_AT_ONCE
    assert await listed(tree, handle, whole[3][1], most=3) == whole[4:7]


async def test_a_page_taken_in_part_is_not_asked_for_again(store: MemoryStore) -> None:
    names, tree, handle = await opened(store, 9)
    found, start = [], 0
    while page := await listed(tree, handle, start, most=4):
        found += page[:2]  # the kernel's caller took two of four
        start = page[:2][-1][1]
    assert [name for name, _ in found] == names
    assert store.calls == [("scandir", b"/")] * 3


async def test_changes_while_listing_lose_and_repeat_nothing(store: MemoryStore) -> None:
    for number in range(0, 40, 2):
        store.put(b"/%02d" % number)
    tree = make(store)
    handle = await tree.opendir(ROOT)
    first = await listed(tree, handle, most=7)
    for number in range(1, 40, 2):
        store.put(b"/%02d" % number)
    del store.entries[b"/12"]
    restarted = await listed(tree, handle, first[3][1])  # back into the middle, over names that moved
    assert [name for name, _ in restarted][:3] == [b"08", b"10", b"14"] or restarted[0][0] > first[3][0]
    names = [name for name, _ in restarted]
    assert names == sorted(set(names))
    assert {b"%02d" % number for number in range(14, 40, 2)} <= set(names)
    again = await listed(tree, handle, 0)
    assert [name for name, _ in again] == sorted(status.name for status in store.entries.values() if status.name)
    assert dict(first).items() <= dict(again).items() | {(b"12", dict(first).get(b"12", 0))}


async def test_listed_entries_count_as_looked_up(store: MemoryStore) -> None:
    _, tree, handle = await opened(store, 5)
    await listed(tree, handle, most=3)
    assert len(tree.state.nodes) == 1 + 3
    tree.forget([(node, 1) for node in list(tree.state.nodes)])
    assert len(tree.state.nodes) == 1


async def test_listing_goes_on_after_a_failure(store: MemoryStore, clock: trio.testing.MockClock) -> None:
    """Entries that were shown before it are kept. One in passing is not told."""
    names, tree, handle = await opened(store, 8)

    def fail(call: str, path: bytes) -> None:
        if len(store.calls) == 2:
            raise ServiceDown("away")
        if len(store.calls) > 3:
            raise StoreError("broken")

    store.before = fail
    shown = await listed(tree, handle)
    with pytest.raises(StoreError, match="broken"):
        await listed(tree, handle, shown[-1][1])
    assert [name for name, _ in shown] == names[:6]
    store.before = quiet
    assert [name for name, _ in await listed(tree, handle, shown[-1][1])] == names[6:]


async def test_attributes_of_an_old_listing_are_not_believed(store: MemoryStore, clock: trio.testing.MockClock) -> None:
    _, tree, handle = await opened(store, 3)
    valid: list[float] = []

    def show(name: bytes, attributes: NodeAttributes, cookie: int) -> bool:
        valid.append(attributes.valid)
        return len(valid) != 2

    await tree.readdir(handle, 0, show)
    await trio.sleep(5)
    await tree.readdir(handle, 1, show)
    assert valid == [1.0, 1.0, 0.0, 0.0]
