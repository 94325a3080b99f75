"""Names that a user may give, and files begun at a name that others look at, lock and publish meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stripefs.errors import Busy, Exists, Invalid, InvalidName, NameTooLong, NotPermitted, StoreError
from stripefs.store.base import Kind, Status
from stripefs.store.local import LocalStore
from stripefs.store.striped import StripedStore
from stripefs.write.namespace import begin_file, ensure_not_below
from stripefs.write.upload_names import ensure_usable

THERE = Status(b"f", Kind.FILE, 3)


class Name:
    """A name at which `found` is seen, one after another; `begin` raises the next of `errors` or answers."""

    def __init__(self, found: list[Status | None], errors: list[Exception | None]) -> None:
        self._found: Iterator[Status | None] = iter(found)
        self._errors: Iterator[Exception | None] = iter(errors)
        self.begun: list[Status | None] = []

    async def find(self, path: bytes) -> Status | None:
        assert path == b"/f"
        return next(self._found)

    async def begin(self, status: Status | None) -> str:
        self.begun.append(status)
        if error := next(self._errors):
            raise error
        return "begun"

    async def open(self, *, exclusive: bool) -> str:
        return await begin_file(b"/f", self.find, self.begin, exclusive=exclusive)


@pytest.mark.parametrize("exclusive", [False, True])
async def test_a_free_name(exclusive: bool) -> None:
    name = Name([None], [None])
    assert await name.open(exclusive=exclusive) == "begun"
    assert name.begun == [None]


async def test_a_file_that_is_there_is_replaced_unless_that_is_excluded() -> None:
    assert await Name([THERE], [None]).open(exclusive=False) == "begun"
    name = Name([THERE], [])
    with pytest.raises(Exists):
        await name.open(exclusive=True)
    assert name.begun == []


async def test_a_file_that_somebody_writes_is_there_for_who_excludes_that() -> None:
    with pytest.raises(Busy, match="host:1"):
        await Name([None], [Busy("written by host:1")]).open(exclusive=False)
    with pytest.raises(Exists, match="host:1"):
        await Name([None], [Busy("written by host:1")]).open(exclusive=True)


async def test_a_file_that_was_published_since_the_look_is_looked_at_again() -> None:
    name = Name([None, THERE], [Exists("it came"), None])
    assert await name.open(exclusive=False) == "begun"
    assert name.begun == [None, THERE]
    with pytest.raises(Exists, match="it came"):
        await Name([None], [Exists("it came")]).open(exclusive=True)
    with pytest.raises(Exists, match="strange"):
        await Name([THERE], [Exists("strange")]).open(exclusive=False)


def test_a_directory_does_not_go_below_itself() -> None:
    ensure_not_below(b"/d", b"/d2")
    ensure_not_below(b"/d", b"/d")
    with pytest.raises(Invalid):
        ensure_not_below(b"/d", b"/d/e")


class Particular(LocalStore):
    def refused_name(self, name: bytes) -> str:
        return "it has a colon" if b":" in name else ""


@pytest.mark.parametrize(
    ("path", "error"),
    [
        (b"/a/b\\c", None),
        (b"/a/b:c", InvalidName),
        (b"/a:b/c", InvalidName),
        (b"/" + b"n" * 255, None),
        (b"/" + b"n" * 256 + b"/c", NameTooLong),
        (b"/.stripefs", NotPermitted),
    ],
)
def test_usable_names(tmp_path: Path, path: bytes, error: type[StoreError] | None) -> None:
    store = StripedStore(Particular(bytes(tmp_path)))
    try:
        if error is None:
            ensure_usable(path, store)
        else:
            with pytest.raises(error):
                ensure_usable(path, store)
    finally:
        store.close()
