from __future__ import annotations

import pytest

from stripefs.cache.policy import BYPASS, FORGETS, FRESH, LONG_BUSY, BusyRate, BypassPolicy

MIB = 1 << 20


def read(busy: BusyRate, rate: float, seconds: float, start: float = 0.0, at_once: int = 1) -> float:
    """Reads of 1 MiB, `at_once` of them under way, at `rate` in all; the time when the last one ended."""
    now = start
    each = at_once * MIB / rate
    while now < start + seconds:
        for _ in range(at_once):
            busy.began(now)
        now += each
        for _ in range(at_once):
            busy.ended(now, MIB)
    return now


@pytest.mark.parametrize("at_once", [1, 4])
def test_a_rate_is_that_of_all_reads_together_and_pauses_do_not_count(at_once: int) -> None:
    busy = BusyRate()
    end = read(busy, 100 * MIB, 1.0, at_once=at_once)
    read(busy, 100 * MIB, 1.0, start=end + 1000, at_once=at_once)
    assert busy.rate == pytest.approx(100 * MIB, rel=0.05)


def test_little_says_nothing_and_old_is_forgotten() -> None:
    busy = BusyRate()
    busy.began(0.0)
    assert busy.rate is None
    busy.ended(0.2, MIB)
    assert busy.rate is None  # that was mostly seeking
    read(busy, 1 * MIB, 3.0, start=9.0)
    read(busy, 100 * MIB, 5 * FORGETS, start=19.0)
    assert busy.rate is not None
    assert busy.rate > 80 * MIB


def test_a_disk_slower_than_the_store_is_left_alone_for_a_while() -> None:
    bypass = BypassPolicy()
    assert not bypass.bypass(0.0)
    end = read(bypass.store, 200 * MIB, 1.0)
    assert not bypass.bypass(end)
    end = read(bypass.disk, 190 * MIB, 1.0, start=end)
    assert not bypass.bypass(end)  # nearly as fast, it spares the store
    end = read(bypass.disk, 100 * MIB, 2.0, start=end)
    assert bypass.bypass(end)
    assert bypass.bypass(end + BYPASS - 1)
    assert not bypass.bypass(end + BYPASS + 1)  # it may show that it has become faster
    end = read(bypass.disk, 500 * MIB, 1.0, start=end + BYPASS + 1)
    assert not bypass.bypass(end)


def test_what_nobody_measured_in_this_process_is_remembered_with_the_file() -> None:
    bypass = BypassPolicy()
    end = read(bypass.disk, 100 * MIB, 2.0)
    assert not bypass.bypass(end)
    assert not bypass.bypass(end, remembered=100 * MIB)
    assert bypass.bypass(end, remembered=200 * MIB)


def test_a_disk_that_hangs_is_slow_although_no_read_of_it_ends() -> None:
    bypass = BypassPolicy()
    end = read(bypass.store, 100 * MIB, 1.0)
    bypass.disk.began(end)
    assert not bypass.bypass(end + LONG_BUSY / 2)
    assert bypass.bypass(end + LONG_BUSY)


def test_what_a_disk_cost_counts_not_that_it_faltered() -> None:
    bypass = BypassPolicy()
    end = read(bypass.store, 250 * MIB, 1.0)
    end = read(bypass.disk, 125 * MIB, 1.0, start=end)
    assert not bypass.bypass(end)
    end = read(bypass.disk, 800 * MIB, 1.0, start=end)
    assert not bypass.bypass(end)
    end = read(bypass.disk, 10 * MIB, 1.0, start=end)
    end = read(bypass.disk, 10 * MIB, 3.0, start=end)
    assert bypass.bypass(end)


def test_what_is_being_written_may_cost_more() -> None:
    bypass = BypassPolicy()
    end = read(bypass.store, 250 * MIB, 1.0)
    bypass.note_fresh(end)
    end = read(bypass.disk, 170 * MIB, 3.5, start=end)
    assert not bypass.bypass(end)
    assert bypass.bypass(end + FRESH)


def test_what_is_being_written_does_not_come_at_any_price() -> None:
    bypass = BypassPolicy()
    end = read(bypass.store, 250 * MIB, 1.0)
    end = read(bypass.disk, 10 * MIB, 8.0, start=end)
    bypass.note_fresh(end)
    assert not bypass.bypass(end)
    end = read(bypass.disk, 10 * MIB, 2.0, start=end)
    bypass.note_fresh(end)
    assert bypass.bypass(end)
