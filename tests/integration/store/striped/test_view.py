"""The view in which a striped file is one file: names, versions, listings, pools."""

from __future__ import annotations

import dataclasses
import itertools
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from stripefs.errors import NotFound, ServiceDown, StaleVersion
from stripefs.store import striped_listing
from stripefs.store.base import Buffer, Handle, Identity, Status, Store
from stripefs.store.local import LocalStore
from stripefs.store.striped import StripedStore
from stripefs.store.wrapper import WrappedHandle, WrappedStore
from stripefs.testing import CountingStore, ThrottledStore
from tests.contract.listing import ListingConformance
from tests.contract.putting import PutConformance
from tests.contract.reading import StoreConformance
from tests.integration.store.striped.material import DATA, OTHER, UNIT, Failing, same, whole
from tests.support.populate import LocalPopulate
from tests.support.stores import Place, RecordingWatch, listing
from tests.support.striped_files import write_marked, write_striped


class TestConforms(ListingConformance, PutConformance, StoreConformance):
    """Files that are not striped are as they are without the view."""

    @pytest.fixture(scope="class")
    @classmethod
    def place(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
        root = tmp_path_factory.mktemp("root")
        store = StripedStore(LocalStore(os.fsencode(root)))
        yield Place(store, LocalPopulate(root))
        store.close()


class Striping(LocalPopulate):
    """Makes striped files of three segments."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._store = LocalStore(os.fsencode(root))
        self._versions = itertools.count()

    def write(self, path: bytes, data: bytes) -> None:
        cuts = sorted({min(len(data), 2 * UNIT), min(len(data), 5 * UNIT), len(data)} - {0})
        lengths = [cut - before for before, cut in itertools.pairwise([0, *cuts])]
        widths = [(length, 1 + number % 3) for number, length in enumerate(lengths)]
        version = f"{next(self._versions):016x}"
        assert write_striped(self._store, path, data, widths, version=version).length == len(data)

    def append(self, path: bytes, data: bytes) -> None:
        self.write(path, whole(StripedStore(self._store), path) + data)

    def truncate(self, path: bytes, length: int) -> None:
        self.write(path, whole(StripedStore(self._store), path)[:length])


class TestStriped(ListingConformance, StoreConformance):
    """A striped file is one file."""

    @pytest.fixture(scope="class")
    @classmethod
    def place(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
        root = tmp_path_factory.mktemp("striped")
        store = StripedStore(ThrottledStore(LocalStore(os.fsencode(root)), rate=1e12))
        yield Place(store, Striping(root))
        store.close()

    def test_progress_reaches_the_length(self, store: Store, big: tuple[Handle, bytes]) -> None:
        """It counts on over units, in whole ones, since all of a check is read."""
        watch = RecordingWatch()
        assert bytes(big[0].read(0, 200_000, watch=watch)) == big[1][:200_000]
        assert watch.received == sorted(watch.received)
        assert watch.received[-1] == -(-200_000 // UNIT) * UNIT
        assert watch.close is None


def test_every_version_has_its_identity(store: StripedStore, tmp_path: Path) -> None:
    manifest = write_striped(store, b"/f", DATA)
    assert store.manifest(b"/f") == manifest
    first = store.stat(b"/f")
    target = tmp_path / "f"
    again = dataclasses.replace(manifest, generation=1).to_bytes()
    target.write_bytes(again)  # in place: the same inode and length
    os.utime(target, ns=(first.mtime_ns, first.mtime_ns))
    fresh = StripedStore(LocalStore(os.fsencode(tmp_path)))
    assert fresh.stat(b"/f").identity != first.identity
    with pytest.raises(StaleVersion):
        fresh.open(b"/f", first.identity)
    fresh.close()


# -- hidden names ----------------------------------------------------------------------------------------------------

HIDDEN = [b"/.stripefs", b"/.stripefs/0123456789abcdef/0", b"/a/.f.stripefs-lock", b"/a/.stripefs-/.x.stripefs-0/y"]


@pytest.mark.parametrize("path", HIDDEN)
def test_hidden_names_are_not_there(store: StripedStore, path: bytes) -> None:
    store.put(path if path != b"/.stripefs" else b"/.stripefs/x", [b"x"])
    for call in (store.stat, store.open, store.readlink, lambda path: listing(store, path), store.get):
        with pytest.raises(NotFound):
            call(path)
    folder = os.path.dirname(path)
    if b".stripefs/" not in folder + b"/" and b".stripefs-0" not in folder:
        assert all(entry.name != os.path.basename(path) for entry in listing(store, folder))


def test_a_listing_opens_what_may_be_a_manifest_once(tmp_path: Path) -> None:
    counting = CountingStore(LocalStore(os.fsencode(tmp_path)))
    store = StripedStore(counting)
    for number in range(20):
        write_striped(counting.inner, b"/%02d" % number, DATA, version=f"{number:016x}")
        counting.inner.put(b"/plain-%02d" % number, [b"x" * (1700 + number)])
    first = listing(store, b"/")
    opened = counting.counts.opens
    assert opened == 20
    assert all(map(same, first, listing(store, b"/"), (store.stat(b"/" + status.name) for status in first)))
    assert counting.counts.opens == opened
    assert [status.length for status in first if status.name.isdigit()] == [len(DATA)] * 20
    assert [status.name for status in listing(store, b"/", after=b"18")][:2] == [b"19", b"plain-00"]
    store.close()


def test_what_is_kept_is_bounded(store: StripedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(striped_listing, "KEPT", 5)
    for number in range(20):
        write_striped(store, b"/%02d" % number, DATA)
    assert {status.length for status in listing(store, b"/")} == {len(DATA)}
    assert len(store._seen._kept) <= 5


def test_a_manifest_that_cannot_be_read_now_is_another_file_later(inner: LocalStore) -> None:
    failing = Failing(inner)
    store = StripedStore(failing)
    write_striped(inner, b"/f", DATA)
    write_striped(inner, b"/g", OTHER, version="1" * 16)
    failing.down = {b"/f"}
    listed, other = listing(store, b"/")
    assert other.length == len(OTHER)
    with pytest.raises(ServiceDown):
        store.stat(b"/f")
    failing.down.clear()
    assert store.stat(b"/f").length == len(DATA)
    with pytest.raises(StaleVersion):
        store.open(b"/f", listed.identity)
    store.close()


class Nameless(WrappedStore):
    """A store without file ids, whose times are `mtime_ns`: files of equal length look alike."""

    NAME = "nameless"

    def __init__(self, inner: Store, mtime_ns: int) -> None:
        super().__init__(inner)
        self.mtime_ns = mtime_ns

    def plainly(self, status: Status) -> Status:
        return dataclasses.replace(status, file_id="", mtime_ns=self.mtime_ns)

    def stat(self, path: bytes) -> Status:
        return self.plainly(self.inner.stat(path))

    def scandir(self, path: bytes, after: bytes = b"") -> Iterator[Sequence[Status]]:
        return ([self.plainly(status) for status in batch] for batch in self.inner.scandir(path, after))

    def open(self, path: bytes, expect: Identity | None = None) -> Handle:
        handle = WrappedHandle(self.inner.open(path))
        handle.status = self.plainly(handle.status)
        return handle


@pytest.mark.parametrize("mtime", [0, 1, "now"])
def test_files_that_look_alike_are_told_apart_by_path_and_version(inner: LocalStore, mtime: int | str) -> None:
    nameless = Nameless(inner, time.time_ns() if mtime == "now" else int(mtime))
    store = StripedStore(nameless)
    write_striped(inner, b"/f", DATA, version="0" * 16)
    write_striped(inner, b"/g", OTHER, version="1" * 16)
    assert [status.length for status in listing(store, b"/")] == [len(DATA), len(OTHER)]
    assert [store.stat(path).length for path in (b"/f", b"/g")] == [len(DATA), len(OTHER)]
    identity = store.stat(b"/f").identity
    store.open(b"/f", identity).close()
    write_striped(inner, b"/f", OTHER, version="2" * 16)
    if mtime != 1:  # else changed long ago, so what was seen then still holds
        assert store.stat(b"/f").length == len(OTHER)
    with pytest.raises(StaleVersion):
        store.open(b"/f", identity)
    store.close()


def test_opening_what_was_seen_asks_little(inner: LocalStore) -> None:
    counting = CountingStore(inner)
    store = StripedStore(counting)
    manifest = write_striped(inner, b"/f", DATA)
    identity = store.stat(b"/f").identity
    before = counting.counts.opens, counting.counts.stats
    handle = store.open(b"/f", identity)
    assert (counting.counts.opens - before[0], counting.counts.stats - before[1]) == (1, 1)
    assert bytes(handle.read(0, len(DATA))) == DATA
    handle.close()
    for change in (
        lambda: write_marked(store, b"/f", dataclasses.replace(manifest, generation=1).to_bytes()),
        lambda: store.put(b"/f", [b"plain"], replace=True),
        lambda: store.put(b"/f", [b"x" * 1789], replace=True),
        lambda: (store.remove(b"/f"), store.mkdir(b"/f")),
    ):
        change()
        with pytest.raises(StaleVersion):
            store.open(b"/f", identity)
    store.close()


def test_a_longer_file_that_takes_the_place_of_a_manifest_is_seen(inner: LocalStore) -> None:
    class Replacing(WrappedStore):
        NAME = "replacing"

        def read_small(self, path: bytes, length: int) -> Buffer:
            self.inner.put(path, [DATA], replace=True)
            self.inner.put(path, [DATA * 10], replace=True)
            return self.inner.read_small(path, length)

    store = StripedStore(Replacing(inner))
    for ask in (lambda: store.stat(b"/f").length, lambda: store.manifest(b"/f"), lambda: listing(store, b"/")[0].name):
        write_striped(inner, b"/f", DATA)
        assert ask() in (len(DATA) * 10, None, b"f")
    write_striped(inner, b"/f", DATA)
    identity = StripedStore(inner).stat(b"/f").identity
    with pytest.raises(StaleVersion):
        store.open(b"/f", identity)
    store.close()
