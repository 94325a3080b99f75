"""Calls that fail, take longer or answer too few bytes: a share of them, or a chosen one."""

from __future__ import annotations

from functools import partial

import pytest

from stripefs.errors import HostFailed, ServiceDown, StoreError, Transient
from stripefs.store.base import Store
from stripefs.store.local import LocalStore
from stripefs.testing import DelayedStore, FaultyStore, ShortStore
from tests.integration.store.wrappers.material import MIB, make
from tests.support.stores import cancel_on_the_way, content, listing


def outcomes(store: Store, order: list[int]) -> dict[int, str]:
    handle = store.open(b"/file")
    found = {}
    for start in order:
        try:
            data = handle.read(start, 100)
            assert bytes(data) == content(MIB)[start : start + 100]
            found[start] = "right"
        except (StoreError, RuntimeError) as error:
            found[start] = type(error).__name__
    return found


def test_faults_depend_on_the_seed_and_not_on_the_order(filled: LocalStore) -> None:
    order = list(range(0, 100_000, 100))
    kinds = ("host", "service", "transient", "wrong")
    first = outcomes(FaultyStore(filled, rate=0.3, seed=1, kinds=kinds), order)
    assert first == outcomes(FaultyStore(filled, rate=0.3, seed=1, kinds=kinds), order[::-1])
    assert first != outcomes(FaultyStore(filled, rate=0.3, seed=2, kinds=kinds), order)
    failed = [name for name in first.values() if name != "right"]
    assert 200 < len(failed) < 400
    assert set(failed) == {HostFailed.__name__, ServiceDown.__name__, Transient.__name__, RuntimeError.__name__}


def test_a_short_answer_becomes_an_error(filled: LocalStore) -> None:
    handle = ShortStore(filled, rate=1).open(b"/file")
    with pytest.raises(HostFailed, match="where 100 were asked for"):
        handle.read(0, 100, host="")
    assert len(ShortStore(filled, rate=1, checked=False).open(b"/file").read(0, 100)) < 100


def test_calls_that_are_named_wait_each_time(filled: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("stripefs.testing.faults.pause", lambda seconds, watch: waits.append(seconds))
    store = DelayedStore(filled, delay=0.25)
    store.stat(b"/file")
    listing(store, b"/")
    store.open(b"/file").read(0, 10)
    make(store, b"/a", b"x")
    assert waits == [0.25] * 5  # stat; scandir's batch and end; open; read
    writing = DelayedStore(filled, delay=10.0, on=("write", "change"))
    writing.stat(b"/file")
    make(writing, b"/b", b"x")
    writing.rename(b"/b", b"/c")
    assert waits[5:] == [10.0] * 4  # create; write; close; rename


def test_a_delayed_read_can_be_cancelled(filled: LocalStore) -> None:
    handle = DelayedStore(filled, delay=1000, on=("read",)).open(b"/file")
    cancel_on_the_way(partial(handle.read, 0, 10))
