"""Files of writers whose process nobody here can see: which closes publish, and what is said where none does."""

from __future__ import annotations

import os

import pytest

from stripefs.errors import Unseen
from tests.unit.stripefs.vfs.world import MemoryStore, created, make_writable, reopened


async def written(store: MemoryStore, wanted: str, *pieces: bytes, fsync: bool, flushed: bool = True) -> bool:
    """Write to /f through a handle that thread 0 opens, with an fsync after the first piece, and close it; True if
    close said that it worked."""
    tree = make_writable(store, publish_unseen=wanted)
    flags = os.O_WRONLY | os.O_TRUNC
    there = b"/f" in store.entries
    handle = await reopened(tree, flags, 0) if there else (await created(tree, b"", flags, b"f", 0))[0]
    for at, piece in enumerate(pieces):
        await tree.write(handle, at * len(pieces[0]), piece)
        if fsync and not at:
            await tree.fsync(handle)
    try:
        if flushed:
            await tree.flush(handle)
    except Unseen:
        return False
    finally:
        await tree.release(handle)
    return True


@pytest.mark.parametrize("flushed", [True, False])
@pytest.mark.parametrize("fsync", [True, False])
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("wanted", ["always", "after-fsync", "never"])
async def test_which_closes_publish(
    wanted: str, before: bool, fsync: bool, flushed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore()
    if before:
        store.put(b"/f", b"old")
    expected = wanted == "always" or (wanted == "after-fsync" and (fsync or not before))
    told = await written(store, wanted, b"half, ", fsync=fsync, flushed=flushed)
    assert told is (expected or not flushed)
    assert store.contents().get(b"/f") == (b"half, " if expected else b"old" if before else None)
    assert ("stripefs recover" in caplog.text) is not expected


async def test_what_is_written_after_the_fsync_is_not_durable() -> None:
    store = MemoryStore()
    store.put(b"/f", b"old")
    assert not await written(store, "after-fsync", b"one", b"two", fsync=True)
    assert store.contents()[b"/f"] == b"old"
