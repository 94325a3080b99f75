"""Conformance of every store that takes files; mixed into a client's conformance class."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from stripefs.errors import Exists, IsADirectory, NotADirectory, NotFound, StaleVersion, Unsupported
from stripefs.store.base import Store
from tests.support.stores import content, listing

MIB = 1 << 20


class PutConformance:
    """Needs the fixtures of StoreConformance."""

    def test_a_file_is_made_with_the_directories_above_it(self, store: Store, folder: bytes) -> None:
        pieces = [content(3 * MIB, 1), b"", content(5, 2)]
        store.put(folder + b"/a/b/file", pieces)
        assert read(store, folder + b"/a/b/file") == b"".join(pieces)
        assert [status.name for status in listing(store, folder + b"/a/b")] == [b"file"]

    def test_directories_are_not_made_where_they_are_not_wanted(self, store: Store, folder: bytes) -> None:
        store.put(folder + b"/file", [b"x"])
        store.put(folder + b"/other", [b"y"], parents=False)
        for pieces in ([b"x"], []):
            with pytest.raises(NotFound):
                store.put(folder + b"/a/file", pieces, parents=False)
            with pytest.raises((NotADirectory, NotFound)):
                store.put(folder + b"/file/below", pieces, parents=False)
        assert [status.name for status in listing(store, folder)] == [b"file", b"other"]

    def test_a_status_that_is_answered_is_the_files(self, store: Store, folder: bytes) -> None:
        for _ in range(2):
            status = store.put(folder + b"/file", [content(1000)], replace=True)
            if status is not None:
                now = store.stat(folder + b"/file")
                assert (status.identity, status.name, status.mode) == (now.identity, now.name, now.mode)

    def test_an_empty_file(self, store: Store, folder: bytes) -> None:
        store.put(folder + b"/empty", [])
        assert store.stat(folder + b"/empty").length == 0

    def test_what_is_there_stays_unless_it_is_to_be_replaced(self, store: Store, folder: bytes) -> None:
        path = folder + b"/file"
        store.put(path, [b"first"])
        with pytest.raises(Exists):
            store.put(path, [b"second"])
        assert read(store, path) == b"first"
        store.put(path, [b"third"], replace=True)
        assert read(store, path) == b"third"
        assert [status.name for status in listing(store, folder)] == [b"file"]

    def test_a_document(self, store: Store, folder: bytes) -> None:
        path, data = folder + b"/document", b'{"of": "somebody"}' + b" " * 3000
        store.put(folder + b"/file", [b"x"])
        status = store.put_document(path, data)
        assert status is None or status.identity == store.stat(path).identity
        assert bytes(store.get_document(path)) == data
        with pytest.raises(Exists):
            store.put_document(path, b"another")
        if store.capabilities.replace:
            store.rename(path, folder + b"/moved")
            path = folder + b"/moved"
        assert bytes(store.get_document(path)) == data
        assert bytes(store.get_document(folder + b"/file")) == b"x"
        for missing in (folder + b"/none", folder + b"/none/below"):
            with pytest.raises(NotFound):
                store.get_document(missing)
        with pytest.raises(NotFound):
            store.put_document(folder + b"/none/below", data)
        assert {status.name for status in listing(store, folder)} == {b"file", path.rpartition(b"/")[2]}

    def test_a_document_that_moves(self, store: Store, folder: bytes) -> None:
        one, other, taken = (folder + b"/" + name for name in (b"one", b"other", b"taken"))
        store.put_document(one, b"text")
        store.put_document(taken, b"somebody's")
        seen = store.stat(one).identity
        if not store.capabilities.move_document:
            with pytest.raises(Unsupported):
                store.move_document(one, other, seen, b"next")
            return
        store.move_document(one, other, seen, b"next")
        assert bytes(store.get_document(other)) == b"next"
        store.move_document(other, other, seen, b"again")
        assert store.stat(other).identity == seen
        assert bytes(store.get_document(other)) == b"again"
        with pytest.raises(Exists):
            store.move_document(other, taken, seen, b"late")
        assert bytes(store.get_document(taken)) == b"somebody's"
        assert store.stat(other).identity == seen
        store.remove(other)
        store.put_document(other, b"another's")
        with pytest.raises(StaleVersion):
            store.move_document(other, one, seen, b"late")
        assert bytes(store.get_document(other)) == b"another's"
        store.put(one, [b"bytes"])
        with pytest.raises(Unsupported):
            store.move_document(one, folder + b"/more", store.stat(one).identity, b"late")
        assert {status.name for status in listing(store, folder)} == {b"one", b"other", b"taken"}

    def test_a_source_that_fails_leaves_nothing(self, store: Store, folder: bytes) -> None:
        def failing() -> Iterator[bytes]:
            yield content(MIB)
            raise ZeroDivisionError

        store.put(folder + b"/before", [b"x"])
        with pytest.raises(ZeroDivisionError):
            store.put(folder + b"/file", failing())
        assert [status.name for status in listing(store, folder)] == [b"before"]

    def test_one_of_many_wins(self, store: Store, folder: bytes) -> None:
        if not store.capabilities.put_if_absent:
            assert store.capabilities.put
            return

        def put(number: int) -> int:
            try:
                store.put(folder + b"/one", [b"%d" % number])
            except Exists:
                return 0
            return 1

        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(put, range(24))) == 1
        assert [status.name for status in listing(store, folder)] == [b"one"]

    def test_remove(self, store: Store, folder: bytes) -> None:
        store.put(folder + b"/d/file", [b"x"])
        store.remove(folder + b"/d/file")
        with pytest.raises(NotFound):
            store.stat(folder + b"/d/file")
        with pytest.raises(NotFound):
            store.remove(folder + b"/d/file")
        store.put(folder + b"/e/file", [b"x"])
        with pytest.raises(IsADirectory):
            store.remove(folder + b"/e")


def read(store: Store, path: bytes) -> bytes:
    handle = store.open(path)
    try:
        return bytes(handle.read(0, handle.status.length))
    finally:
        handle.close()
