"""Names that a user may give."""

from __future__ import annotations

from pathlib import Path

import pytest

from stripefs.errors import InvalidName, NameTooLong, NotPermitted, StoreError
from stripefs.store.local import LocalStore
from stripefs.store.striped import StripedStore
from stripefs.write.upload_names import ensure_usable


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
