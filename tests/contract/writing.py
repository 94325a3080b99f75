"""Conformance of every store that is written to piece by piece; mixed into a client's conformance class."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

from stripefs.errors import (
    Exists,
    IsADirectory,
    NotFound,
    StoreError,
    Transient,
    Unsupported,
)
from stripefs.format.manifest import MANIFEST_BLOCK_SIZE
from stripefs.store.base import Buffer, Kind, Sink, Status, Store
from tests.contract.namespace import NamespaceConformance
from tests.contract.putting import read
from tests.support.stores import Populate, content, listing

MIB = 1 << 20
_PATIENCE = 60.0  # seconds
_T = TypeVar("_T")


class WriteConformance(NamespaceConformance):
    """Needs the fixtures of StoreConformance."""

    # Files made piece by piece

    @pytest.mark.parametrize("private", [False, True])
    @pytest.mark.parametrize("told", [True, False])
    def test_a_file_written_in_pieces(self, store: Store, folder: bytes, told: bool, private: bool) -> None:
        pieces: list[Buffer] = [content(3 * MIB, 1), b"", b"x", memoryview(content(MIB, 2))[5:]]
        whole = b"".join(pieces)
        path = folder + f"/{told}-{private}".encode()
        sink, status = patiently(lambda: in_pieces(store, path, pieces, len(whole) if told else None, private=private))
        assert (status.name, status.kind, status.length) == (path.rpartition(b"/")[2], Kind.FILE, len(whole))
        assert status.identity == store.stat(path).identity
        assert read(store, path) == whole
        sink.abort()  # after a close it has nothing to do
        assert read(store, path) == whole

    def test_what_was_written_may_be_reused(self, store: Store, folder: bytes) -> None:
        buffer = bytearray(content(100_000, 1))
        sink = store.create(folder + b"/file")
        sink.write(buffer)
        buffer[:] = content(100_000, 2)
        sink.write(buffer)
        buffer[:] = bytes(100_000)
        sink.close()
        assert read(store, folder + b"/file") == content(100_000, 1) + content(100_000, 2)

    def test_an_empty_file_by_create(self, store: Store, folder: bytes) -> None:
        assert store.create(folder + b"/file").close().length == 0
        assert read(store, folder + b"/file") == b""

    def test_the_mark_of_a_manifest_is_the_file_s_own(self, store: Store, folder: bytes) -> None:
        """It is there from the start, moves with the file, and has nothing to do with its bytes."""
        marks = store.capabilities.marks

        def marked(path: bytes) -> set[bool]:
            handle = store.open(path)
            handle.close()
            [listed] = [entry for entry in listing(store, folder) if entry.name == path.rpartition(b"/")[2]]
            return {store.stat(path).marked, handle.status.marked, listed.marked}

        sink = patiently(lambda: store.create(folder + b"/new", block_size=MANIFEST_BLOCK_SIZE, length=5))
        assert sink.complete([b"bytes"]).marked is marks
        store.put(folder + b"/file", [b"bytes"])
        assert (marked(folder + b"/new"), marked(folder + b"/file")) == ({marks}, {False})
        if store.capabilities.replace:
            store.rename(folder + b"/new", folder + b"/file", replace=True)
            assert marked(folder + b"/file") == {marks}
        store.put(folder + b"/file", [b"other"], replace=True)
        assert marked(folder + b"/file") == {False}
        assert read(store, folder + b"/file") == b"other"

    def test_create_takes_no_name_that_is_taken(self, store: Store, populate: Populate, folder: bytes) -> None:
        populate.write(folder + b"/file", b"first")
        populate.mkdir(folder + b"/below")
        for name, error in ((b"/file", Exists), (b"/below", (Exists, IsADirectory))):
            with pytest.raises(error):
                self._make(store, folder + name, b"second")
        assert read(store, folder + b"/file") == b"first"

    def test_create_makes_no_directories(self, store: Store, populate: Populate, folder: bytes) -> None:
        with pytest.raises(NotFound):
            self._make(store, folder + b"/nothing/file", b"x")
        assert listing(store, folder) == []
        populate.write(folder + b"/file", b"x")
        with pytest.raises(self.below_a_file):
            self._make(store, folder + b"/file/below", b"x")

    @pytest.mark.parametrize("size", [0, 100, 5 * MIB])
    def test_an_aborted_file_is_gone(self, store: Store, populate: Populate, folder: bytes, size: int) -> None:
        folder += b"/%d" % size  # the cases share the one that is named after the test
        populate.mkdir(folder)
        sink = store.create(folder + b"/file")
        with contextlib.suppress(Transient):  # a busy NameNode: it got that far
            sink.write(content(size))
        sink.abort()
        sink.abort()
        assert listing(store, folder) == []
        with pytest.raises(StoreError):
            sink.write(b"x")
        with pytest.raises(StoreError):
            sink.close()
        self._make(store, folder + b"/file", b"again")
        assert read(store, folder + b"/file") == b"again"

    def test_many_files_at_once(self, store: Store, folder: bytes) -> None:
        def make(number: int) -> bool:
            data = content(200_000, number)
            self._make(store, folder + b"/%d" % number, data)
            return read(store, folder + b"/%d" % number) == data

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(make, range(12)))

    def test_a_host_that_was_asked_for_holds_every_block(self, store: Store, folder: bytes) -> None:
        if not store.capabilities.place:
            hosts = [host.name for host in store.hosts()]
            with pytest.raises(Unsupported):
                store.create(folder + b"/file", host=hosts[0] if hosts else "h0")
            return
        data = content(3 * MIB + 5)
        for number, host in enumerate(store.hosts()):
            path = folder + b"/%d" % number
            sink = store.create(path, host=host.name, block_size=MIB, replication=1)
            sink.write(data)
            assert sink.close().block_size == MIB
            assert patiently(lambda path=path: placed(store, path)) == [  # type: ignore[misc]
                *[(MIB, host.name)] * 3,
                (5, host.name),
            ]
            handle = store.open(path)
            assert bytes(handle.read(0, MIB, host=host.name)) == data[:MIB]
            handle.close()

    # Joins

    def test_joined_files(self, store: Store, folder: bytes) -> None:
        names = [folder + b"/%d" % number for number in range(4)]
        parts = [content(2 * MIB, 1), content(MIB + 77, 2), content(100, 3), content(MIB, 4)]
        for name, part in zip(names, parts, strict=True):
            self._make(store, name, part, block_size=MIB)
        if not store.capabilities.concat:
            with pytest.raises(Unsupported):
                store.concat(names[0], names[1:])
            return
        patiently(lambda: store.concat(names[0], names[1:]))
        assert read(store, names[0]) == b"".join(parts)
        assert [status.name for status in listing(store, folder)] == [b"0"]
        handle = store.open(names[0])
        blocks = handle.locate(0, handle.status.length)
        assert sum(block.length for block in blocks) == handle.status.length
        handle.close()

    def test_joins_of_what_is_not_there(self, store: Store, populate: Populate, folder: bytes) -> None:
        if not store.capabilities.concat:
            assert store.capabilities.writes
            return
        populate.write(folder + b"/a", b"a")
        populate.write(folder + b"/b", b"b")
        for target, sources in ((b"/nothing", [b"/a"]), (b"/a", [b"/b", b"/nothing"])):
            with pytest.raises(NotFound):
                store.concat(folder + target, [folder + source for source in sources])
        assert (read(store, folder + b"/a"), read(store, folder + b"/b")) == (b"a", b"b")

    @staticmethod
    def _make(store: Store, path: bytes, data: bytes, block_size: int = 0) -> None:
        store.create(path, block_size=block_size).complete([data])


def in_pieces(
    store: Store, path: bytes, pieces: Sequence[Buffer], length: int | None, *, private: bool
) -> tuple[Sink, Status]:
    """A file made of these, and closed; none of it is left where that fails. Raises what the store does."""
    sink = store.create(path, length=length, private=private)
    try:
        for piece in pieces:
            sink.write(piece)
        return sink, sink.close()
    except StoreError:
        sink.abort()
        raise


def placed(store: Store, path: bytes) -> list[tuple[int | str, ...]]:
    """(length, hosts…) of each block. Raises Transient while a replica was not reported yet."""
    with contextlib.closing(store.open(path)) as handle:
        blocks = handle.locate(0, handle.status.length)
    if not all(block.hosts for block in blocks):
        raise Transient("some block has no replica yet")
    return [(block.length, *block.hosts) for block in blocks]


def patiently(act: Callable[[], _T]) -> _T:
    """The result of `act`, tried again while its error says that this may help, as all callers of stores do."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            return act()
        except Transient:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
