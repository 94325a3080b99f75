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


LOCK, PART, RECORD, POOLED = HiddenKind.LOCK, HiddenKind.PART, HiddenKind.RECORD, HiddenKind.VERSION
FORCE: dict[str, object] = {"force": True}
UNREAD: dict[str, object] = {"complete": False}
RECORDED: dict[str, object] = {"recorded": {VERSION}}
ENDED: dict[str, object] = {"ended": {VERSION}}
OTHER = "ffeeddccbbaa9988"


@pytest.mark.parametrize(
    ("thing", "known", "verdict"),
    [
        *[(item(kind, AGE, published=True), {}, GcVerdict.RUBBISH) for kind in HiddenKind],
        *[(item(kind, AGE - 1, published=True), {}, GcVerdict.YOUNG) for kind in HiddenKind],
        # A lock protects for a minute and stays for a day.
        (item(LOCK, LEASE - 1), FORCE, GcVerdict.LEASED),
        (item(LOCK, LEASE + 1), {}, GcVerdict.YOUNG),
        (item(LOCK, LEASE + 1), FORCE, GcVerdict.YOUNG),
        (item(LOCK, FORCED_AGE), FORCE, GcVerdict.RUBBISH),
        # A version of a file is never rubbish; where a manifest could not be read none is, but other things are.
        *[(item(POOLED, 1000 * AGE), {"referenced": {VERSION}} | more, GcVerdict.REFERENCED) for more in ({}, FORCE)],
        *[(item(POOLED, 1000 * AGE), {"leased": {VERSION}} | more, GcVerdict.LEASED) for more in ({}, FORCE)],
        *[(item(POOLED, 1000 * AGE), UNREAD | more, GcVerdict.UNKNOWN) for more in ({}, FORCE)],
        *[(item(PART, 1000 * AGE), UNREAD | more, GcVerdict.RUBBISH) for more in ({}, FORCE)],
        # A file that was made durable can be recovered for a week.
        (item(RECORD, RECOVERABLE - 1), {}, GcVerdict.RECOVERABLE),
        (item(RECORD, RECOVERABLE), {}, GcVerdict.RUBBISH),
        (item(RECORD, RECOVERABLE - 1), FORCE, GcVerdict.RUBBISH),
        *[(item(kind, 10 * AGE), RECORDED, GcVerdict.RECOVERABLE) for kind in (PART, POOLED)],
        # A lock that has run out ends its versions in a directory without living locks.
        (item(LOCK, LEASE - 1), ENDED, GcVerdict.LEASED),
        (item(LOCK, LEASE + 1), ENDED, GcVerdict.RUBBISH),
        (item(PART, 1), ENDED, GcVerdict.RUBBISH),
        (item(RECORD, 1, published=True), ENDED, GcVerdict.RUBBISH),
        (item(RECORD, 1), ENDED, GcVerdict.RECOVERABLE),
        (item(PART, FORCED_AGE - 1, version=OTHER), ENDED, GcVerdict.YOUNG),
        (item(PART, FORCED_AGE, version=OTHER), ENDED, GcVerdict.RUBBISH),
    ],
)
def test_the_verdict(thing: Item, known: dict[str, object], verdict: GcVerdict) -> None:
    assert judge(thing, facts(**known)) is verdict


@pytest.mark.parametrize("kind", [HiddenKind.PART, HiddenKind.RECORD, HiddenKind.MANIFEST, HiddenKind.SCRATCH])
@pytest.mark.parametrize("protected", [{"leased": {VERSION}}, {"locked": {b"/d/model"}}], ids=str)
@pytest.mark.parametrize("force", [False, True])
def test_a_live_lock_protects_what_it_names_and_what_belongs_to_its_file(
    kind: HiddenKind, protected: dict[str, object], force: bool
) -> None:
    assert judge(item(kind, 10 * AGE, published=True), facts(**protected, force=force)) is GcVerdict.LEASED


@pytest.mark.parametrize("changed_ns", [-(10**9), 0, NOW + 1, NOW + 10**18])
@pytest.mark.parametrize("kind", list(HiddenKind))
def test_a_time_that_is_unknown_or_to_come_is_not_old(kind: HiddenKind, changed_ns: int) -> None:
    strange = dataclasses.replace(item(kind, 0), changed_ns=changed_ns)
    assert judge(strange, facts(force=True)) in (GcVerdict.YOUNG, GcVerdict.LEASED)


SOME_VERSIONS = st.sampled_from([set(), {VERSION}])


@given(
    kind=st.sampled_from(HiddenKind),
    seconds=st.floats(-10 * AGE, 100 * AGE),
    published=st.booleans(),
    leased=SOME_VERSIONS,
    referenced=SOME_VERSIONS,
    recorded=SOME_VERSIONS,
    complete=st.booleans(),
    force=st.booleans(),
)
def test_rubbish_is_old_and_nobodys(
    kind: HiddenKind,
    seconds: float,
    published: bool,
    leased: set[str],
    referenced: set[str],
    recorded: set[str],
    complete: bool,
    force: bool,
) -> None:
    known = facts(leased=leased, referenced=referenced, recorded=recorded, complete=complete, force=force)
    found = judge(item(kind, seconds, published=published), known)
    if found is GcVerdict.RUBBISH:
        assert seconds >= (FORCED_AGE if force else AGE)
        assert kind is HiddenKind.LOCK or not leased
        assert kind is not HiddenKind.VERSION or (complete and not referenced)
