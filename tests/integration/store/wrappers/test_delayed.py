"""Calls that take longer."""

from __future__ import annotations

from functools import partial

import pytest

from stripefs.store.local import LocalStore
from stripefs.testing import DelayedStore
from tests.integration.store.wrappers.material import make
from tests.support.stores import cancel_on_the_way, listing


def test_delayed_waits_before_each_call(filled: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("stripefs.testing.faults.pause", lambda seconds, watch: waits.append(seconds))
    store = DelayedStore(filled, delay=0.25)
    store.stat(b"/file")
    listing(store, b"/")
    store.open(b"/file").read(0, 10)
    assert waits == [0.25] * 5  # stat; scandir's batch and end; open; read
    quiet = DelayedStore(filled, delay=0.25, on=("read",))
    quiet.stat(b"/file")
    assert len(waits) == 5


def test_a_delayed_read_can_be_cancelled(filled: LocalStore) -> None:
    handle = DelayedStore(filled, delay=1000, on=("read",)).open(b"/file")
    cancel_on_the_way(partial(handle.read, 0, 10))


def test_delays_are_for_who_asks(local: LocalStore) -> None:
    waited: list[str] = []

    class Noting(DelayedStore):
        def wait(self, call: str, watch: object = None) -> None:
            waited.append(call)

    store = Noting(local, delay=10.0, on=("write", "change"))
    make(store, b"/a", b"x")
    store.rename(b"/a", b"/b")
    assert waited == ["change", "write", "change", "change"]
