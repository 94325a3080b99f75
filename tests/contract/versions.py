"""Conformance of every store when a file is replaced, changed or removed: never a mix of two versions."""

from __future__ import annotations

from typing import ClassVar

import pytest

from stripefs.errors import NotFound, StaleVersion, StoreError
from stripefs.store.base import Identity, Store
from tests.support.stores import Populate, content

_SIZE = 300_001


class VersionConformance:
    """A part of StoreConformance, which has the fixtures."""

    gone: ClassVar[tuple[type[StoreError], ...]] = (StaleVersion,)
    """Permitted errors of reading a version that is gone."""

    def test_bytes_in_memory_are_those_of_the_version(self, store: Store, populate: Populate, folder: bytes) -> None:
        old = content(20_000, 1)
        populate.write(folder + b"/file", old)
        handle = store.open(folder + b"/file", store.stat(folder + b"/file").identity)
        assert handle.read_now(5, 1000) in (None, old[5:1005])
        populate.write(folder + b"/file", content(20_000, 2))
        assert handle.read_now(0, 20_000) in (None, old)
        handle.close()

    def test_expecting_another_version(self, store: Store, populate: Populate, folder: bytes) -> None:
        populate.write(folder + b"/file", b"old")
        before = store.stat(folder + b"/file").identity
        populate.write(folder + b"/file", b"new version")
        with pytest.raises(StaleVersion):
            store.open(folder + b"/file", before)
        with pytest.raises(StaleVersion):
            store.open(folder + b"/file", Identity(11, 1, "another"))

    def test_a_replaced_file_has_another_identity(self, store: Store, populate: Populate, folder: bytes) -> None:
        populate.write(folder + b"/file", b"old")
        before = store.stat(folder + b"/file").identity
        # Without file ids a version may differ in length only: modification times can be as coarse as a second.
        populate.write(folder + b"/file", b"new" if store.capabilities.file_ids else b"newer")
        assert store.stat(folder + b"/file").identity != before

    @pytest.mark.parametrize("change", ["replace", "append", "truncate", "delete"])
    def test_a_change_under_an_open_handle(self, store: Store, populate: Populate, folder: bytes, change: str) -> None:
        path = folder + b"/" + change.encode()
        old, new = content(_SIZE, 1), content(_SIZE + 7, 2)
        populate.write(path, old)
        handle = store.open(path)
        assert bytes(handle.read(0, 1000)) == old[:1000]
        if change == "replace":
            populate.write(path, new)
        elif change == "append":
            populate.append(path, new)
        elif change == "truncate":
            populate.truncate(path, 5000)
        else:
            populate.delete(path)
        for start in range(0, _SIZE - 10_000, 20_000):
            try:
                assert bytes(handle.read(start, 10_000)) == old[start : start + 10_000]
            except self.gone:
                continue
        handle.close()

    def test_a_new_handle_sees_the_new_version(self, store: Store, populate: Populate, folder: bytes) -> None:
        old, new = content(_SIZE, 1), content(_SIZE + 7, 2)
        populate.write(folder + b"/file", old)
        first = store.open(folder + b"/file")
        populate.write(folder + b"/file", new)
        second = store.open(folder + b"/file")
        assert second.status.length == len(new)
        assert bytes(second.read(0, len(new))) == new
        first.close()
        assert bytes(second.read(5, 100)) == new[5:105]
        second.close()

    def test_open_of_a_deleted_file(self, store: Store, populate: Populate, folder: bytes) -> None:
        populate.write(folder + b"/file", b"x")
        before = store.stat(folder + b"/file").identity
        populate.delete(folder + b"/file")
        with pytest.raises((NotFound, StaleVersion)):
            store.open(folder + b"/file", before)
