"""Conformance of every store whose names change: directories, moves, attributes; a base of `WriteConformance`."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import pytest

from stripefs.errors import (
    Exists,
    IsADirectory,
    NotADirectory,
    NotEmpty,
    NotFound,
    StaleVersion,
    StoreError,
    Unsupported,
)
from stripefs.store.base import Attributes, Kind, Store
from tests.contract.putting import read
from tests.support.stores import Populate, content, listing


class NamespaceConformance:
    """Needs the fixtures of StoreConformance."""

    time_step: ClassVar[int] = 1_000_000
    """The store's unit of times, in nanoseconds."""

    below_a_file: ClassVar[tuple[type[StoreError], ...]]
    moves_directories: ClassVar[bool] = True

    # Directories

    def test_directories_come_and_go(self, store: Store, populate: Populate, folder: bytes) -> None:
        store.mkdir(folder + b"/a")
        store.mkdir(folder + b"/a/b", 0o750)
        assert store.stat(folder + b"/a/b").kind is Kind.DIRECTORY
        if store.capabilities.permissions:
            assert store.stat(folder + b"/a/b").mode == 0o750
        with pytest.raises(NotEmpty):
            store.rmdir(folder + b"/a")
        store.rmdir(folder + b"/a/b")
        store.rmdir(folder + b"/a")
        assert listing(store, folder) == []

    def test_directories_that_cannot_be_made(self, store: Store, populate: Populate, folder: bytes) -> None:
        populate.write(folder + b"/file", b"x")
        for path in (folder, folder + b"/file", b"/"):
            with pytest.raises(Exists):
                store.mkdir(path)
        with pytest.raises(NotFound):
            store.mkdir(folder + b"/nothing/below")
        with pytest.raises(self.below_a_file):
            store.mkdir(folder + b"/file/below")

    def test_directories_that_cannot_be_removed(self, store: Store, populate: Populate, folder: bytes) -> None:
        populate.write(folder + b"/file", b"x")
        with pytest.raises(NotADirectory):
            store.rmdir(folder + b"/file")
        with pytest.raises(NotFound):
            store.rmdir(folder + b"/nothing")
        with pytest.raises(StoreError):
            store.rmdir(b"/")
        assert read(store, folder + b"/file") == b"x"

    # Moves

    def test_a_file_moves(self, store: Store, populate: Populate, folder: bytes) -> None:
        populate.write(folder + b"/old", content(1000))
        populate.mkdir(folder + b"/below")
        before = store.stat(folder + b"/old").identity
        store.rename(folder + b"/old", folder + b"/below/new")
        assert [status.name for status in listing(store, folder)] == [b"below"]
        assert read(store, folder + b"/below/new") == content(1000)
        if store.capabilities.file_ids:
            assert store.stat(folder + b"/below/new").identity == before

    def test_a_directory_moves(self, store: Store, populate: Populate, folder: bytes) -> None:
        populate.write(folder + b"/old/a/file", b"x")
        if not self.moves_directories:
            with pytest.raises(Unsupported):
                store.rename(folder + b"/old", folder + b"/new")
            return
        store.rename(folder + b"/old", folder + b"/new")
        assert [status.name for status in listing(store, folder)] == [b"new"]
        assert read(store, folder + b"/new/a/file") == b"x"

    def test_a_move_replaces_only_what_it_may(self, store: Store, populate: Populate, folder: bytes) -> None:
        populate.write(folder + b"/a", b"a")
        populate.write(folder + b"/b", b"bb")
        with pytest.raises(Exists):
            store.rename(folder + b"/a", folder + b"/b")
        assert (read(store, folder + b"/a"), read(store, folder + b"/b")) == (b"a", b"bb")
        if not store.capabilities.replace:
            with pytest.raises(Unsupported):
                store.rename(folder + b"/a", folder + b"/b", replace=True)
            return
        store.rename(folder + b"/a", folder + b"/b", replace=True)
        assert read(store, folder + b"/b") == b"a"
        assert [status.name for status in listing(store, folder)] == [b"b"]
        store.rename(folder + b"/b", folder + b"/c", replace=True)
        assert [status.name for status in listing(store, folder)] == [b"c"]

    def test_moves_between_kinds(self, store: Store, populate: Populate, folder: bytes) -> None:
        if not (store.capabilities.replace and self.moves_directories):
            assert store.capabilities.writes
            return
        populate.write(folder + b"/file", b"x")
        populate.write(folder + b"/full/file", b"x")
        populate.mkdir(folder + b"/empty")
        populate.mkdir(folder + b"/moving")
        for source, target, error in (
            (b"/file", b"/empty", IsADirectory),
            (b"/file", b"/full", IsADirectory),
            (b"/empty", b"/file", NotADirectory),
            (b"/moving", b"/full", NotEmpty),
        ):
            with pytest.raises(error):
                store.rename(folder + source, folder + target, replace=True)
            with pytest.raises(Exists):
                store.rename(folder + source, folder + target)
        store.rename(folder + b"/moving", folder + b"/empty", replace=True)
        assert [status.name for status in listing(store, folder)] == [b"empty", b"file", b"full"]

    def test_moves_from_and_to_nowhere(self, store: Store, populate: Populate, folder: bytes) -> None:
        populate.write(folder + b"/file", b"x")
        for replace in (False, True):
            with pytest.raises(NotFound):
                store.rename(folder + b"/nothing", folder + b"/new", replace=replace and store.capabilities.replace)
            with pytest.raises(NotFound):
                store.rename(folder + b"/file", folder + b"/no/new", replace=replace and store.capabilities.replace)
        for source, target in ((b"/", folder + b"/root"), (folder + b"/file", b"/")):
            with pytest.raises(StoreError):
                store.rename(source, target)
        assert read(store, folder + b"/file") == b"x"

    @pytest.mark.parametrize("replacing", [False, True])
    def test_one_of_many_moves_wins(self, store: Store, populate: Populate, folder: bytes, replacing: bool) -> None:
        """Of those to a free name, and of those that replace a file on a condition."""
        if not (store.capabilities.compare if replacing else store.capabilities.put_if_absent):
            assert store.capabilities.writes
            return
        folder += b"/%d" % replacing  # the cases share the one that is named after the test
        for number in range(8):
            populate.write(folder + b"/%d" % number, b"%d" % number)
        if replacing:
            populate.write(folder + b"/won", b"before")
            seen = store.stat(folder + b"/won").identity

        def move(number: int) -> bool:
            source = folder + b"/%d" % number
            with contextlib.suppress(StaleVersion if replacing else Exists):
                if replacing:
                    store.compare_and_rename(source, folder + b"/won", seen)
                else:
                    store.rename(source, folder + b"/won")
                return True
            return False

        with ThreadPoolExecutor(8) as pool:
            won = list(pool.map(move, range(8)))
        assert won.count(True) == 1
        assert read(store, folder + b"/won") == b"%d" % won.index(True)
        assert len(listing(store, folder)) == 8

    def test_a_file_is_replaced_or_removed_only_while_it_is_the_one_that_was_seen(
        self, store: Store, populate: Populate, folder: bytes
    ) -> None:
        if not store.capabilities.replace:
            assert not store.capabilities.compare
            return
        path = folder + b"/file"
        for number in range(3):
            populate.write(folder + b"/%d" % number, b"%d" % number * (2 + number))
        populate.write(path, b"first")
        seen = store.stat(path).identity
        store.compare_and_rename(folder + b"/0", path, seen)
        assert read(store, path) == b"00"
        for missing in (path, folder + b"/nothing"):
            with pytest.raises(StaleVersion):
                store.compare_and_rename(folder + b"/1", missing, seen)
            with pytest.raises(StaleVersion):
                store.compare_and_remove(missing, seen)
        with pytest.raises(NotFound):
            store.compare_and_rename(folder + b"/none", path, store.stat(path).identity)
        assert (read(store, path), read(store, folder + b"/1")) == (b"00", b"111")
        seen = store.stat(path).identity
        store.compare_and_remove(path, seen)
        with pytest.raises(StaleVersion):
            store.compare_and_rename(folder + b"/2", path, seen)
        assert [status.name for status in listing(store, folder)] == [b"1", b"2"]

    # Attributes

    def test_attributes(self, store: Store, populate: Populate, folder: bytes) -> None:
        path = folder + b"/file"
        populate.write(path, b"x")
        if not store.capabilities.attributes:
            with pytest.raises(Unsupported):
                store.set_attributes(path, Attributes(mode=0o600))
            return
        before = store.stat(path)
        store.set_attributes(path, Attributes(mode=0o640))
        store.set_attributes(path, Attributes(mtime_ns=1_600_000_000_123_456_789))
        after = store.stat(path)
        assert (after.mode, after.owner, after.length) == (0o640, before.owner, 1)
        assert after.mtime_ns == 1_600_000_000_123_456_789 // self.time_step * self.time_step
        store.set_attributes(path, Attributes(atime_ns=1_700_000_000_000_000_000, owner=before.owner))
        assert store.stat(path).mtime_ns == after.mtime_ns
        store.set_attributes(path, Attributes())
        store.set_attributes(folder, Attributes(mode=0o711, mtime_ns=1_600_000_000_000_000_000))
        assert store.stat(folder).mode == 0o711
        with pytest.raises(NotFound):
            store.set_attributes(folder + b"/nothing", Attributes(mode=0o600))

    def test_the_number_of_replicas(self, store: Store, populate: Populate, folder: bytes) -> None:
        path = folder + b"/file"
        populate.write(path, b"x")
        if not store.capabilities.replication:
            with pytest.raises(Unsupported):
                store.set_attributes(path, Attributes(replication=2))
            return
        before = store.stat(path)
        store.set_attributes(path, Attributes(replication=before.replication + 1))
        after = store.stat(path)
        assert after.replication == before.replication + 1
        assert after.identity == before.identity
        with pytest.raises(NotFound):
            store.set_attributes(folder + b"/nothing", Attributes(replication=2))
        with pytest.raises(IsADirectory):
            store.set_attributes(folder, Attributes(replication=2))
