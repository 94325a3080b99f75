"""Material of the tests of the view."""

from __future__ import annotations

import dataclasses

from stripefs.errors import ServiceDown
from stripefs.store.base import Handle, Identity, Status, Store
from stripefs.store.wrapper import WrappedStore
from tests.support.stores import content

UNIT = 4096
DATA = content(10 * UNIT + 123)
OTHER = content(7 * UNIT, seed=1)


def same(status: Status, *changes: Status) -> bool:
    """Equal but for the time of the last read, which looking at a manifest moves."""
    return {dataclasses.replace(one, atime_ns=0) for one in (status, *changes)} == {
        dataclasses.replace(status, atime_ns=0)
    }


def whole(store: Store, path: bytes) -> bytes:
    return bytes(store.get(path))


class Failing(WrappedStore):
    """Opens of names in `down` fail."""

    NAME = "failing"

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.down: set[bytes] = set()

    def open(self, path: bytes, expect: Identity | None = None) -> Handle:
        if path in self.down:
            raise ServiceDown("away")
        return self.inner.open(path, expect)
