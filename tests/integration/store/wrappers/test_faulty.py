"""Calls that fail: a share of them, or a chosen one."""

from __future__ import annotations

import pytest

from stripefs.errors import HostFailed, NoSpace, ServiceDown, Transient
from stripefs.store.local import LocalStore
from stripefs.testing import FaultyStore
from tests.contract.putting import read
from tests.integration.store.wrappers.material import make, outcomes
from tests.support.stores import listing


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
    store = FaultyStore(filled, rate=0.5, seed=1)
    tries = [outcomes(store, [0])[0] for _ in range(40)]
    assert "right" in tries
    assert set(tries) > {"right"}


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


def test_a_share_of_the_changes_fails(local: LocalStore) -> None:
    store = FaultyStore(local, rate=0.5, seed=4, on=("mkdir",), kinds=("service",))
    made = 0
    for number in range(40):
        try:
            store.mkdir(b"/%d" % number)
        except ServiceDown:
            continue
        made += 1
    assert 10 < made < 30
    assert len(listing(local, b"/")) == made
