"""Writing to hosts that are slow or fail."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from stripefs.errors import HostFailed, NotFound
from stripefs.store.local import LocalStore
from tests.contract.putting import read
from tests.integration.store.wrappers.material import blocks, make, spread
from tests.support.stores import content

KIB = 1 << 10


def test_writing_takes_as_long_as_the_host_needs(local: LocalStore) -> None:
    store = spread(local, rate=4e6, burst=1)
    began = time.monotonic()
    make(store, b"/file", content(400_000), host="h1")
    assert time.monotonic() - began >= 0.09  # 400 kB at 4 MB/s: a lower bound holds on any machine


def test_a_dead_host_fails_the_file_that_was_placed_there(local: LocalStore) -> None:
    store = spread(local)
    sink = store.create(b"/file", host="h1", replication=2)
    sink.write(content(100 * KIB))
    store.hosts_control.kill("h1")
    with pytest.raises(HostFailed) as caught:
        sink.write(content(100 * KIB))
    assert caught.value.host == "h1"
    sink.abort()
    with pytest.raises(NotFound):
        store.stat(b"/file")
    with pytest.raises(HostFailed):
        make(store, b"/other", b"x", host="h1")


def test_a_frozen_host_is_given_up(local: LocalStore) -> None:
    store = spread(local)
    store.hosts_control.freeze("h1")
    sink = store.create(b"/file", host="h1")
    with pytest.raises(HostFailed) as caught:
        sink.write(b"x")
    assert caught.value.stalled
    sink.abort()


def test_without_a_wish_a_dead_replica_is_left_out(local: LocalStore) -> None:
    store = spread(local, hosts=3, replication=2)
    store.hosts_control.kill("h1")
    make(store, b"/file", content(1000 * KIB))
    found = blocks(store, b"/file")
    assert len(found) == 16
    assert all(block.hosts and "h1" not in block.hosts for block in found)
    assert read(store, b"/file") == content(1000 * KIB)


def test_a_host_that_is_not_there(local: LocalStore) -> None:
    with pytest.raises(HostFailed):
        spread(local).create(b"/file", host="h9")
    with pytest.raises(NotFound):
        local.stat(b"/file")


def test_many_writers_share_a_host_fairly(local: LocalStore) -> None:
    store = spread(local, rate=50e6)

    def write(number: int) -> None:
        make(store, b"/%d" % number, content(300 * KIB, number), host="h0")

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(write, range(6)))
    assert all(read(store, b"/%d" % number) == content(300 * KIB, number) for number in range(6))
