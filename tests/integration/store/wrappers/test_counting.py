"""Counters of a store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from stripefs.errors import HostFailed
from stripefs.store.local import LocalStore
from stripefs.testing import CountingStore, ThrottledStore
from tests.integration.store.wrappers.material import MIB
from tests.support.stores import RecordingWatch, listing


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


def test_counting_sees_how_many_read_at_once(filled: LocalStore) -> None:
    slow = ThrottledStore(filled, hosts=1, rate=1e9, host_timeout=100)
    store = CountingStore(slow)
    slow.hosts_control.freeze("h0")
    handle = store.open(b"/file")
    watches = [RecordingWatch() for _ in range(5)]
    with ThreadPoolExecutor(5) as pool:
        reads = [pool.submit(handle.read, 0, 10, host="h0", watch=watch) for watch in watches]
        for watch in watches:
            assert watch.registered.wait(10)
        slow.hosts_control.restore("h0")
        for read in reads:
            read.result()
    assert store.counts.peak == store.counts.peak_by_host["h0"] == 5
    assert store.counts.refetched == 40
