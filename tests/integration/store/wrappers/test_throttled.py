"""Simulated hosts: rates that are shared, hosts that are slow or fail, and where blocks and placed files lie."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stripefs.errors import HostFailed
from stripefs.store.base import Block, Buffer, Store, Watch
from stripefs.store.local import LocalStore
from stripefs.testing import ThrottledStore
from stripefs.testing.simulated_hosts import TokenBucket
from tests.contract.putting import read
from tests.integration.store.wrappers.material import KIB, MIB, make, spread
from tests.support.stores import RecordingWatch, content, listing


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


class OneHost:
    """A file of 1 MiB that lies on one host of a throttled store."""

    def __init__(self, filled: LocalStore, **options: Any) -> None:
        self.store = ThrottledStore(filled, placement="one", **{"rate": 1e9, **options})
        self.control = self.store.hosts_control
        self._handle = self.store.open(b"/file")
        [self.host] = self._handle.locate(0, 1)[0].hosts

    def read(self, length: int = MIB, watch: Watch | None = None) -> Buffer:
        return self._handle.read(0, length, host=self.host, watch=watch)


def test_a_frozen_host_counts_as_stalled_after_the_time_out(filled: LocalStore) -> None:
    one = OneHost(filled, host_timeout=0.01)
    one.control.freeze(one.host)
    with pytest.raises(HostFailed) as failure:
        one.read()
    assert (failure.value.host, failure.value.stalled) == (one.host, True)


def test_a_read_under_way_notices_that_its_host_died(filled: LocalStore) -> None:
    one = OneHost(filled, rate=1e4, burst=1)
    watch = RecordingWatch()
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(one.read, watch=watch)  # would take 100 s
        assert watch.registered.wait(10)
        one.control.kill(one.host)
        with pytest.raises(HostFailed) as failure:
            read.result()
    assert (failure.value.host, failure.value.stalled) == (one.host, False)
    assert [known.live for known in one.store.hosts()].count(False) == 1


@pytest.mark.parametrize("placement", ["random", "even", "one"])
@pytest.mark.parametrize("replication", [1, 3])
def test_placement(filled: LocalStore, placement: str, replication: int) -> None:
    def placed(seed: int) -> list[tuple[str, ...]]:
        store = ThrottledStore(filled, hosts=4, replication=replication, placement=placement, seed=seed)
        return [store.replicas(b"/file", index) for index in range(40)]

    blocks = placed(1)
    assert blocks == placed(1)
    assert all(len(set(block)) == replication for block in blocks)
    first = [block[0] for block in blocks]
    counts = sorted(first.count(host) for host in ("h0", "h1", "h2", "h3"))
    if placement == "even":
        assert counts == [10, 10, 10, 10]
    elif placement == "one":
        assert counts == [0, 0, 0, 40]
    else:
        assert len(set(counts)) > 1
        assert blocks != placed(2)


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


def test_a_placed_file_keeps_its_place_in_every_process(local: LocalStore) -> None:
    make(spread(local), b"/part", content(200 * KIB), host="h2", block_size=96 * KIB, replication=2)
    local.mkdir(b"/below")
    spread(local).rename(b"/part", b"/below/file")
    other = spread(local)
    found = blocks(other, b"/below/file")
    assert [(block.offset // KIB, block.length // KIB) for block in found] == [(0, 96), (96, 96), (192, 8)]
    assert all(block.hosts[0] == "h2" and len(set(block.hosts)) == 2 for block in found)
    [status] = listing(other, b"/below")
    assert (status.block_size, status.replication) == (96 * KIB, 2)
    assert status == other.stat(b"/below/file")


def test_joined_files_keep_their_blocks(local: LocalStore) -> None:
    store = spread(local)
    for number in range(3):
        make(store, b"/%d" % number, content(100 * KIB, number), host=f"h{number}", block_size=64 * KIB)
    store.concat(b"/0", [b"/1", b"/2"])
    assert [(block.offset // KIB, block.length // KIB, *block.hosts) for block in blocks(store, b"/0")] == [
        (0, 64, "h0"), (64, 36, "h0"), (100, 64, "h1"), (164, 36, "h1"), (200, 64, "h2"), (264, 36, "h2"),
    ]  # fmt: skip
    assert read(spread(local), b"/0") == b"".join(content(100 * KIB, number) for number in range(3))
