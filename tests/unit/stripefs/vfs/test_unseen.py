"""Files of writers whose process nobody here can see: which closes publish, and what is said where none does."""

from __future__ import annotations

import os

import pytest

from stripefs.errors import StaleVersion, Unseen
from stripefs.vfs.writable_tree import WritableTree
from tests.unit.stripefs.vfs.changing import ChangingStore, contents, make_writable

ROOT = 1


async def write(store: ChangingStore, wanted: str, *, fsync: bool, flushed: bool = True) -> bool:
    """Write to /f through a handle that thread 0 opens, and close it; whether close said that it worked."""
    tree = make_writable(store, publish_unseen=wanted)
    handle = await opened(tree, b"/f" in store.entries)
    await tree.write(handle, 0, b"half, ")
    if fsync:
        await tree.fsync(handle)
    return await closed(tree, handle, flushed=flushed)


async def opened(tree: WritableTree, there: bool) -> int:
    """A handle to write /f from its start, which is `there`, as the kernel asks for it."""
    flags = os.O_WRONLY | os.O_TRUNC
    if not there:
        return (await tree.create(ROOT, b"f", 0o644, flags, 0))[0]
    with pytest.raises(StaleVersion):
        await tree.open_writing((await tree.lookup(ROOT, b"f")).id, flags, 0)
    return (await tree.open_writing((await tree.lookup(ROOT, b"f")).id, flags, 0))[0]


async def closed(tree: object, handle: int, *, flushed: bool) -> bool:
    try:
        if flushed:
            await tree.flush(handle)  # type: ignore[attr-defined]
    except Unseen:
        return False
    finally:
        await tree.release(handle)  # type: ignore[attr-defined]
    return True


@pytest.mark.parametrize("flushed", [True, False])
@pytest.mark.parametrize("fsync", [True, False])
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("wanted", ["always", "after-fsync", "never"])
async def test_which_closes_publish(
    wanted: str, before: bool, fsync: bool, flushed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    store = ChangingStore()
    if before:
        store.put(b"/f", b"old")
    expected = wanted == "always" or (wanted == "after-fsync" and (fsync or not before))
    told = await write(store, wanted, fsync=fsync, flushed=flushed)
    assert told is (expected or not flushed)
    assert contents(store).get(b"/f") == (b"half, " if expected else b"old" if before else None)
    assert ("stripefs recover" in caplog.text) is not expected


async def test_what_is_written_after_the_fsync_is_not_durable() -> None:
    store = ChangingStore()
    store.put(b"/f", b"old")
    tree = make_writable(store, publish_unseen="after-fsync")
    handle = await opened(tree, b"/f" in store.entries)
    await tree.write(handle, 0, b"one")
    await tree.fsync(handle)
    await tree.write(handle, 3, b"two")
    assert not await closed(tree, handle, flushed=True)
    assert contents(store)[b"/f"] == b"old"
