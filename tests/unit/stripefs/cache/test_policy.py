"""The policies of the cache: which segments go for new ones, and when its disk is left alone."""

from __future__ import annotations

import pytest

from stripefs.cache.policy import (
    BYPASS,
    FORGETS,
    FRESH,
    LONG_BUSY,
    BusyRate,
    BypassPolicy,
    Retention,
    SegmentUse,
    checkpoint_of,
    matches,
    victims,
)

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


A, B, C, D = (bytes([number]) * 16 for number in range(4))


def named(names: str) -> list[SegmentUse]:
    """Segments of 64 MiB by their version and the time of their last use, which is their number too."""
    found = [("abcd".index(name[0]), int(name[1:])) for name in names.split()]
    return [SegmentUse(bytes([version]) * 16, used, 64 * MIB, used) for version, used in found]


PINNED = Retention(pinned=True)


def checkpoint(number: int, keep: int = 2, run: str = "/run") -> Retention:
    return Retention(source="hdfs://nn", checkpoint=f"{run}/step-{number}", keep=keep, changed=number)


STEPS = {A: checkpoint(100), B: checkpoint(200)}
KINDS = {A: checkpoint(100, 1), B: checkpoint(200, 1, "/other"), C: checkpoint(50, 1)}
FILES = {A: checkpoint(100, 1), B: checkpoint(100, 1), C: checkpoint(90, 1)}


@pytest.mark.parametrize(
    ("segments", "kept", "key", "wanted", "gone"),
    [
        pytest.param("a30 b10 a20", {}, D, 1, "b10", id="what was used longest ago goes first"),
        pytest.param("a30 b10 a20", {}, D, 2, "b10 a20", id="as much as is needed"),
        pytest.param("a1", {}, D, 0, "", id="and no more"),
        pytest.param("a1 a2 b3", {}, A, 1, "b3", id="a file does not push itself out"),
        pytest.param("a1 a2", {}, A, 1, "", id="also where nothing else is there"),
        pytest.param("a1 b2", {A: PINNED}, D, 1, "b2", id="pins stay"),
        pytest.param("a1 b2", {A: PINNED}, D, 2, "", id="and then nothing goes in vain"),
        # They say nothing any more; what was used since does.
        pytest.param("a5000 b999", {}, D, 1, "b999", id="times after now are from before the clock was set back"),
        pytest.param("a5000 b999", {}, D, 2, "b999 a5000", id="and count as now"),
        pytest.param("b1 c2 a3", {**STEPS, C: checkpoint(150)}, D, 1, "a3", id="the newest checkpoints stay"),
        pytest.param("b1 c2 a3", {**STEPS, C: checkpoint(150)}, D, 2, "", id="whatever is wanted"),
        pytest.param("b1 a2", {**STEPS, D: checkpoint(300)}, D, 1, "a2", id="the oldest is one of three now"),
        pytest.param("b1 a2", {**STEPS, D: checkpoint(300)}, D, 2, "a2 b1", id="the newest matters most"),
        pytest.param("b1 a2", {**STEPS, D: checkpoint(50)}, D, 1, "", id="an older one pushes none out"),
        pytest.param("b1 a2", {**STEPS, D: checkpoint(300, run="/another")}, D, 1, "", id="nor one of another kind"),
        pytest.param("a1 b2 c3", KINDS, D, 1, "c3", id="kinds are apart"),
        pytest.param("a1 b2 c3", FILES, D, 1, "c3", id="all files of a checkpoint stay"),
        pytest.param("a1 b2 c3", FILES, D, 2, "", id="together"),
    ],
)
def test_what_goes(segments: str, kept: dict[bytes, Retention], key: bytes, wanted: int, gone: str) -> None:
    size = wanted * 64 * MIB
    assert victims(named(segments), kept, size, size, key, 1000.0) == named(gone)


@pytest.mark.parametrize(
    ("path", "patterns", "found"),
    [
        ("/run/step-5/model.safetensors", ("*.safetensors",), "/run/step-5/model.safetensors"),
        ("/run/step-5/model.safetensors", ("step-*/*.safetensors",), "/run/step-5"),
        ("/run/step-5/model.safetensors", ("/run/step-*/*",), "/run"),
        ("/run/step-5/model.safetensors", ("/step-*/*",), ""),
        ("/a/run/step-5/x", ("/run/step-*/*",), ""),
        ("/x.bin", ("*/*.bin", "*.bin"), "/x.bin"),
        ("/step-5/deep/x", ("step-*/*",), ""),
        ("/x", (), ""),
    ],
)
def test_a_pattern_names_the_checkpoint(path: str, patterns: tuple[str, ...], found: str) -> None:
    assert checkpoint_of(path, patterns) == found
    assert matches(path, patterns) == bool(found)
