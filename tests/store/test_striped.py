"""The view in which a striped file is one file."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stripefs.errors import Abandoned, HostFailed, NotFound, ServiceDown, StaleVersion, StoreError
from stripefs.layout.striped import Manifest, digest_of
from stripefs.store.base import Buffer, Handle, Identity, Status, Store
from stripefs.store.local import LocalStore
from stripefs.store.wrappers import CountingStore, ThrottledStore
from stripefs.store.wrappers import striped as view
from stripefs.store.wrappers import striped_handle as handles
from stripefs.store.wrappers.base import WrappedHandle, WrappedStore
from stripefs.store.wrappers.striped import StripedStore, pool_of
from tests.store.conformance import StoreConformance
from tests.store.listing_conformance import ListingConformance
from tests.store.material import Place, RecordingWatch, content, listing
from tests.store.places import LocalPopulate
from tests.store.put_conformance import PutConformance
from tests.store.striped_files import write_striped

UNIT = 4096
DATA = content(10 * UNIT + 123)
OTHER = content(7 * UNIT, seed=1)


class TestConforms(ListingConformance, PutConformance, StoreConformance):
    """Files that are not striped are as they are without the view."""

    @pytest.fixture(scope="class")
    @classmethod
    def place(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
        root = tmp_path_factory.mktemp("root")
        store = StripedStore(LocalStore(os.fsencode(root)))
        yield Place(store, LocalPopulate(root))
        store.close()


@pytest.fixture
def inner(tmp_path: Path) -> LocalStore:
    return LocalStore(os.fsencode(tmp_path))


@pytest.fixture
def store(inner: LocalStore) -> Iterator[StripedStore]:
    store = StripedStore(inner)
    yield store
    store.close()


def same(status: Status, *changes: Status) -> bool:
    """Equal but for the time of the last read, which looking at a manifest moves."""
    return {dataclasses.replace(one, atime_ns=0) for one in (status, *changes)} == {
        dataclasses.replace(status, atime_ns=0)
    }


def whole(store: Store, path: bytes) -> bytes:
    return bytes(store.get(path))


# -- one file --------------------------------------------------------------------------------------------------------


def test_a_striped_file_is_one_file(store: StripedStore) -> None:
    manifest = write_striped(store, b"/a/f", DATA)
    status = store.stat(b"/a/f")
    assert (status.name, status.length, status.block_size) == (b"f", len(DATA), UNIT)
    [listed] = listing(store, b"/a")
    assert same(listed, status)
    assert [entry.name for entry in listing(store, b"/")] == [b"a"]
    assert whole(store, b"/a/f") == DATA
    assert store.manifest(b"/a/f") == manifest
    handle = store.open(b"/a/f", status.identity)
    assert same(handle.status, status)
    handle.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_range_of_any_segments(store: StripedStore, data: st.DataObject) -> None:
    widths = data.draw(st.sampled_from([[(len(DATA), 4)], [(5000, 2), (4096, 1), (len(DATA) - 9096, 5)]]))
    write_striped(store, b"/f", DATA, widths)
    offset = data.draw(st.integers(0, len(DATA)))
    length = data.draw(st.integers(0, len(DATA) - offset))
    handle = store.open(b"/f")
    assert bytes(handle.read(offset, length)) == DATA[offset : offset + length]
    handle.close()


def test_units_of_several_checks(store: StripedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads within a unit are widened to whole checks and cut again."""
    big = content(5 * 3_145_728 // 2)
    write_striped(store, b"/f", big, unit=3_145_728)
    handle = store.open(b"/f")
    for offset, length in [(0, 1), (1 << 20, 1 << 20), ((1 << 20) - 1, 2), (3_145_727, 2), (len(big) - 5, 5)]:
        assert bytes(handle.read(offset, length)) == big[offset : offset + length]
    handle.close()


@pytest.fixture
def short_manifests(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that some thirty parts are too many."""
    monkeypatch.setattr("stripefs.layout.striped.MANIFEST_MAX", 4096)


@pytest.mark.usefixtures("short_manifests")
def test_a_list_of_parts_outside(store: StripedStore) -> None:
    data = content(50 * UNIT)
    manifest = write_striped(store, b"/f", data, [(UNIT, 1)] * 50)
    assert manifest.parts_list() is not None
    assert store.stat(b"/f").length == len(data)
    assert store.manifest(b"/f") == manifest
    handle = store.open(b"/f")
    assert bytes(handle.read(49 * UNIT - 3, 6)) == data[49 * UNIT - 3 : 49 * UNIT + 3]
    assert len(handle.locate(0, len(data))) == 50
    handle.close()


def test_an_empty_striped_file(store: StripedStore) -> None:
    write_striped(store, b"/f", b"", [])
    handle = store.open(b"/f")
    assert (handle.status.length, handle.read(0, 0), handle.locate(0, 10)) == (0, b"", ())
    handle.close()


def test_ranges_outside_are_refused(store: StripedStore) -> None:
    write_striped(store, b"/f", DATA)
    handle = store.open(b"/f")
    with pytest.raises(StoreError, match="not inside"):
        handle.read(len(DATA) - 1, 2)
    handle.close()
    for call in (lambda: handle.read(0, 1), lambda: handle.locate(0, 1)):
        with pytest.raises(StoreError, match="closed"):
            call()


# -- versions --------------------------------------------------------------------------------------------------------


def test_every_version_has_its_identity(store: StripedStore, tmp_path: Path) -> None:
    manifest = write_striped(store, b"/f", DATA)
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


def test_an_open_version_stays_readable_while_its_parts_are_there(store: StripedStore) -> None:
    write_striped(store, b"/f", DATA, version="0" * 16)
    old = store.open(b"/f")
    write_striped(store, b"/f", OTHER, version="1" * 16)
    assert bytes(old.read(0, len(DATA))) == DATA
    assert whole(store, b"/f") == OTHER
    old.close()


def test_parts_that_are_gone_with_their_version(store: StripedStore, tmp_path: Path) -> None:
    manifest = write_striped(store, b"/f", DATA, version="0" * 16)
    old = store.open(b"/f")
    write_striped(store, b"/f", OTHER, version="1" * 16)
    os.unlink(os.fsencode(tmp_path) + manifest.parts[1].path())
    assert bytes(old.read(0, UNIT)) == DATA[:UNIT]
    with pytest.raises(StaleVersion, match="/f was replaced or deleted"):
        old.read(UNIT, UNIT)
    store.remove(b"/f")
    with pytest.raises(StaleVersion):
        old.read(UNIT, UNIT)
    old.close()


def test_a_renamed_file_is_whole(store: StripedStore, tmp_path: Path) -> None:
    write_striped(store, b"/a/f", DATA)
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "f").rename(tmp_path / "b" / "g")
    assert whole(store, b"/b/g") == DATA
    with pytest.raises(NotFound):
        store.stat(b"/a/f")


def test_a_directory_that_was_moved_still_has_its_files(store: StripedStore, tmp_path: Path) -> None:
    write_striped(store, b"/f", DATA)
    moved = tmp_path.with_name(tmp_path.name + "-moved")
    tmp_path.rename(moved)
    other = StripedStore(LocalStore(os.fsencode(moved)))
    assert whole(other, b"/f") == DATA
    other.close()
    moved.rename(tmp_path)


# -- what is hidden --------------------------------------------------------------------------------------------------

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


# -- what is damaged -------------------------------------------------------------------------------------------------


def put_manifest(store: StripedStore, path: bytes, data: bytes) -> None:
    store.inner.put(path, [data], replace=True)


def resealed(data: bytes) -> bytes:
    return data[:-16] + digest_of(data[:-16])


def damaged(manifest: Manifest) -> dict[str, tuple[bytes, str]]:
    good = manifest.to_bytes()
    return {
        "flipped": (good[:40] + bytes([good[40] ^ 1]) + good[41:], "checksum does not fit"),
        "newer": (resealed(good[:12] + b"\2\0" + good[14:]), "format 2"),
        "counts": (resealed(good[:40] + b"\xff\xff\xff\xff" + good[44:]), "damaged"),
        "behind": (resealed(good[:-17] + b"\1" + good[-16:]), "damaged"),
    }


@pytest.mark.parametrize("name", ["flipped", "newer", "counts", "behind"])
def test_damaged_manifests(store: StripedStore, name: str) -> None:
    manifest = write_striped(store, b"/a/good", DATA)
    data, message = damaged(manifest)[name]
    put_manifest(store, b"/a/bad", data)
    for call in (store.stat, store.open, store.manifest, store.get):
        with pytest.raises(StoreError, match=message) as caught:
            call(b"/a/bad")
        assert "/a/bad" in str(caught.value)
        assert "\n" not in str(caught.value)
    bad, good = listing(store, b"/a")
    assert same(good, store.stat(b"/a/good"))
    assert (bad.name, bad.length) == (b"bad", len(data))
    with pytest.raises(StoreError):
        store.open(b"/a/bad", bad.identity)
    assert whole(store, b"/a/good") == DATA


@pytest.mark.parametrize("change", [lambda data: data[:1000], lambda data: data + b"\n", lambda data: data[:20]])
def test_manifests_of_another_length_do_not_pass_for_content(store: StripedStore, change: object) -> None:
    manifest = write_striped(store, b"/f", DATA)
    put_manifest(store, b"/f", change(manifest.to_bytes()))  # type: ignore[operator]
    with pytest.raises(StoreError, match="cut or changed"):
        store.get(b"/f")


def test_other_files_of_a_manifest_s_length(store: StripedStore) -> None:
    store.put(b"/f", [b"x" * 1789])
    assert same(store.stat(b"/f"), store.inner.stat(b"/f"), *listing(store, b"/"))
    assert whole(store, b"/f") == b"x" * 1789
    assert store.manifest(b"/f") is None


def part_file(tmp_path: Path, manifest: Manifest, index: int) -> Path:
    return Path(os.fsdecode(os.fsencode(tmp_path) + manifest.parts[index].path()))


def test_a_part_that_is_missing(store: StripedStore, tmp_path: Path) -> None:
    manifest = write_striped(store, b"/f", DATA)
    part_file(tmp_path, manifest, 1).unlink()
    handle = store.open(b"/f")
    assert len(handle.locate(0, len(DATA))) == 11
    assert bytes(handle.read(0, UNIT)) == DATA[:UNIT]
    with pytest.raises(StoreError, match=r"/f: its part /.stripefs/0123456789abcdef/1 is missing") as caught:
        handle.read(UNIT, 1)
    assert type(caught.value) is StoreError
    handle.close()
    assert store.stat(b"/f").length == len(DATA)


def test_a_pool_that_is_missing(store: StripedStore, tmp_path: Path) -> None:
    write_striped(store, b"/f", DATA)
    (tmp_path / ".stripefs").rename(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match=r"is missing.*--trust-pool"):
        store.get(b"/f")


def test_a_part_of_another_length(store: StripedStore, tmp_path: Path) -> None:
    manifest = write_striped(store, b"/f", DATA)
    with part_file(tmp_path, manifest, 0).open("ab") as file:
        file.write(b"more")
    with pytest.raises(StoreError, match=f"has {manifest.parts[0].length + 4} bytes, not {manifest.parts[0].length}"):
        store.get(b"/f")


def test_a_part_that_is_no_file(store: StripedStore, tmp_path: Path) -> None:
    manifest = write_striped(store, b"/f", DATA)
    part_file(tmp_path, manifest, 0).unlink()
    part_file(tmp_path, manifest, 0).mkdir()
    with pytest.raises(StoreError, match="directory"):
        store.get(b"/f")


@pytest.mark.parametrize(("at", "message"), [(0, "byte 0 on does not fit"), (-1, "checksums of its part")])
def test_changed_bytes_are_refused_after_a_second_try(
    store: StripedStore, tmp_path: Path, at: int, message: str
) -> None:
    manifest = write_striped(store, b"/f", DATA)
    file = part_file(tmp_path, manifest, 2)
    changed = bytearray(file.read_bytes())
    changed[at] ^= 1
    file.write_bytes(changed)
    handle = store.open(b"/f")
    with pytest.raises(HostFailed, match=message):
        handle.read(2 * UNIT, 1)
    with pytest.raises(StoreError, match=message) as caught:
        handle.read(2 * UNIT, 1)
    assert type(caught.value) is StoreError
    assert bytes(handle.read(0, 2 * UNIT)) == DATA[: 2 * UNIT]
    handle.close()


def test_a_part_that_changes_while_it_is_open(store: StripedStore, tmp_path: Path) -> None:
    manifest = write_striped(store, b"/f", DATA)
    handle = store.open(b"/f")
    handle.read(0, 1)
    os.utime(part_file(tmp_path, manifest, 0), ns=(1, 1))
    with pytest.raises(StoreError, match="was changed") as caught:
        handle.read(0, 1)
    assert type(caught.value) is StoreError
    handle.close()


@pytest.mark.usefixtures("short_manifests")
@pytest.mark.parametrize("lose", ["unlink", "shorten", "spoil"])
def test_a_list_of_parts_that_is_lost(store: StripedStore, tmp_path: Path, lose: str) -> None:
    manifest = write_striped(store, b"/f", content(50 * UNIT), [(UNIT, 1)] * 50)
    found = manifest.parts_list()
    assert found is not None
    file = Path(os.fsdecode(os.fsencode(tmp_path) + found[0]))
    if lose == "unlink":
        file.unlink()
    else:
        file.write_bytes(found[1][:-1] + (b"" if lose == "shorten" else b"\xff"))
    with pytest.raises(StoreError, match="/f: ") as caught:
        store.open(b"/f")
    assert type(caught.value) is StoreError
    assert store.stat(b"/f").length == 50 * UNIT


# -- pools -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "pool"),
    [
        ("/data/checkpoints", b"/data/checkpoints/.stripefs"),
        ("file:///data//a/../b%20c/", b"/data/b c/.stripefs"),
        ("hdfs://namenode:8020/checkpoints", b"/checkpoints/.stripefs"),
        ("hdfs://namenode", b"/.stripefs"),
        ("s3://bucket/prefix?region=eu", b"/bucket/prefix/.stripefs"),
        ("throttled+file:///data?rate=1MB/s", b"/data/.stripefs"),
        ("memory:nothing", b"/.stripefs"),
    ],
)
def test_where_the_pool_is(url: str, pool: bytes) -> None:
    assert pool_of(url) == pool
    Manifest("0" * 16, 0, UNIT, pool, ())


def test_pools_above_and_below_the_mount(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    above, below = LocalStore(os.fsencode(tmp_path)), LocalStore(os.fsencode(tmp_path / "below"))
    write_striped(above, b"/below/f", DATA, version="0" * 16)
    write_striped(below, b"/g", OTHER, version="1" * 16)
    pool = {above: os.fsencode(tmp_path) + b"/.stripefs", below: os.fsencode(tmp_path) + b"/below/.stripefs"}

    untrusting = StripedStore(above), StripedStore(below)
    for store, path in zip(untrusting, (b"/below/g", b"/f"), strict=True):
        with pytest.raises(StoreError, match=r"is missing.*--trust-pool"):
            store.get(path)
    opened = []

    def open_pool(path: bytes) -> Store:
        opened.append(path)
        return LocalStore(path)

    with pytest.raises(StoreError, match="cannot be reached"):
        StripedStore(below, [pool[above]]).get(b"/f")
    trusting = StripedStore(above, [os.fsdecode(pool[below])]), StripedStore(below, [pool[above]], open_pool)
    assert whole(trusting[0], b"/below/g") == OTHER
    assert whole(trusting[1], b"/f") == DATA
    assert whole(trusting[1], b"/f") == DATA
    assert opened == [os.fsencode(tmp_path)]
    for store in trusting:
        store.close()


# -- many files ------------------------------------------------------------------------------------------------------


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
    monkeypatch.setattr(view, "KEPT", 5)
    for number in range(20):
        write_striped(store, b"/%02d" % number, DATA)
    assert {status.length for status in listing(store, b"/")} == {len(DATA)}
    assert len(store._seen) <= 5


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


def test_blocks_wait_for_a_service_that_is_away(inner: LocalStore) -> None:
    failing = Failing(inner)
    store = StripedStore(failing)
    manifest = write_striped(inner, b"/f", DATA)
    handle = store.open(b"/f")
    failing.down = {manifest.parts[3].path()}
    with pytest.raises(ServiceDown):
        handle.locate(0, len(DATA))
    with pytest.raises(ServiceDown):
        handle.read(3 * UNIT, 1)
    assert len(handle.locate(0, 3 * UNIT)) == 3
    handle.close()
    store.close()


def test_few_parts_stay_open_and_all_are_closed(inner: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handles, "OPEN_PARTS", 3)
    opened: list[Handle] = []
    closed: list[Handle] = []

    class Tracing(WrappedStore):
        NAME = "tracing"

        def open(self, path: bytes, expect: Identity | None = None) -> Handle:
            handle = self.inner.open(path, expect)
            opened.append(handle)
            monkeypatch.setattr(handle, "close", lambda close=handle.close: (closed.append(handle), close()))
            return handle

    store = StripedStore(Tracing(inner))
    write_striped(inner, b"/f", DATA, [(len(DATA), 11)])
    handle = store.open(b"/f")
    for _ in range(3):
        with ThreadPoolExecutor(8) as threads:
            reads = threads.map(lambda at: bytes(handle.read(at, min(UNIT, len(DATA) - at))), range(0, len(DATA), UNIT))
            assert b"".join(reads) == DATA
        handle.locate(0, len(DATA))
    assert len(opened) - len(closed) <= 3
    handle.close()
    assert len(opened) == len(closed)
    store.close()


# -- hosts -----------------------------------------------------------------------------------------------------------


def test_hosts_are_those_of_the_parts(inner: LocalStore) -> None:
    throttled = ThrottledStore(inner, rate=1e12, block_size=4 * UNIT, placement="even", hosts=5, replication=2)
    store = StripedStore(throttled)
    manifest = write_striped(inner, b"/f", DATA, [(len(DATA), 2)])
    handle = store.open(b"/f")
    blocks = handle.locate(0, len(DATA))
    assert [(block.offset, block.length) for block in blocks] == [
        (at, min(UNIT, len(DATA) - at)) for at in range(0, len(DATA), UNIT)
    ]
    for number, block in enumerate(blocks):
        assert block.hosts == throttled.replicas(manifest.parts[number % 2].path(), number // 2 // 4)
        for host in block.hosts:
            assert bytes(handle.read(block.offset, 10, host=host)) == DATA[block.offset : block.offset + 10]
    assert handle.locate(UNIT + 5, 1) == [blocks[1]]
    assert handle.locate(len(DATA) - 1, 100) == [blocks[-1]]
    elsewhere = next(host.name for host in store.hosts() if host.name not in blocks[0].hosts)
    with pytest.raises(HostFailed):
        handle.read(0, 10, host=elsewhere)
    handle.close()
    store.close()


def test_units_across_blocks_have_the_hosts_that_have_both(inner: LocalStore) -> None:
    throttled = ThrottledStore(inner, rate=1e12, block_size=UNIT + 512, placement="even", hosts=8, replication=3)
    store = StripedStore(throttled)
    manifest = write_striped(inner, b"/f", DATA, [(len(DATA), 1)])
    handle = store.open(b"/f")
    second = handle.locate(UNIT, 1)[0]
    path = manifest.parts[0].path()
    assert set(second.hosts) == set(throttled.replicas(path, 0)) & set(throttled.replicas(path, 1))
    assert len(second.hosts) == 2
    handle.close()
    store.close()


def test_progress_counts_on_over_units(inner: LocalStore) -> None:
    store = StripedStore(ThrottledStore(inner, rate=1e12))
    write_striped(inner, b"/f", DATA)
    handle = store.open(b"/f")
    watch = RecordingWatch()
    assert bytes(handle.read(0, 3 * UNIT, watch=watch)) == DATA[: 3 * UNIT]
    assert watch.received == sorted(watch.received)
    assert watch.received[-1] == 3 * UNIT
    with pytest.raises(Abandoned):
        handle.read(4 * UNIT, UNIT, watch=RecordingWatch(cancelled=True))
    handle.close()
    store.close()


def test_a_close_waits_for_the_reads_under_way(inner: LocalStore) -> None:
    reading, go_on = threading.Event(), threading.Event()

    class SlowHandle(Handle):
        def __init__(self, handle: Handle) -> None:
            self.inner, self.status, self.closed = handle, handle.status, False

        def locate(self, offset: int, length: int) -> object:  # type: ignore[override]
            return self.inner.locate(offset, length)

        def read(self, offset: int, length: int, **options: object) -> Buffer:
            reading.set()
            assert go_on.wait(60)
            assert not self.closed
            return self.inner.read(offset, length)

        def close(self) -> None:
            self.closed = True
            self.inner.close()

    class Slow(WrappedStore):
        NAME = "slow"

        def open(self, path: bytes, expect: Identity | None = None) -> Handle:
            handle = self.inner.open(path, expect)
            return SlowHandle(handle) if b".stripefs" in path else handle

    store = StripedStore(Slow(inner))
    write_striped(inner, b"/f", DATA)
    handle = store.open(b"/f")
    with ThreadPoolExecutor(1) as threads:
        read = threads.submit(handle.read, 0, UNIT)
        assert reading.wait(60)
        handle.close()
        go_on.set()
        assert bytes(read.result()) == DATA[:UNIT]
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
        lambda: store.put(b"/f", [dataclasses.replace(manifest, generation=1).to_bytes()], replace=True),
        lambda: store.put(b"/f", [b"plain"], replace=True),
        lambda: store.put(b"/f", [b"x" * 1789], replace=True),
        lambda: (store.remove(b"/f"), store.mkdir(b"/f")),
    ):
        change()
        with pytest.raises(StaleVersion):
            store.open(b"/f", identity)
    store.close()


def test_tables_are_fetched_before_they_are_needed(inner: LocalStore) -> None:
    counting = CountingStore(inner)
    store = StripedStore(counting)
    write_striped(inner, b"/f", DATA, [(len(DATA), 4)])
    handle = store.open(b"/f")
    handle.locate(0, 2 * UNIT)
    assert isinstance(handle, handles.StripedHandle)
    deadline = time.monotonic() + 60
    while not all(map(handle._parts.has_table, (0, 1))):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert counting.counts.reads == 3  # the manifest, and two parts' tables
    handle.read(0, 2 * UNIT)
    assert counting.counts.reads == 5
    handle.close()
    store.close()


def test_a_longer_file_that_takes_the_place_of_a_manifest_is_seen(inner: LocalStore) -> None:
    class Replacing(WrappedStore):
        NAME = "replacing"

        def glance(self, path: bytes, length: int) -> Buffer:
            self.inner.put(path, [DATA], replace=True)
            self.inner.put(path, [DATA * 10], replace=True)
            return self.inner.glance(path, length)

    store = StripedStore(Replacing(inner))
    for ask in (lambda: store.stat(b"/f").length, lambda: store.manifest(b"/f"), lambda: listing(store, b"/")[0].name):
        write_striped(inner, b"/f", DATA)
        assert ask() in (len(DATA) * 10, None, b"f")
    write_striped(inner, b"/f", DATA)
    identity = StripedStore(inner).stat(b"/f").identity
    with pytest.raises(StaleVersion):
        store.open(b"/f", identity)
    store.close()
