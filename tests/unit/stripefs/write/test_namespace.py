"""Names that a user may give, and a store that contradicts itself about one."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from stripefs.errors import Exists, InvalidName, NameTooLong, NotPermitted, StoreError
from stripefs.store.base import Kind, Status
from stripefs.store.local import LocalStore
from stripefs.store.striped import StripedStore
from stripefs.write.namespace import begin_file
from stripefs.write.upload_names import ensure_usable


async def test_a_file_that_came_though_it_was_seen_before_is_an_error() -> None:
    errors = iter([Exists("strange")])

    async def find(path: bytes) -> Status:
        return Status(b"f", Kind.FILE, 3)

    async def begin(status: Status | None) -> None:
        raise next(errors)

    with pytest.raises(Exists, match="strange"):
        await begin_file(b"/f", find, begin, exclusive=False)


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
    with (
        contextlib.closing(StripedStore(Particular(bytes(tmp_path)))) as store,
        pytest.raises(error) if error else contextlib.nullcontext(),
    ):
        ensure_usable(path, store)
