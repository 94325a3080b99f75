"""Simulated hosts that share a rate, and the file that changes them from outside."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stripefs.errors import ConfigError, HostFailed
from stripefs.store.local import LocalStore
from stripefs.testing import ThrottledStore
from stripefs.testing.simulated_hosts import SimulatedHosts, TokenBucket, write_control
from tests.support.stores import content
from tests.support.waiting import eventually

MIB = 1 << 20


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


def test_threads_of_one_process_share_a_hosts_bucket(filled: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    promised: list[int] = []
    promise = TokenBucket.promise

    def noted(self: TokenBucket, now: float, size: int) -> float:
        promised.append(size)
        return promise(self, now, size)

    monkeypatch.setattr(TokenBucket, "promise", noted)
    hosts = SimulatedHosts(1, 1e9)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: hosts.send("h0", MIB, None), range(4)))
    assert sum(promised) == 4 * MIB
    assert max(promised) <= 256 << 10


def test_a_control_file_moves_hosts_from_outside(filled: LocalStore, tmp_path: Path) -> None:
    control = tmp_path / "control"
    store = ThrottledStore(filled, rate=1e9, placement="one", host_timeout=100, control=str(control))
    handle = store.open(b"/file")
    [host] = handle.locate(0, 1)[0].hosts
    assert bytes(handle.read(0, MIB, host=host)) == content(MIB)
    write_control(control, {host: "dead"})
    eventually(lambda: [known.name for known in store.hosts() if not known.live] == [host], "the dead host")
    with pytest.raises(HostFailed):
        handle.read(0, MIB, host=host)
    write_control(control, {host: "10GB/s"})
    eventually(lambda: all(known.live for known in store.hosts()), "all hosts alive")
    assert bytes(handle.read(0, MIB, host=host)) == content(MIB)
    write_control(control, {host: "frozen"})
    eventually(lambda: control_state(store.hosts_control, host) == "frozen", "the frozen host")
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(handle.read, 0, MIB, host=host)
        control.unlink()
        assert bytes(read.result()) == content(MIB)


@pytest.mark.parametrize("line", ["h99 dead", "h1 asleep", "h1", "h1 0MB/s"])
def test_a_control_file_that_says_nothing(filled: LocalStore, tmp_path: Path, line: str) -> None:
    (tmp_path / "control").write_text(line)
    with pytest.raises(ConfigError):
        ThrottledStore(filled, control=str(tmp_path / "control"))


def control_state(hosts: SimulatedHosts, host: str) -> str:
    hosts.listed()
    return hosts._lanes[host].state
