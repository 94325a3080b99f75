"""Conformance of every store that lists directories; mixed into a client's conformance class."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import pytest

from stripefs.errors import NotADirectory, NotFound
from stripefs.store.base import Kind, Store
from tests.support.stores import ODD_NAMES, Populate, content, listing


class ListingConformance:
    """Needs the fixtures of StoreConformance."""

    odd_names: ClassVar[tuple[bytes, ...]] = ODD_NAMES
    many: ClassVar[int] = 40
    """Entries of a large directory: more than one batch or page where that is cheap."""

    def test_the_root_lists(self, store: Store, folder: bytes) -> None:
        assert store.capabilities.listing
        assert folder[1:] in [status.name for status in listing(store, b"/")]

    def test_an_empty_directory(self, store: Store, populate: Populate, folder: bytes) -> None:
        populate.mkdir(folder + b"/below")
        assert listing(store, folder + b"/below") == []

    def test_listed_and_looked_at_agree(self, store: Store, populate: Populate, folder: bytes) -> None:
        populate.write(folder + b"/file", content(1234))
        status = store.stat(folder + b"/file")
        [listed] = listing(store, folder)
        assert status.identity == listed.identity
        assert (status.kind, status.mode, status.block_size) == (listed.kind, listed.mode, listed.block_size)
        assert (status.name, status.owner) == (listed.name, listed.owner)

    def test_what_cannot_be_listed(self, store: Store, populate: Populate, folder: bytes) -> None:
        populate.write(folder + b"/file", b"x")
        for path in (folder + b"/nothing", folder + b"/nothing/below"):
            with pytest.raises(NotFound):
                listing(store, path)
        with pytest.raises(NotADirectory):
            listing(store, folder + b"/file")

    def test_odd_names_are_listed(self, store: Store, populate: Populate, folder: bytes) -> None:
        for name in self.odd_names:
            populate.write(folder + b"/" + name, name)
        assert [status.name for status in listing(store, folder)] == sorted(self.odd_names)

    def test_listed_names_that_are_not_text(self, store: Store, populate: Populate, folder: bytes) -> None:
        path = folder + b"/\xff\xfe"
        if store.capabilities.any_names:
            populate.write(path, b"x")
            assert [status.name for status in listing(store, folder)] == [b"\xff\xfe"]
        else:
            with pytest.raises(NotFound):
                listing(store, path)

    def test_listing_is_in_byte_order_and_whole(self, store: Store, populate: Populate, folder: bytes) -> None:
        names = [b"%d" % number for number in range(self.many)] + [b"Z", b"a", "é".encode(), b"a.b", b"a-b"]
        for name in names:
            populate.write(folder + b"/" + name, b"")
        folders = [b"0-folder", b"a-folder", b"z"]
        for name in folders:
            populate.mkdir(folder + b"/" + name)
        batches = list(store.scandir(folder))
        assert [status.name for batch in batches for status in batch] == sorted(names + folders)
        assert all(batches)

    def test_listing_after_a_name(self, store: Store, populate: Populate, folder: bytes) -> None:
        names = [b"a", b"ab", b"b", b"b-", b"c", "ü".encode()]
        for name in names:
            populate.write(folder + b"/" + name, b"")
        for after in (*names, b"0", b"aa", b"b.", b"z", b"\xff"):
            assert [status.name for status in listing(store, folder, after)] == sorted(n for n in names if n > after)

    def test_listing_shows_kinds(self, store: Store, populate: Populate, folder: bytes) -> None:
        populate.write(folder + b"/below/file", b"xyz")
        populate.write(folder + b"/file", b"xy")
        found = {status.name: (status.kind, status.length) for status in listing(store, folder)}
        assert found[b"file"] == (Kind.FILE, 2)
        assert found[b"below"][0] is Kind.DIRECTORY
        assert len(found) == 2

    def test_many_threads_list(self, store: Store, populate: Populate, folder: bytes) -> None:
        for number in range(8):
            populate.write(folder + b"/%d" % number, b"%d" % number)
        with ThreadPoolExecutor(16) as pool:
            assert list(pool.map(lambda _: len(listing(store, folder)), range(64))) == [8] * 64
