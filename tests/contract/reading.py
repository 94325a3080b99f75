"""The conformance suite of all store clients. Each client's test subclasses `StoreConformance` and provides `place`.

    class TestLocal(ListingConformance, StoreConformance):
        @pytest.fixture(scope="class")
        @classmethod
        def place(cls, tmp_path_factory):
            ...
            yield Place(store, populate)

`version_conformance` covers files that change. Capabilities that only some stores have come with suites of their own,
mixed in: `listing_conformance` (with the capability `listing`) and `put_conformance` (with `put`).

The store may be shared by all tests of the class: each works in a folder of its own. Class attributes name permitted
differences of a client; a subclass states them with the reason.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stripefs.errors import Abandoned, IsADirectory, NotADirectory, NotFound, StaleVersion, StoreError, Unsupported
from stripefs.store.base import Handle, Kind, Store
from tests.contract.versions import VersionConformance
from tests.support.stores import ODD_NAMES, Place, Populate, RecordingWatch, content, listing

_SIZE = 300_001
_CASES = settings(
    max_examples=60,
    deadline=None,  # a real store's calls have no upper bound worth failing for
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


class StoreConformance(VersionConformance):
    """The suite."""

    below_a_file: ClassVar[tuple[type[StoreError], ...]] = (NotADirectory,)
    """Permitted errors of stat and open of a path below a file."""
    odd_names: ClassVar[tuple[bytes, ...]] = ODD_NAMES

    @pytest.fixture(scope="class")
    @classmethod
    def place(cls) -> Iterator[Place]:
        raise NotImplementedError("the subclass provides the place")

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls, place: Place) -> Store:
        return place.store

    @pytest.fixture(scope="class")
    @classmethod
    def populate(cls, place: Place) -> Populate:
        return place.populate

    @pytest.fixture
    def folder(self, populate: Populate, request: pytest.FixtureRequest) -> bytes:
        path = b"/" + str(request.node.name).partition("[")[0].encode()
        populate.mkdir(path)
        return path

    @pytest.fixture(scope="class")
    @classmethod
    def big(cls, place: Place) -> Iterator[tuple[Handle, bytes]]:
        """A file of several blocks (where the place has blocks), open, and its bytes."""
        data = content(_SIZE)
        place.populate.write(b"/big", data)
        handle = place.store.open(b"/big")
        yield handle, data
        handle.close()

    # Paths that exist, and paths that do not

    def test_status_of_a_file(self, store: Store, populate: Populate, folder: bytes) -> None:
        populate.write(folder + b"/file", content(1234))
        status = store.stat(folder + b"/file")
        assert (status.name, status.kind, status.length) == (b"file", Kind.FILE, 1234)
        assert status.mtime_ns > 0
        assert status.mode == status.mode & 0o7777

    def test_all_ways_to_a_status_agree(self, store: Store, populate: Populate, folder: bytes) -> None:
        populate.write(folder + b"/file", content(1234))
        status = store.stat(folder + b"/file")
        handle = store.open(folder + b"/file")
        handle.close()
        assert status.identity == handle.status.identity
        assert (status.kind, status.mode, status.block_size) == (
            handle.status.kind,
            handle.status.mode,
            handle.status.block_size,
        )

    def test_status_of_a_directory(self, store: Store, populate: Populate, folder: bytes) -> None:
        populate.mkdir(folder + b"/below")
        for path, name in ((b"/", b""), (folder + b"/below", b"below")):
            status = store.stat(path)
            assert (status.name, status.kind) == (name, Kind.DIRECTORY)

    def test_missing(self, store: Store, folder: bytes) -> None:
        for path in (folder + b"/nothing", folder + b"/nothing/below"):
            with pytest.raises(NotFound):
                store.stat(path)
            with pytest.raises(NotFound):
                store.open(path)

    def test_below_a_file(self, store: Store, populate: Populate, folder: bytes) -> None:
        populate.write(folder + b"/file", b"x")
        with pytest.raises(self.below_a_file):
            store.stat(folder + b"/file/below")
        with pytest.raises(self.below_a_file):
            store.open(folder + b"/file/below")

    def test_open_of_a_directory(self, store: Store, folder: bytes) -> None:
        with pytest.raises(IsADirectory):
            store.open(folder)
        with pytest.raises(IsADirectory):
            store.open(b"/")

    def test_odd_names(self, store: Store, populate: Populate, folder: bytes) -> None:
        for name in self.odd_names:
            populate.write(folder + b"/" + name, name)
        for name in self.odd_names:
            assert store.stat(folder + b"/" + name).name == name
            handle = store.open(folder + b"/" + name)
            assert bytes(handle.read(0, len(name))) == name
            handle.close()

    def test_names_that_are_not_text(self, store: Store, populate: Populate, folder: bytes) -> None:
        path = folder + b"/\xff\xfe"
        if store.capabilities.any_names:
            populate.write(path, b"x")
            assert store.stat(path).name == b"\xff\xfe"
        else:
            with pytest.raises(NotFound):
                store.stat(path)
            with pytest.raises(NotFound):
                store.open(path)

    def test_a_store_that_cannot_list_says_so(self, store: Store, folder: bytes) -> None:
        if not store.capabilities.listing:
            with pytest.raises(Unsupported):
                listing(store, folder)

    # Bytes

    @pytest.mark.parametrize("size", [0, 1, 300_000])
    def test_a_file_as_a_whole(self, store: Store, populate: Populate, folder: bytes, size: int) -> None:
        path = folder + b"/whole"
        populate.write(path, content(size))
        assert bytes(store.get(path)) == content(size)
        with pytest.raises(NotFound):
            store.get(folder + b"/nothing")
        with pytest.raises(IsADirectory):
            store.get(folder)

    def test_a_read_of_a_small_file(self, store: Store, populate: Populate, folder: bytes) -> None:
        populate.write(folder + b"/file", content(5000))
        populate.write(folder + b"/empty", b"")
        assert bytes(store.read_small(folder + b"/file", 5000)) == content(5000)
        assert bytes(store.read_small(folder + b"/empty", 0)) == b""
        with pytest.raises(StaleVersion):
            store.read_small(folder + b"/file", 4999)
        with pytest.raises(NotFound):
            store.read_small(folder + b"/nothing", 10)
        with pytest.raises(IsADirectory):
            store.read_small(folder, 10)

    def test_reads_of_several_small_files(self, store: Store, populate: Populate, folder: bytes) -> None:
        populate.write(folder + b"/file", content(5000))
        populate.write(folder + b"/long", content(5001))
        populate.write(folder + b"/empty", b"")
        names = (b"/file", b"/nothing", b"/long", b"", b"/\xff", b"/empty", b"/file")
        answers = store.read_small_files([folder + name for name in names], 5000)
        found = [type(answer) if isinstance(answer, StoreError) else bytes(answer) for answer in answers]
        assert found == [content(5000), NotFound, StaleVersion, IsADirectory, NotFound, b"", content(5000)]
        assert store.read_small_files([], 10) == []

    def test_empty_file(self, store: Store, populate: Populate, folder: bytes) -> None:
        populate.write(folder + b"/empty", b"")
        handle = store.open(folder + b"/empty")
        assert handle.status.length == 0
        assert bytes(handle.read(0, 0)) == b""
        assert list(handle.locate(0, 1)) == []
        handle.close()

    @_CASES
    @given(ends=st.tuples(st.integers(0, _SIZE), st.integers(0, _SIZE)))
    def test_any_range_is_exact(self, big: tuple[Handle, bytes], ends: tuple[int, int]) -> None:
        """Also where it is in memory."""
        handle, data = big
        start, stop = sorted(ends)
        found = handle.read_now(start, stop - start)
        assert found is None or bytes(found) == data[start:stop]
        assert bytes(handle.read(start, stop - start)) == data[start:stop]

    @_CASES
    @given(ends=st.tuples(st.integers(0, _SIZE), st.integers(0, _SIZE)))
    def test_locate_covers_without_gaps(self, big: tuple[Handle, bytes], ends: tuple[int, int]) -> None:
        handle, _ = big
        start, stop = sorted(ends)
        blocks = handle.locate(start, stop - start)
        if start == stop:
            assert list(blocks) == []
            return
        assert blocks[0].offset <= start < blocks[0].offset + blocks[0].length
        assert blocks[-1].offset < stop <= blocks[-1].offset + blocks[-1].length
        for block, following in itertools.pairwise(blocks):
            assert block.offset + block.length == following.offset
        size = handle.status.block_size or _SIZE
        for block in blocks:
            assert block.offset % size == 0
            assert block.length == min(size, _SIZE - block.offset)

    def test_hosts_serve_what_they_are_said_to_hold(self, store: Store, big: tuple[Handle, bytes]) -> None:
        handle, data = big
        known = {host.name for host in store.hosts()}
        for block in handle.locate(0, _SIZE):
            assert bool(block.hosts) == store.capabilities.locations
            assert known.issuperset(block.hosts)
            if store.capabilities.choose_host:
                length = min(100, block.length)
                for host in block.hosts:
                    found = handle.read(block.offset, length, host=host)
                    assert bytes(found) == data[block.offset : block.offset + length]

    def test_ranges_outside_the_file_are_refused(self, big: tuple[Handle, bytes]) -> None:
        handle, _ = big
        for offset, length in ((_SIZE, 1), (_SIZE - 1, 2), (0, _SIZE + 1), (-1, 1), (_SIZE + 10, 0), (0, -1)):
            with pytest.raises(StoreError):
                handle.read(offset, length)

    def test_many_threads_on_one_handle(self, big: tuple[Handle, bytes]) -> None:
        handle, data = big
        choose = random.Random(1)
        starts = [choose.randrange(_SIZE) for _ in range(160)]

        def right(start: int) -> bool:
            stop = min(_SIZE, start + 20_000)
            return bytes(handle.read(start, stop - start)) == data[start:stop]

        with ThreadPoolExecutor(16) as pool:
            assert all(pool.map(right, starts))

    def test_many_threads_open_and_look(self, store: Store, populate: Populate, folder: bytes) -> None:
        for number in range(8):
            populate.write(folder + b"/%d" % number, b"%d" % number)

        def right(number: int) -> bool:
            path = folder + b"/%d" % (number % 8)
            handle = store.open(path, store.stat(path).identity)
            data = bytes(handle.read(0, 1))
            handle.close()
            return data == b"%d" % (number % 8)

        with ThreadPoolExecutor(16) as pool:
            assert all(pool.map(right, range(64)))

    # Giving up and closing

    def test_progress_reaches_the_length(self, store: Store, big: tuple[Handle, bytes]) -> None:
        handle, data = big
        watch = RecordingWatch()
        assert bytes(handle.read(0, 200_000, watch=watch)) == data[:200_000]
        assert watch.received == sorted(watch.received)
        assert watch.received[-1:] == [200_000]
        assert watch.close is None

    def test_a_cancelled_read(self, store: Store, big: tuple[Handle, bytes]) -> None:
        handle, data = big
        watch = RecordingWatch(cancelled=True)
        if store.capabilities.cancel:
            with pytest.raises(Abandoned):
                handle.read(0, 200_000, watch=watch)
        else:
            try:
                assert bytes(handle.read(0, 200_000, watch=watch)) == data[:200_000]
            except Abandoned:
                assert watch.received == []
        assert watch.close is None
        assert bytes(handle.read(0, 1000)) == data[:1000]

    def test_a_read_abandoned_on_the_way(self, big: tuple[Handle, bytes]) -> None:
        handle, data = big
        watch = RecordingWatch(give_up_at=1)
        with pytest.raises(Abandoned):
            handle.read(0, 200_000, watch=watch)
        assert watch.close is None
        assert bytes(handle.read(0, 1000)) == data[:1000]

    def test_a_closed_handle(self, store: Store, populate: Populate, folder: bytes) -> None:
        populate.write(folder + b"/file", b"x")
        handle = store.open(folder + b"/file")
        handle.close()
        handle.close()
        with pytest.raises(StoreError):
            handle.read(0, 1)

    def test_close_while_reading(self, store: Store, populate: Populate, folder: bytes) -> None:
        data = content(_SIZE, 3)
        populate.write(folder + b"/file", data)
        handle = store.open(folder + b"/file")
        started = threading.Barrier(9)

        def read(number: int) -> bool:
            started.wait()
            try:
                for start in range(number, _SIZE - 5000, 17_000):
                    if bytes(handle.read(start, 5000)) != data[start : start + 5000]:
                        return False
            except StoreError:
                pass  # closed: an error is right, wrong bytes or another exception are not
            return True

        with ThreadPoolExecutor(8) as pool:
            reads = pool.map(read, range(8))
            started.wait()
            handle.close()
            assert all(reads)

    # Facts

    def test_space(self, store: Store) -> None:
        space = store.space()
        assert space is None or 0 <= space.free <= space.capacity

    def test_facts(self, store: Store) -> None:
        assert "://" in store.url
        facts = store.describe()
        assert facts
        assert all(isinstance(key, str) and isinstance(value, str) for key, value in facts.items())
        assert bool(store.hosts()) == store.capabilities.locations
