"""Replaced versions stay for those who hold them, then go; what cannot be deleted is left for gc."""

from __future__ import annotations

import itertools
import logging
import os
from pathlib import Path

import pytest
import trio
import trio.testing

from stripefs.errors import PermissionDenied
from stripefs.gc import deferred_delete
from stripefs.gc.collect import Collection
from stripefs.gc.deferred_delete import DeferredDelete, remove_version
from stripefs.store.base import Store
from stripefs.store.local import LocalStore
from stripefs.store.striped import StripedStore
from tests.support.leftovers import Hooked

A, B = "a" * 16, "b" * 16
GRACE = 600.0


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    """Calls on threads have deadlines, which must not come while such a thread runs."""
    return trio.testing.MockClock(autojump_threshold=0.1)


def versions(store: Store, after: str = "") -> list[str]:
    return [version for version, _ in deferred_delete.versions(store, after)]


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    store = LocalStore(bytes(tmp_path))
    for version in (A, B):
        for number in range(3):
            store.put(b"/.stripefs/%s/%d" % (version.encode(), number), [b"x" * 10])
    return store


async def gone(store: LocalStore, version: str) -> None:
    with trio.fail_after(1e6):
        while version in versions(store):
            await trio.sleep(GRACE / 10)


async def test_a_version_goes_when_its_grace_is_over(store: LocalStore, autojump_clock: trio.testing.MockClock) -> None:
    deletions = DeferredDelete(store, GRACE)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deletions.run)
        deletions.schedule([B], b"/elsewhere/.stripefs")
        deletions.schedule([A])
        deletions.schedule([A])
        await trio.sleep(GRACE - 1)
        assert versions(store) == [A, B]
        assert len(deletions) == 1
        await gone(store, A)
        assert versions(store) == [B]
        deletions.schedule([B])
        await gone(store, B)
        nursery.cancel_scope.cancel()


async def test_what_is_due_can_be_waited_for(store: LocalStore) -> None:
    due, kept = DeferredDelete(store, 0), DeferredDelete(store, GRACE)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(due.run)
        nursery.start_soon(kept.run)
        kept.schedule([B])
        await kept.wait_due()  # for the stone, when a mount ends
        store.stat(b"/.stripefs/%s/stone" % B.encode())
        due.schedule([A])
        await due.wait_due()
        assert versions(store) == [B]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("refusals", "left"), [(2, []), (3, [A])])
async def test_what_cannot_be_deleted_is_tried_again_and_then_left(
    store: LocalStore,
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
    refusals: int,
    left: list[str],
) -> None:
    errors = itertools.repeat(PermissionDenied("no"), refusals)

    def before(call: str, path: bytes) -> None:
        if call == "remove" and (error := next(errors, None)):
            raise error

    remove_version(store, B)
    deletions = DeferredDelete(Hooked(store, before), GRACE)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deletions.run)
        deletions.schedule([A])
        with trio.fail_after(1e6):
            while deletions:
                await trio.sleep(GRACE / 10)
        nursery.cancel_scope.cancel()
    assert versions(store) == left
    told = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert told == [f"the replaced version {version} stays until stripefs gc: no" for version in left]


async def test_a_gc_spares_what_was_scheduled_however_old_its_parts_are(
    store: LocalStore, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    deletions = DeferredDelete(store, GRACE)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deletions.run)
        deletions.schedule([A])
        await deletions.wait_due()
        for path in (tmp_path / ".stripefs").rglob("*"):
            if path.name != "stone":
                os.utime(path, (1, 1))
        found = await trio.to_thread.run_sync(Collection(store, StripedStore(store)).run)
        assert [item.path for item in found.items] == [f"/.stripefs/{B}".encode()]
        nursery.cancel_scope.cancel()


def test_what_is_no_version_is_never_scheduled(store: LocalStore) -> None:
    with pytest.raises(ValueError, match="no version"):
        DeferredDelete(store, 0).schedule(["../../x"])
