"""The rules of gc for hidden files: every rule, and that none of them gives way to another."""

from __future__ import annotations

import dataclasses

import pytest

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
        # A time that is unknown or to come is not old.
        (item(PART, NOW / 1e9), FORCE, GcVerdict.YOUNG),
        (item(PART, NOW / 1e9 + 1), FORCE, GcVerdict.YOUNG),
        (item(PART, -1), FORCE, GcVerdict.YOUNG),
        (item(LOCK, -1), FORCE, GcVerdict.LEASED),
        # A lock protects what it names and what belongs to its file.
        (item(PART, 10 * AGE), FORCE | {"leased": {VERSION}}, GcVerdict.LEASED),
        (item(RECORD, 10 * AGE, published=True), FORCE | {"locked": {b"/d/model"}}, GcVerdict.LEASED),
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
