"""Files of writers whose process nobody here can see: which closes publish, and what is said where none does."""

from __future__ import annotations

import contextlib
import os

import pytest

from stripefs.errors import Unseen
from tests.unit.stripefs.vfs.world import MemoryStore, created, make_writable, reopened


@pytest.mark.parametrize("flushed", [True, False])
@pytest.mark.parametrize("fsync", ["all", "part", ""])
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("wanted", ["always", "after-fsync", "never"])
async def test_which_closes_publish(
    wanted: str, before: bool, fsync: str, flushed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Of /f, which thread 0 opens and writes to, with an fsync of all or a part."""
    store, whole = MemoryStore(), b"halfmore" if fsync == "part" else b"half"
    if before:
        store.put(b"/f", b"old")
    expected = wanted == "always" or (wanted == "after-fsync" and (fsync == "all" or not before))
    tree, flags = make_writable(store, publish_unseen=wanted), os.O_WRONLY | os.O_TRUNC
    handle = await reopened(tree, flags, 0) if before else (await created(tree, b"", flags, b"f", 0))[0]
    await tree.write(handle, 0, b"half")
    if fsync:
        await tree.fsync(handle)
    if fsync == "part":
        await tree.write(handle, 4, b"more")
    if flushed:
        with contextlib.nullcontext() if expected else pytest.raises(Unseen):
            await tree.flush(handle)
    await tree.release(handle)
    assert store.contents().get(b"/f") == (whole if expected else b"old" if before else None)
    assert ("stripefs recover" in caplog.text) is not expected
