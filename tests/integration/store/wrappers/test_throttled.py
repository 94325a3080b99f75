"""Simulated hosts: rates that are shared, hosts that are slow or fail, and where blocks and placed files lie."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stripefs.errors import HostFailed
from stripefs.store.base import Block, Store
from stripefs.store.local import LocalStore
from stripefs.testing import ThrottledStore
from stripefs.testing.simulated_hosts import TokenBucket
from tests.contract.putting import read
from tests.integration.store.wrappers.material import KIB, MIB, make, spread
from tests.support.stores import RecordingWatch, content


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


# Writing


def blocks(store: Store, path: bytes) -> list[Block]:
    handle = store.open(path)
    handle.close()
    return list(handle.locate(0, handle.status.length))


def test_writing_takes_as_long_as_the_host_needs(local: LocalStore) -> None:
    store = spread(local, rate=4e6, burst=1)
    began = time.monotonic()
    make(store, b"/file", content(400_000), host="h1")
    assert time.monotonic() - began >= 0.09  # 400 kB at 4 MB/s: a lower bound holds on any machine


def test_without_a_wish_a_dead_replica_is_left_out(local: LocalStore) -> None:
    store = spread(local, hosts=3, replication=2)
    store.hosts_control.kill("h1")
    make(store, b"/file", content(1000 * KIB))
    found = blocks(store, b"/file")
    assert len(found) == 16
    assert all(block.hosts and "h1" not in block.hosts for block in found)
    assert read(store, b"/file") == content(1000 * KIB)


# Places that are kept


def test_joined_files_keep_their_blocks(local: LocalStore) -> None:
    store = spread(local)
    for number in range(3):
        make(store, b"/%d" % number, content(100 * KIB, number), host=f"h{number}", block_size=64 * KIB)
    store.concat(b"/0", [b"/1", b"/2"])
    assert [(block.offset // KIB, block.length // KIB, *block.hosts) for block in blocks(store, b"/0")] == [
        (0, 64, "h0"), (64, 36, "h0"), (100, 64, "h1"), (164, 36, "h1"), (200, 64, "h2"), (264, 36, "h2"),
    ]  # fmt: skip
    assert read(spread(local), b"/0") == b"".join(content(100 * KIB, number) for number in range(3))
