"""Wrappers of stores: counts; calls that fail, take longer or answer too few bytes; simulated hosts and their rates."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stripefs.errors import HostFailed, ServiceDown, StoreError, Transient
from stripefs.store.base import Block, Store
from stripefs.store.local import LocalStore
from stripefs.testing import CountingStore, DelayedStore, FaultyStore, ShortStore, ThrottledStore
from stripefs.testing.simulated_hosts import TokenBucket
from tests.contract.putting import read
from tests.support.stores import RecordingWatch, cancel_on_the_way, content, listing

MIB = 1 << 20
KIB = 1 << 10


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalStore]:
    store = LocalStore(os.fsencode(tmp_path))
    yield store
    store.close()


@pytest.fixture
def filled(local: LocalStore) -> LocalStore:
    local.put(b"/file", [content(MIB)])
    return local


def spread(local: Store, **more: int) -> ThrottledStore:
    return ThrottledStore(local, **{"hosts": 4, "rate": 1e9, "block_size": 64 * KIB, **more})  # type: ignore[arg-type]


def test_what_counting_counts(filled: LocalStore) -> None:
    store = CountingStore(ThrottledStore(filled, rate=1e9, hosts=2, block_size=MIB // 2, placement="even"))
    store.stat(b"/file")
    listing(store, b"/")
    handle = store.open(b"/file")
    assert store.counts.open_now == 1
    for block in handle.locate(0, MIB):
        handle.read(block.offset, block.length, host=block.hosts[0])
    handle.read(10, 100)
    with pytest.raises(HostFailed):
        handle.read(0, 10, host="elsewhere")
    handle.close()
    handle.close()
    counts = store.counts
    assert (counts.stats, counts.scandirs, counts.opens, counts.open_now) == (1, 1, 1, 0)
    assert (counts.reads, counts.failed, counts.bytes, counts.refetched) == (4, 1, MIB + 100, 100)
    assert counts.bytes_by_host == {"h0": MIB // 2, "h1": MIB // 2, "": 100}
    assert counts.peak == 1


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
    store.create(b"/a").complete([b"x"])
    assert waits == [0.25] * 5  # stat; scandir's batch and end; open; read
    writing = DelayedStore(filled, delay=10.0, on=("write", "change"))
    writing.stat(b"/file")
    writing.create(b"/b").complete([b"x"])
    writing.rename(b"/b", b"/c")
    assert waits[5:] == [10.0] * 4  # create; write; close; rename


def test_a_delayed_read_can_be_cancelled(filled: LocalStore) -> None:
    handle = DelayedStore(filled, delay=1000, on=("read",)).open(b"/file")
    cancel_on_the_way(partial(handle.read, 0, 10))


@given(
    rate=st.floats(1e3, 1e9),
    burst=st.integers(1, 10 * MIB),
    asked=st.lists(st.tuples(st.floats(0, 10), st.integers(1, MIB)), min_size=1, max_size=30),
)
def test_a_bucket_never_sends_more_than_its_burst_ahead_of_its_rate(
    rate: float, burst: int, asked: list[tuple[float, int]]
) -> None:
    bucket, now, sent = TokenBucket(rate, burst), 1000.0, []
    for pause, size in asked:
        now += pause
        sent.append((bucket.promise(now, size), size))
    times = [when for when, _ in sent]
    assert times == sorted(times)
    for first in range(len(sent)):
        for last in range(first, len(sent)):
            # All that arrives after sent[first] until sent[last] was sent in between, or saved before.
            size = sum(size for _, size in sent[first + 1 : last + 1])
            assert size <= burst + rate * (times[last] - times[first]) * (1 + 1e-6) + 1


@given(rate=st.floats(1e3, 1e9), sizes=st.lists(st.integers(1, MIB), min_size=1, max_size=30))
def test_a_busy_bucket_keeps_its_rate(rate: float, sizes: list[int]) -> None:
    bucket = TokenBucket(rate, 1)
    first = bucket.promise(1000.0, 1)
    for size in sizes:
        last = bucket.promise(1000.0, size)
    assert last - first == pytest.approx(sum(sizes) / rate, rel=1e-3, abs=1e-6)


def test_a_new_bucket_is_full_on_a_host_that_has_just_booted() -> None:
    assert TokenBucket(1000.0, MIB).promise(1.0, MIB) == pytest.approx(1.0)


@pytest.mark.parametrize("state", ["dead", "frozen"])
def test_a_read_under_way_notices_what_becomes_of_its_host(filled: LocalStore, state: str) -> None:
    store = ThrottledStore(filled, placement="one", rate=1e4, burst=1, host_timeout=0.1)
    handle = store.open(b"/file")
    [host] = handle.locate(0, 1)[0].hosts
    watch = RecordingWatch()
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(handle.read, 0, MIB, host=host, watch=watch)  # would take 100 s
        assert watch.registered.wait(10)
        (store.hosts_control.kill if state == "dead" else store.hosts_control.freeze)(host)
        with pytest.raises(HostFailed) as failure:
            read.result()
    assert (failure.value.host, failure.value.stalled) == (host, state == "frozen")
    assert [known.live for known in store.hosts()].count(False) == (state == "dead")


def blocks(store: Store, path: bytes) -> list[Block]:
    handle = store.open(path)
    handle.close()
    return list(handle.locate(0, handle.status.length))


def test_without_a_wish_a_dead_replica_is_left_out(local: LocalStore) -> None:
    store = spread(local, hosts=3, replication=2)
    store.hosts_control.kill("h1")
    store.create(b"/file").complete([content(1000 * KIB)])
    found = blocks(store, b"/file")
    assert len(found) == 16
    assert all(block.hosts and "h1" not in block.hosts for block in found)
    assert read(store, b"/file") == content(1000 * KIB)


def test_joined_files_keep_their_blocks(local: LocalStore) -> None:
    store = spread(local)
    for number in range(3):
        sink = store.create(b"/%d" % number, host=f"h{number}", block_size=64 * KIB)
        sink.complete([content(100 * KIB, number)])
    store.concat(b"/0", [b"/1", b"/2"])
    assert [(block.offset // KIB, block.length // KIB, *block.hosts) for block in blocks(store, b"/0")] == [
        (0, 64, "h0"), (64, 36, "h0"), (100, 64, "h1"), (164, 36, "h1"), (200, 64, "h2"), (264, 36, "h2"),
    ]  # fmt: skip
    assert read(spread(local), b"/0") == b"".join(content(100 * KIB, number) for number in range(3))
