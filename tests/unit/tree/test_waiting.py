"""Renames that wait for a writer who is about to be done, and not for one who is not."""

from __future__ import annotations

import os

import pytest
import trio
import trio.testing

from stripefs.errors import Busy
from stripefs.store.base import Kind
from stripefs.tree import ROOT
from stripefs.tree.writes import WritableTree
from tests.unit.tree.changing import ChangingStore, FakeDraft, FakeDrafts, contents, make_writable

CREATE = os.O_WRONLY | os.O_CREAT
ME = os.getpid()


@pytest.fixture
def store() -> ChangingStore:
    store = ChangingStore()
    store.put(b"/d", kind=Kind.DIRECTORY)
    store.put(b"/d/f", b"one")
    return store


def drafts_of(tree: WritableTree) -> FakeDrafts:
    drafts = tree._drafts
    assert isinstance(drafts, FakeDrafts)
    return drafts


async def test_a_lock_of_another_node_is_waited_for(store: ChangingStore, clock: trio.testing.MockClock) -> None:
    tree = make_writable(store)
    asked: list[bytes] = []

    def writer_below(folder: bytes) -> str:
        asked.append(folder)
        return "somebody lets go" if len(asked) < 4 else ""

    drafts_of(tree).writer_below = writer_below
    await tree.rename(ROOT, b"d", ROOT, b"e", replace=False)
    assert asked == [b"/d"] * 4
    assert contents(store) == {b"/e/f": b"one"}


async def test_a_writer_who_goes_on_is_not(store: ChangingStore, clock: trio.testing.MockClock) -> None:
    tree = make_writable(store)
    drafts_of(tree).writer_below = lambda folder: "'/d/f' is being written by host:1"
    with pytest.raises(Busy, match="'/d/f' is being written by host:1"):
        await tree.rename(ROOT, b"d", ROOT, b"e", replace=False)
    assert contents(store) == {b"/d/f": b"one"}


@pytest.mark.parametrize("tries", [3, 1000])
async def test_a_target_that_somebody_else_writes(
    store: ChangingStore, clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, tries: int
) -> None:
    """For moments it is waited for; else both files stay as they are."""
    tree = make_writable(store)
    handle, _, _ = await tree.create(ROOT, b"new", 0o644, CREATE, ME)
    await tree.write(handle, 0, b"bytes")
    left = tries
    move = FakeDraft.move

    async def move_later(draft: FakeDraft, path: bytes) -> None:
        nonlocal left
        left -= 1
        if left > 0:
            raise Busy(f"{path!r} is being written by somebody else")
        await move(draft, path)

    monkeypatch.setattr(FakeDraft, "move", move_later)
    folder = await tree.lookup(ROOT, b"d")
    if tries == 1000:
        with pytest.raises(Busy, match="somebody else"):
            await tree.rename(ROOT, b"new", folder.id, b"f", replace=True)
        assert contents(store) == {b"/d/f": b"one", b"/new": b"bytes"}
    else:
        await tree.rename(ROOT, b"new", folder.id, b"f", replace=True)
        assert contents(store) == {b"/d/f": b"bytes"}
    await tree.release(handle)
