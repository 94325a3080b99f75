from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stripefs.errors import Abandoned, ConfigError, HostFailed, ServiceDown, StoreError, Transient
from stripefs.settings import StoreSettings
from stripefs.store.base import Store
from stripefs.store.local import LocalStore
from stripefs.store.url import open_store
from stripefs.store.wrappers import CountingStore, DelayedStore, FaultyStore, ShortStore, ThrottledStore
from stripefs.store.wrappers.counting import _Covered
from stripefs.store.wrappers.hosts import Bucket, Hosts, write_control
from tests.store.conformance import StoreConformance
from tests.store.listing_conformance import ListingConformance
from tests.store.material import Place, RecordingWatch, content, listing
from tests.store.places import LocalPopulate
from tests.store.put_conformance import PutConformance
from tests.store.write_conformance import WriteConformance

MIB = 1 << 20


def wrapped(tmp_path_factory: pytest.TempPathFactory, prefix: str, query: str) -> Iterator[Place]:
    root = tmp_path_factory.mktemp("wrapped")
    store = open_store(StoreSettings(url=f"{prefix}+file://{root}{query}"))
    yield Place(store, LocalPopulate(root))
    store.close()


class TestThrottled(WriteConformance, PutConformance, ListingConformance, StoreConformance):
    time_step = 1

    @pytest.fixture(scope="class")
    @classmethod
    def place(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
        yield from wrapped(tmp_path_factory, "throttled", "?rate=1GB/s&block-size=64KiB&replication=2&hosts=5")


class TestAllAtOnce(WriteConformance, PutConformance, ListingConformance, StoreConformance):
    time_step = 1

    @pytest.fixture(scope="class")
    @classmethod
    def place(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
        query = "?throttled.rate=1GB/s&block-size=50000&delay=10us&faulty.rate=0&short.rate=0"
        yield from wrapped(tmp_path_factory, "counting+short+faulty+delayed+throttled", query)


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalStore]:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_bytes(content(MIB))
    store = LocalStore(os.fsencode(tmp_path / "data"))
    yield store
    store.close()


# Token buckets


@given(
    rate=st.floats(1e3, 1e9),
    burst=st.integers(1, 10 * MIB),
    asked=st.lists(st.tuples(st.floats(0, 10), st.integers(1, MIB)), min_size=1, max_size=30),
)
def test_a_bucket_never_sends_more_than_its_burst_ahead_of_its_rate(
    rate: float, burst: int, asked: list[tuple[float, int]]
) -> None:
    bucket, now, sent = Bucket(rate, burst), 1000.0, []
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
    bucket = Bucket(rate, 1)
    first = bucket.promise(1000.0, 1)
    for size in sizes:
        last = bucket.promise(1000.0, size)
    assert last - first == pytest.approx(sum(sizes) / rate, rel=1e-3, abs=1e-6)


# Hosts that fail


def test_a_frozen_host_answers_when_it_is_restored(local: LocalStore) -> None:
    store = ThrottledStore(local, rate=1e9, placement="one", host_timeout=100)
    handle = store.open(b"/file")
    [host] = handle.locate(0, 1)[0].hosts
    store.hosts_control.freeze(host)
    watch = RecordingWatch()
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(handle.read, 0, MIB, host=host, watch=watch)
        assert watch.registered.wait(10)
        assert not read.done()
        store.hosts_control.restore(host)
        assert bytes(read.result()) == content(MIB)


def test_a_frozen_host_counts_as_stalled_after_the_time_out(local: LocalStore) -> None:
    store = ThrottledStore(local, rate=1e9, placement="one", host_timeout=0.01)
    handle = store.open(b"/file")
    [host] = handle.locate(0, 1)[0].hosts
    store.hosts_control.freeze(host)
    with pytest.raises(HostFailed) as failure:
        handle.read(0, MIB, host=host)
    assert (failure.value.host, failure.value.stalled) == (host, True)


def test_a_read_at_a_frozen_host_can_be_cancelled(local: LocalStore) -> None:
    store = ThrottledStore(local, rate=1e9, placement="one", host_timeout=100)
    handle = store.open(b"/file")
    [host] = handle.locate(0, 1)[0].hosts
    store.hosts_control.freeze(host)
    watch = RecordingWatch()
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(handle.read, 0, MIB, host=host, watch=watch)
        assert watch.registered.wait(10)
        watch.cancelled = True
        assert watch.close is not None
        watch.close()
        with pytest.raises(Abandoned):
            read.result()


def test_a_read_under_way_notices_that_its_host_died(local: LocalStore) -> None:
    store = ThrottledStore(local, rate=1e4, burst=1, placement="one")
    handle = store.open(b"/file")
    [host] = handle.locate(0, 1)[0].hosts
    watch = RecordingWatch()
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(handle.read, 0, MIB, host=host, watch=watch)  # would take 100 s
        assert watch.registered.wait(10)
        store.hosts_control.kill(host)
        with pytest.raises(HostFailed) as failure:
            read.result()
    assert (failure.value.host, failure.value.stalled) == (host, False)
    assert [known.live for known in store.hosts()].count(False) == 1


def test_a_slowed_host_shares_what_it_has(local: LocalStore) -> None:
    store = ThrottledStore(local, rate=1e9, burst=1, placement="one")
    handle = store.open(b"/file")
    [host] = handle.locate(0, 1)[0].hosts
    store.hosts_control.slow(host, 1e6)
    watches = [RecordingWatch() for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        reads = [pool.submit(handle.read, 0, 100_000, host=host, watch=watch) for watch in watches]
        for read in reads:
            read.result()
    assert all(len(watch.received) >= 10 for watch in watches)  # steps of 10 ms of the rate


def test_without_a_choice_the_client_fails_over(local: LocalStore) -> None:
    store = ThrottledStore(local, rate=1e9, replication=2, host_timeout=0.01)
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


def test_only_holders_of_a_block_serve_it(local: LocalStore) -> None:
    store = ThrottledStore(local, rate=1e9, hosts=3)
    handle = store.open(b"/file")
    [block] = handle.locate(0, 1)
    for host in {"h0", "h1", "h2", "elsewhere"} - set(block.hosts):
        with pytest.raises(HostFailed):
            handle.read(0, 1, host=host)


@pytest.mark.parametrize("placement", ["random", "even", "one"])
@pytest.mark.parametrize("replication", [1, 3])
def test_placement(local: LocalStore, placement: str, replication: int) -> None:
    def placed(seed: int) -> list[tuple[str, ...]]:
        store = ThrottledStore(local, hosts=4, replication=replication, placement=placement, seed=seed)
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


def test_another_process_sees_the_same_placement(local: LocalStore, tmp_path: Path) -> None:
    url = f"throttled+file://{tmp_path}/data?block-size=100000&replication=2&seed=5"
    program = (
        "import sys, json; from stripefs.store.url import open_store; from stripefs.settings import StoreSettings;"
        "h = open_store(StoreSettings(url=sys.argv[1])).open(b'/file');"
        "print(json.dumps([b.hosts for b in h.locate(0, h.status.length)]))"
    )
    done = subprocess.run([sys.executable, "-c", program, url], capture_output=True, check=True, text=True)
    handle = open_store(StoreSettings(url=url)).open(b"/file")
    assert json.loads(done.stdout) == [list(block.hosts) for block in handle.locate(0, MIB)]


def test_a_control_file_moves_hosts_from_outside(local: LocalStore, tmp_path: Path) -> None:
    control = tmp_path / "control"
    store = ThrottledStore(local, rate=1e9, placement="one", host_timeout=100, control=str(control))
    handle = store.open(b"/file")
    [host] = handle.locate(0, 1)[0].hosts
    assert bytes(handle.read(0, MIB, host=host)) == content(MIB)
    write_control(control, {host: "dead"})
    until(lambda: [known.name for known in store.hosts() if not known.live] == [host])
    with pytest.raises(HostFailed):
        handle.read(0, MIB, host=host)
    write_control(control, {host: "10GB/s"})
    until(lambda: all(known.live for known in store.hosts()))
    assert bytes(handle.read(0, MIB, host=host)) == content(MIB)
    write_control(control, {host: "frozen"})
    until(lambda: control_state(store.hosts_control, host) == "frozen")
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(handle.read, 0, MIB, host=host)
        control.unlink()
        assert bytes(read.result()) == content(MIB)


@pytest.mark.parametrize("line", ["h99 dead", "h1 asleep", "h1", "h1 0MB/s"])
def test_a_control_file_that_says_nothing(local: LocalStore, tmp_path: Path, line: str) -> None:
    (tmp_path / "control").write_text(line)
    with pytest.raises(ConfigError):
        ThrottledStore(local, control=str(tmp_path / "control"))


def control_state(hosts: Hosts, host: str) -> str:
    hosts.listed()
    return hosts._lanes[host].state


def until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread or file will bring about; the test's own time-out ends a wait in vain."""
    while not condition():
        time.sleep(0.01)


# The other wrappers


def test_delayed_waits_before_each_call(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("stripefs.store.wrappers.delayed.pause", lambda seconds, watch: waits.append(seconds))
    store = DelayedStore(local, delay=0.25)
    store.stat(b"/file")
    listing(store, b"/")
    store.open(b"/file").read(0, 10)
    assert waits == [0.25] * 5  # stat; scandir's batch and end; open; read
    quiet = DelayedStore(local, delay=0.25, on=("read",))
    quiet.stat(b"/file")
    assert len(waits) == 5


def test_a_delayed_read_can_be_cancelled(local: LocalStore) -> None:
    handle = DelayedStore(local, delay=1000, on=("read",)).open(b"/file")
    watch = RecordingWatch()
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(handle.read, 0, 10, watch=watch)
        assert watch.registered.wait(10)
        watch.cancelled = True
        assert watch.close is not None
        watch.close()
        with pytest.raises(Abandoned):
            read.result()


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


def test_faults_depend_on_the_seed_and_not_on_the_order(local: LocalStore) -> None:
    order = list(range(0, 100_000, 100))
    kinds = ("host", "service", "transient", "wrong")
    first = outcomes(FaultyStore(local, rate=0.3, seed=1, kinds=kinds), order)
    assert first == outcomes(FaultyStore(local, rate=0.3, seed=1, kinds=kinds), order[::-1])
    assert first != outcomes(FaultyStore(local, rate=0.3, seed=2, kinds=kinds), order)
    failed = [name for name in first.values() if name != "right"]
    assert 200 < len(failed) < 400
    assert set(failed) == {HostFailed.__name__, ServiceDown.__name__, Transient.__name__, RuntimeError.__name__}


def test_a_second_try_draws_again(local: LocalStore) -> None:
    store = FaultyStore(local, rate=0.5, seed=1)
    tries = [outcomes(store, [0])[0] for _ in range(40)]
    assert "right" in tries
    assert set(tries) > {"right"}


def test_faults_of_metadata_calls(local: LocalStore) -> None:
    store = FaultyStore(local, rate=1, kinds=("service",), on=("stat", "open", "scandir"))
    for call in (store.stat, store.open):
        with pytest.raises(ServiceDown):
            call(b"/file")
    with pytest.raises(ServiceDown):
        listing(store, b"/")


def test_a_short_answer_becomes_an_error(local: LocalStore) -> None:
    handle = ShortStore(local, rate=1).open(b"/file")
    with pytest.raises(HostFailed, match="where 100 were asked for"):
        handle.read(0, 100, host="")
    assert len(ShortStore(local, rate=1, checked=False).open(b"/file").read(0, 100)) < 100
    assert "right" in {outcomes(ShortStore(local, rate=0.5), [start])[start] for start in range(20)}


def test_what_counting_counts(local: LocalStore) -> None:
    store = CountingStore(ThrottledStore(local, rate=1e9, hosts=2, block_size=MIB // 2, placement="even"))
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


def test_counting_sees_how_many_read_at_once(local: LocalStore) -> None:
    slow = ThrottledStore(local, hosts=1, rate=1e9, host_timeout=100)
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


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=30))
def test_covered_ranges_agree_with_a_set(ranges: list[tuple[int, int]]) -> None:
    covered, model = _Covered(), set[int]()
    for start, end in ranges:
        added = set(range(start, end))
        assert covered.add(start, end) == len(added & model)
        model |= added
        assert sorted(covered._edges) == covered._edges


def test_wrappers_close_and_describe_what_they_wrap(tmp_path: Path) -> None:
    store = open_store(StoreSettings(url=f"counting+throttled+file://{tmp_path}?rate=1MB/s"))
    assert {"transport", "root", "throttled", "counted"} <= store.describe().keys()
    store.close()
    with pytest.raises(StoreError):
        store.stat(b"/")


def test_threads_of_one_process_share_a_hosts_bucket(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    promised: list[int] = []
    promise = Bucket.promise

    def noted(self: Bucket, now: float, size: int) -> float:
        promised.append(size)
        return promise(self, now, size)

    monkeypatch.setattr(Bucket, "promise", noted)
    hosts = Hosts(1, 1e9)
    threads = [threading.Thread(target=hosts.send, args=("h0", MIB, None)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(promised) == 4 * MIB
    assert max(promised) <= 256 << 10
