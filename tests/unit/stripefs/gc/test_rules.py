"""The rules of gc for hidden files: every rule, and that none of them gives way to another."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stripefs.format.lock_and_record import LEASE
from stripefs.gc.rules import AGE, FORCED_AGE, RECOVERABLE, Circumstances, GcVerdict, HiddenKind, Item, judge

NOW = 1_800_000_000 * 10**9
VERSION = "00112233aabbccdd"


def ago(seconds: float) -> int:
    return NOW - int(seconds * 1e9)


def item(kind: HiddenKind, seconds: float, *, published: bool = False, version: str = VERSION) -> Item:
    name = b"" if kind is HiddenKind.VERSION else b"/d/model"
    return Item(b"/x", kind, name, "" if kind is HiddenKind.LOCK else version, 1, ago(seconds), published)


def facts(**more: object) -> Circumstances:
    return dataclasses.replace(Circumstances(NOW), **more)


@pytest.mark.parametrize("kind", list(HiddenKind))
def test_what_is_older_than_a_day_and_needed_by_nobody_goes(kind: HiddenKind) -> None:
    assert judge(item(kind, AGE, published=True), facts()) is GcVerdict.RUBBISH


@pytest.mark.parametrize("kind", [kind for kind in HiddenKind if kind is not HiddenKind.LOCK])
def test_what_is_younger_stays(kind: HiddenKind) -> None:
    assert judge(item(kind, AGE - 1, published=True), facts()) is GcVerdict.YOUNG


def test_a_lock_protects_for_a_minute_and_stays_for_a_day() -> None:
    assert judge(item(HiddenKind.LOCK, LEASE - 1), facts(force=True)) is GcVerdict.LEASED
    assert judge(item(HiddenKind.LOCK, LEASE + 1), facts()) is GcVerdict.YOUNG
    assert judge(item(HiddenKind.LOCK, LEASE + 1), facts(force=True)) is GcVerdict.YOUNG
    assert judge(item(HiddenKind.LOCK, FORCED_AGE), facts(force=True)) is GcVerdict.RUBBISH


@pytest.mark.parametrize("kind", [HiddenKind.PART, HiddenKind.RECORD, HiddenKind.MANIFEST, HiddenKind.SCRATCH])
@pytest.mark.parametrize("protected", [{"leased": {VERSION}}, {"locked": {b"/d/model"}}], ids=str)
@pytest.mark.parametrize("force", [False, True])
def test_a_live_lock_protects_what_it_names_and_what_belongs_to_its_file(
    kind: HiddenKind, protected: dict[str, object], force: bool
) -> None:
    assert judge(item(kind, 10 * AGE, published=True), facts(**protected, force=force)) is GcVerdict.LEASED


@pytest.mark.parametrize("force", [False, True])
def test_a_version_of_a_file_is_never_rubbish(force: bool) -> None:
    old = item(HiddenKind.VERSION, 1000 * AGE)
    assert judge(old, facts(referenced={VERSION}, force=force)) is GcVerdict.REFERENCED
    assert judge(old, facts(leased={VERSION}, force=force)) is GcVerdict.LEASED


@pytest.mark.parametrize("force", [False, True])
def test_where_a_manifest_could_not_be_read_no_version_goes_but_other_things_do(force: bool) -> None:
    assert judge(item(HiddenKind.VERSION, 1000 * AGE), facts(complete=False, force=force)) is GcVerdict.UNKNOWN
    assert judge(item(HiddenKind.PART, 1000 * AGE), facts(complete=False, force=force)) is GcVerdict.RUBBISH


def test_what_was_made_durable_can_be_recovered_for_a_week() -> None:
    record = item(HiddenKind.RECORD, RECOVERABLE - 1)
    assert judge(record, facts()) is GcVerdict.RECOVERABLE
    assert judge(item(HiddenKind.RECORD, RECOVERABLE), facts()) is GcVerdict.RUBBISH
    assert judge(record, facts(force=True)) is GcVerdict.RUBBISH
    for kind in (HiddenKind.PART, HiddenKind.VERSION):
        assert judge(item(kind, 10 * AGE), facts(recorded={VERSION})) is GcVerdict.RECOVERABLE


def test_a_lock_that_has_run_out_ends_its_versions_in_a_directory_without_living_locks() -> None:
    ended = facts(ended={VERSION})
    assert judge(item(HiddenKind.LOCK, LEASE - 1), ended) is GcVerdict.LEASED
    assert judge(item(HiddenKind.LOCK, LEASE + 1), ended) is GcVerdict.RUBBISH
    assert judge(item(HiddenKind.PART, 1), ended) is GcVerdict.RUBBISH
    assert judge(item(HiddenKind.RECORD, 1, published=True), ended) is GcVerdict.RUBBISH
    assert judge(item(HiddenKind.RECORD, 1), ended) is GcVerdict.RECOVERABLE
    other = "ffeeddccbbaa9988"
    assert judge(item(HiddenKind.PART, FORCED_AGE - 1, version=other), ended) is GcVerdict.YOUNG
    assert judge(item(HiddenKind.PART, FORCED_AGE, version=other), ended) is GcVerdict.RUBBISH


@pytest.mark.parametrize("changed_ns", [-(10**9), 0, NOW + 1, NOW + 10**18])
@pytest.mark.parametrize("kind", list(HiddenKind))
def test_a_time_that_is_unknown_or_to_come_is_not_old(kind: HiddenKind, changed_ns: int) -> None:
    strange = dataclasses.replace(item(kind, 0), changed_ns=changed_ns)
    assert judge(strange, facts(force=True)) in (GcVerdict.YOUNG, GcVerdict.LEASED)


@given(
    kind=st.sampled_from(HiddenKind),
    seconds=st.floats(-10 * AGE, 100 * AGE),
    published=st.booleans(),
    leased=st.booleans(),
    referenced=st.booleans(),
    recorded=st.booleans(),
    complete=st.booleans(),
    force=st.booleans(),
)
def test_rubbish_is_old_and_nobodys(
    kind: HiddenKind,
    seconds: float,
    published: bool,
    leased: bool,
    referenced: bool,
    recorded: bool,
    complete: bool,
    force: bool,
) -> None:
    def some(chosen: bool) -> set[str]:
        return {VERSION} if chosen else set()

    found = judge(
        item(kind, seconds, published=published),
        facts(
            leased=some(leased),
            referenced=some(referenced),
            recorded=some(recorded),
            complete=complete,
            force=force,
        ),
    )
    if found is GcVerdict.RUBBISH:
        assert seconds >= (FORCED_AGE if force else AGE)
        assert kind is HiddenKind.LOCK or not leased
        assert kind is not HiddenKind.VERSION or (complete and not referenced)
