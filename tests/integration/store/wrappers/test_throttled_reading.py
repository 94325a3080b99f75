"""Reading from hosts that are slow or fail, and where blocks lie."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from stripefs.errors import HostFailed
from stripefs.settings import StoreSettings
from stripefs.store.base import Buffer, Watch
from stripefs.store.local import LocalStore
from stripefs.store.url import open_store
from stripefs.testing import ThrottledStore
from tests.support.stores import RecordingWatch, cancel_on_the_way, content

MIB = 1 << 20


class OneHost:
    """A file of 1 MiB that lies on one host of a throttled store."""

    def __init__(self, filled: LocalStore, **options: Any) -> None:
        self.store = ThrottledStore(filled, placement="one", **{"rate": 1e9, **options})
        self.control = self.store.hosts_control
        self._handle = self.store.open(b"/file")
        [self.host] = self._handle.locate(0, 1)[0].hosts

    def read(self, length: int = MIB, watch: Watch | None = None) -> Buffer:
        return self._handle.read(0, length, host=self.host, watch=watch)


def test_a_frozen_host_answers_when_it_is_restored(filled: LocalStore) -> None:
    one = OneHost(filled, host_timeout=100)
    one.control.freeze(one.host)
    watch = RecordingWatch()
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(one.read, watch=watch)
        assert watch.registered.wait(10)
        assert not read.done()
        one.control.restore(one.host)
        assert bytes(read.result()) == content(MIB)


def test_a_frozen_host_counts_as_stalled_after_the_time_out(filled: LocalStore) -> None:
    one = OneHost(filled, host_timeout=0.01)
    one.control.freeze(one.host)
    with pytest.raises(HostFailed) as failure:
        one.read()
    assert (failure.value.host, failure.value.stalled) == (one.host, True)


def test_a_read_at_a_frozen_host_can_be_cancelled(filled: LocalStore) -> None:
    one = OneHost(filled, host_timeout=100)
    one.control.freeze(one.host)
    cancel_on_the_way(one.read)


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


def test_a_slowed_host_shares_what_it_has(filled: LocalStore) -> None:
    one = OneHost(filled, burst=1)
    one.control.slow(one.host, 1e6)
    watches = [RecordingWatch() for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        reads = [pool.submit(one.read, 100_000, watch=watch) for watch in watches]
        for read in reads:
            read.result()
    assert all(len(watch.received) >= 10 for watch in watches)  # steps of 10 ms of the rate


def test_without_a_choice_the_client_fails_over(filled: LocalStore) -> None:
    store = ThrottledStore(filled, rate=1e9, replication=2, host_timeout=0.01)
    handle = store.open(b"/file")
    [block] = handle.locate(0, MIB)
    store.hosts_control.kill(block.hosts[0])
    assert bytes(handle.read(0, MIB)) == content(MIB)
    store.hosts_control.freeze(block.hosts[1])
    with pytest.raises(HostFailed) as failure:
        handle.read(0, MIB)
    assert failure.value.host == ""
    with pytest.raises(HostFailed):
        handle.read(0, MIB, host=block.hosts[0])


def test_only_holders_of_a_block_serve_it(filled: LocalStore) -> None:
    store = ThrottledStore(filled, rate=1e9, hosts=3)
    handle = store.open(b"/file")
    [block] = handle.locate(0, 1)
    for host in {"h0", "h1", "h2", "elsewhere"} - set(block.hosts):
        with pytest.raises(HostFailed):
            handle.read(0, 1, host=host)


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


def test_another_process_sees_the_same_placement(filled: LocalStore, tmp_path: Path) -> None:
    url = f"throttled+file://{tmp_path}/data?block-size=100000&replication=2&seed=5"
    program = (
        "import sys, json; from stripefs.store.url import open_store; from stripefs.settings import StoreSettings;"
        "h = open_store(StoreSettings(url=sys.argv[1])).open(b'/file');"
        "print(json.dumps([b.hosts for b in h.locate(0, h.status.length)]))"
    )
    done = subprocess.run([sys.executable, "-c", program, url], capture_output=True, check=True, text=True)
    handle = open_store(StoreSettings(url=url)).open(b"/file")
    assert json.loads(done.stdout) == [list(block.hosts) for block in handle.locate(0, MIB)]
