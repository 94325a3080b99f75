"""Lookups, opens and versions."""

from __future__ import annotations

import errno
import threading

import pytest
import trio
import trio.testing

from stripefs.errors import IsADirectory, NotADirectory, NotFound, StaleVersion, StoreError, Unsupported
from stripefs.store.base import Kind, Status
from stripefs.vfs import ROOT, UnknownHandle
from tests.unit.stripefs.vfs.world import MemoryStore, failing, make


async def test_absent_and_wrong_kinds(store: MemoryStore) -> None:
    store.put(b"/f", b"x")
    store.put(b"/d", kind=Kind.DIRECTORY)
    store.put(b"/l", b"f", kind=Kind.SYMLINK)
    tree = make(store)
    with pytest.raises(NotFound):
        await tree.lookup(ROOT, b"absent")
    file, folder, link = [(await tree.lookup(ROOT, name)).id for name in (b"f", b"d", b"l")]
    assert await tree.readlink(link) == b"f"
    for call, error in (
        (tree.lookup(file, b"x"), NotADirectory),
        (tree.opendir(file), NotADirectory),
        (tree.open(folder), IsADirectory),
        (tree.open(link), Unsupported),
        (tree.readlink(file), Unsupported),
        (tree.getattr(99), UnknownHandle),
        (tree.read(99, 0, 1), UnknownHandle),
        (tree.readdir(99, 0, lambda *_: True), UnknownHandle),
    ):
        with pytest.raises(error) as caught:
            await call
        assert error is not UnknownHandle or caught.value.errno == errno.ESTALE


async def test_replaced_file(store: MemoryStore, clock: trio.testing.MockClock) -> None:
    """A new version has a new id, the old id cannot be opened any more, and old handles keep their bytes."""
    store.put(b"/f", b"old")
    tree = make(store)
    old = await tree.lookup(ROOT, b"f")
    handle = await tree.open(old.id)
    store.put(b"/f", b"newer")
    await trio.sleep(2)
    with pytest.raises(StaleVersion):
        await tree.open(old.id)
    new = await tree.lookup(ROOT, b"f")
    assert new.id != old.id
    with pytest.raises(StaleVersion):
        await tree.open(old.id)
    assert await tree.read(await tree.open(new.id), 0, 10) == b"newer"
    assert await tree.read(handle, 0, 10) == b"old"
    assert (await tree.getattr(old.id)).size == 3
    await tree.release(handle)
    with pytest.raises(StaleVersion):
        await tree.getattr(old.id)


async def test_a_version_that_is_gone_is_not_opened_whatever_was_cached(store: MemoryStore) -> None:
    store.put(b"/f", b"old")
    tree = make(store, attr_timeout=1e6)
    node = await tree.lookup(ROOT, b"f")
    store.put(b"/f", b"new")
    with pytest.raises(StaleVersion):
        await tree.open(node.id)
    new = await tree.lookup(ROOT, b"f")
    assert new.id != node.id
    del store.entries[b"/f"]
    with pytest.raises(StaleVersion):
        await tree.getattr(new.id)
    with pytest.raises(NotFound):
        await tree.open(new.id)
    store.put(b"/f", kind=Kind.DIRECTORY)
    with pytest.raises(StaleVersion):
        await tree.getattr(new.id)
    assert (await tree.lookup(ROOT, b"f")).id not in (node.id, new.id)


async def test_lookups_of_one_path_are_shared(store: MemoryStore) -> None:
    store.put(b"/f")
    gate = threading.Event()
    store.before = lambda call, path: (gate.wait(10), None)[1]
    tree = make(store)
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(tree.lookup, ROOT, b"f")
        await trio.testing.wait_all_tasks_blocked(0.05)
        gate.set()
    assert store.calls == [("stat", b"/f")]
    assert tree.state.nodes[next(iter(tree.state.current.values()))].lookups == 20


async def test_a_lookup_after_a_stale_open_asks_anew(store: MemoryStore) -> None:
    """It does not join a lookup that began before the file was replaced."""
    store.put(b"/f", b"old")
    tree = make(store)
    old = await tree.lookup(ROOT, b"f")
    began, gate = threading.Event(), threading.Event()
    answer = store.stat(b"/f")

    def slow_stat(path: bytes) -> Status:
        del store.stat  # slow once
        began.set()
        gate.wait(10)
        return answer

    store.stat = slow_stat  # type: ignore[method-assign]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tree.lookup, ROOT, b"f")
        await trio.to_thread.run_sync(began.wait)
        store.put(b"/f", b"newer")
        with pytest.raises(StaleVersion):
            await tree.open(old.id)
        assert (await tree.lookup(ROOT, b"f")).size == 5
        gate.set()


async def test_all_handles_share_one_open_file(store: MemoryStore) -> None:
    store.put(b"/f", b"x")
    tree = make(store)
    node = await tree.lookup(ROOT, b"f")
    handles: list[int] = []

    async def open_one() -> None:
        handles.append(await tree.open(node.id))

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(open_one)
    assert len(set(handles)) == 10
    assert len(store.handles) == 1
    for handle in handles:
        assert not store.handles[0].closed
        await tree.release(handle)
    assert store.handles[0].closed
    assert tree.snapshot()["open_files"] == 0


async def test_what_fails_or_answers_too_little_leaves_nothing(store: MemoryStore) -> None:
    store.put(b"/f", b"12345")
    tree = make(store)
    node = await tree.lookup(ROOT, b"f")
    store.before = failing("open", StoreError("broken"), 1)
    with pytest.raises(StoreError, match="broken"):
        await tree.open(node.id)
    handle = await tree.open(node.id)
    for offset in (0, 1, 5):
        assert await tree.read(handle, offset, 100) == b"12345"[offset:]
    store.handles[0].read = lambda *_, **__: b"123"
    with pytest.raises(StoreError, match="3 bytes instead of 5"):
        await tree.read(handle, 0, 5)
