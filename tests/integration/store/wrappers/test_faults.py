"""Calls that fail, take longer or answer too few bytes: a share of them, or a chosen one."""

from __future__ import annotations

from functools import partial

import pytest

from stripefs.errors import HostFailed, NoSpace, ServiceDown, StoreError, Transient
from stripefs.store.base import Store
from stripefs.store.local import LocalStore
from stripefs.testing import DelayedStore, FaultyStore, ShortStore
from tests.contract.putting import read
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


def test_a_second_try_draws_again(filled: LocalStore) -> None:
    for store in (FaultyStore(filled, rate=0.5, seed=1), ShortStore(filled, rate=0.5)):
        tries = {outcomes(store, [0])[0] for _ in range(40)}
        assert tries > {"right"}


def test_faults_of_metadata_calls(filled: LocalStore) -> None:
    store = FaultyStore(filled, rate=1, kinds=("service",), on=("stat", "open", "scandir"))
    for call in (store.stat, store.open):
        with pytest.raises(ServiceDown):
            call(b"/file")
    with pytest.raises(ServiceDown):
        listing(store, b"/")


def test_the_nth_write_fails_and_no_other(local: LocalStore) -> None:
    store = FaultyStore(local, nth=3, on=("write",), kinds=("space",))
    sink = store.create(b"/file")
    sink.write(b"1")
    sink.write(b"2")
    with pytest.raises(NoSpace):
        sink.write(b"3")
    sink.write(b"4")
    sink.close()
    assert read(local, b"/file") == b"124"


def test_a_change_whose_answer_is_lost(local: LocalStore) -> None:
    store = FaultyStore(local, rate=0)
    make(store, b"/a", b"x")
    store.fail_at(1, "rename", "mkdir", kind="service", after=True)
    with pytest.raises(ServiceDown):
        store.rename(b"/a", b"/b")
    assert read(local, b"/b") == b"x"
    store.mkdir(b"/below")
    store.fail_at(2, "rename", after=False)
    store.rename(b"/b", b"/c")
    with pytest.raises(ServiceDown):
        store.rename(b"/c", b"/d")
    assert read(local, b"/c") == b"x"


@pytest.mark.parametrize("after", [False, True])
def test_a_close_that_fails(local: LocalStore, after: bool) -> None:
    store = FaultyStore(local, nth=1, on=("close",), kinds=("transient",), after=after)
    sink = store.create(b"/file")
    sink.write(b"x")
    with pytest.raises(Transient):
        sink.close()
    sink.abort()
    assert [status.name for status in listing(local, b"/")] == ([b"file"] if after else [])


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
