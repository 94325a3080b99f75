"""State that the next worker takes over; owners, capacity, extended attributes."""

from __future__ import annotations

import json
import os

import pytest
import trio
import trio.testing

from stripefs.errors import StaleVersion, StoreError
from stripefs.store.base import Block, Kind, Space
from stripefs.vfs import ROOT
from stripefs.vfs.attributes import XATTRS_OF_FILES, xattr_locations
from tests.unit.stripefs.vfs.world import Kept, MemoryStore, failing, listed, make, quiet


async def test_the_next_tree_carries_on(store: MemoryStore) -> None:
    store.put(b"/d", kind=Kind.DIRECTORY)
    for number in range(9):
        store.put(b"/d/%d" % number, b"content %d" % number)
    kept = Kept()
    first = make(store, kept)
    folder = await first.lookup(ROOT, b"d")
    file = await first.lookup(folder.id, b"4")
    handle = await first.open(file.id)
    listing = await first.opendir(folder.id)
    head = await listed(first, listing, most=5)
    second = make(store, kept)
    assert await second.read(handle, 0, 100) == b"content 4"
    assert (await second.getattr(file.id)).size == 9
    assert [name for name, _ in await listed(second, listing, head[2][1])] == [b"3", b"4", b"5", b"6", b"7", b"8"]
    await second.release(handle)
    await second.releasedir(listing)
    assert second.snapshot()["open_files"] == second.snapshot()["open_directories"] == 0
    assert store.handles[-1].closed
    await second.release(handle)  # asked again because the answer was lost: no error
    second.forget([(file.id, 1), (folder.id, 1)])
    third = make(store, kept)
    assert third.snapshot()["open_files"] == third.snapshot()["open_directories"] == 0
    assert (file.id in third.state.nodes) is (file.id in second.state.nodes)


async def test_the_next_tree_refuses_a_replaced_version(store: MemoryStore) -> None:
    store.put(b"/f", b"old")
    kept = Kept()
    first = make(store, kept)
    handle = await first.open((await first.lookup(ROOT, b"f")).id)
    store.put(b"/f", b"new")
    second = make(store, kept)
    with pytest.raises(StaleVersion):
        await second.read(handle, 0, 3)
    del store.entries[b"/f"]
    with pytest.raises(StaleVersion):
        await second.read(handle, 0, 3)
    await second.release(handle)


async def test_owners(store: MemoryStore) -> None:
    store.put(b"/a", owner="root", group="daemon")
    store.put(b"/b", owner="1234", group="99999999999")
    store.put(b"/c", owner="no such user", group="")
    tree = make(store)
    for name, owners in ((b"a", (0, 1)), (b"b", (1234, os.getgid())), (b"c", (os.getuid(), os.getgid()))):
        found = await tree.lookup(ROOT, name)
        assert (found.uid, found.gid) == owners
    fixed = await make(store, uid=5, gid=6).lookup(ROOT, b"a")
    assert (fixed.uid, fixed.gid) == (5, 6)


async def test_capacity(store: MemoryStore, clock: trio.testing.MockClock) -> None:
    tree = make(store)
    assert await tree.statfs() == Space(1000, 400, 7)
    store.before = failing("", StoreError("away"))
    await trio.sleep(60)
    assert await tree.statfs() == Space(1000, 400, 7)
    store.before = quiet
    store.capacity = None
    other = make(store)
    assert (await other.statfs()).capacity > 0
    assert (await other.statfs()).free > 0


async def test_xattrs(store: MemoryStore) -> None:
    store.put(b"/f x", b"12345", block_size=4, replication=2)
    store.put(b"/d", kind=Kind.DIRECTORY)
    tree = make(store)
    file, folder = (await tree.lookup(ROOT, b"f x")).id, (await tree.lookup(ROOT, b"d")).id
    assert await tree.listxattr(file) is None
    values = {name: await tree.getxattr(file, name) for name in XATTRS_OF_FILES}
    locations = values.pop(b"user.stripefs.locations")
    assert values == {
        b"user.stripefs.block_size": b"4",
        b"user.stripefs.replication": b"2",
        b"user.stripefs.source": b"memory://test/f%20x",
        b"user.stripefs.version": b"5:1000:2",
    }
    assert locations is not None
    assert json.loads(locations) == [{"offset": 0, "length": 5, "hosts": ["a", "b"]}]
    assert store.handles[-1].closed
    calls = len(store.calls)
    assert await tree.getxattr(file, b"user.stripefs.other") is None
    assert await tree.getxattr(folder, b"user.stripefs.version") is None
    assert len(store.calls) == calls


def test_locations_of_a_huge_file_fit() -> None:
    blocks = [Block(number << 27, 1 << 27, ("host-with-a-name:9866",) * 3) for number in range(100_000)]
    value = xattr_locations(blocks)
    assert len(value) <= 64 << 10
    items = json.loads(value)
    assert items[-1] == {"more": 100_000 - len(items) + 1}
