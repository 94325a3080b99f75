"""Listings in pages: which manifests are looked at when, and what becomes of a listing that fails or is given up."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stripefs.errors import ServiceDown, StoreError
from stripefs.format.manifest import Manifest
from stripefs.store.base import Buffer, Kind, Status, Store
from stripefs.store.local import LocalStore
from stripefs.store.striped_listing import GROUP, HeaderCache, ListedHeader, StripedListing, as_striped, listed_as
from stripefs.store.wrapper import WrappedStore
from tests.support.waiting import PATIENCE, eventually

MANIFEST = Manifest("0" * 16, 0, 4096, b"/.stripefs", ()).to_bytes()
AT_ONCE = 4


class Pages(WrappedStore):
    """A directory of `pages` of names. Of a page with a number in `failing` the listing fails.

    Calls that look at names wait for `gate`; `asked` are the pages asked for, `looked` the names of each call.
    """

    NAME = "pages"

    def __init__(self, inner: Store, pages: Sequence[Sequence[bytes]], *, marked: bool = True) -> None:
        super().__init__(inner)
        self.pages = pages
        self.marked = marked
        self.failing: set[int] = set()
        self.asked: list[int] = []
        self.looked: list[list[bytes]] = []
        self.gate = threading.Event()
        self.gate.set()

    def scandir(self, path: bytes, after: bytes = b"") -> Iterator[Sequence[Status]]:
        for number, page in enumerate(self.pages):
            self.asked.append(number)
            if number in self.failing:
                raise ServiceDown("away")
            yield [Status(name, Kind.FILE, len(MANIFEST), 1, file_id=f"{name!r}", marked=self.marked) for name in page]

    def read_small_files(self, paths: Sequence[bytes], length: int) -> list[Buffer | StoreError]:
        self.looked.append([path.rpartition(b"/")[2] for path in paths])
        assert self.gate.wait(PATIENCE)
        return [MANIFEST for _ in paths]


def names(*counts: int) -> list[list[bytes]]:
    number = itertools.count()
    return [[b"%05d" % next(number) for _ in range(count)] for count in counts]


@pytest.fixture
def workers() -> Iterator[ThreadPoolExecutor]:
    workers = ThreadPoolExecutor(AT_ONCE)
    yield workers
    workers.shutdown()


def listing(store: Store, workers: ThreadPoolExecutor, seen: HeaderCache | None = None) -> Iterator[Sequence[Status]]:
    return iter(StripedListing(store, b"/", b"", HeaderCache() if seen is None else seen, workers, workers, AT_ONCE))


@pytest.mark.parametrize("counts", [(), (1,), (AT_ONCE,), (3, 1, 2), (100, 100, 7), (40, 0, 40)])
def test_all_come_once_in_their_order(inner: LocalStore, workers: ThreadPoolExecutor, counts: tuple[int, ...]) -> None:
    store = Pages(inner, names(*counts))
    pages = list(listing(store, workers))
    assert [[status.name for status in page] for page in pages] == store.pages
    assert {status.block_size for page in pages for status in page} <= {4096}
    assert sorted(itertools.chain(*store.looked)) == list(itertools.chain(*store.pages))
    assert max(map(len, store.looked), default=0) <= (1 if counts == (AT_ONCE,) else GROUP)


def test_a_page_is_asked_for_while_the_one_before_is_looked_at(inner: LocalStore, workers: ThreadPoolExecutor) -> None:
    store = Pages(inner, names(2, 2, 2, 2))
    store.gate.clear()
    found: list[Sequence[Status]] = []
    entries = listing(store, workers)
    taking = threading.Thread(target=lambda: found.append(next(entries)))
    taking.start()
    eventually(lambda: store.asked == [0, 1], "the second page to be asked for")
    assert not found
    store.gate.set()
    taking.join(PATIENCE)
    assert [status.name for status in found[0]] == store.pages[0]
    eventually(lambda: len(store.looked) == 4, "the second page to be looked at")
    assert store.asked == [0, 1]
    assert [status.name for page in entries for status in page] == list(itertools.chain(*store.pages[1:]))


def test_an_error_comes_where_its_page_would(inner: LocalStore, workers: ThreadPoolExecutor) -> None:
    store = Pages(inner, names(2, 2, 2))
    store.failing = {2}
    entries = listing(store, workers)
    assert [[status.name for status in next(entries)] for _ in range(2)] == store.pages[:2]
    with pytest.raises(ServiceDown):
        next(entries)
    with pytest.raises(StopIteration):
        next(entries)


def test_a_listing_that_is_given_up_leaves_no_call_behind(inner: LocalStore) -> None:
    workers = ThreadPoolExecutor(AT_ONCE)
    store = Pages(inner, names(2, 100, 100))
    entries = listing(store, workers)
    next(entries)
    store.gate.clear()
    eventually(lambda: len(store.looked) == 2 + AT_ONCE, "all workers to look at the second page")
    entries.close()  # type: ignore[attr-defined]  # a generator
    store.gate.set()
    workers.shutdown()
    assert len(store.looked) == 2 + AT_ONCE
    assert store.asked == [0, 1]


STATUSES = st.builds(
    Status,
    st.sampled_from([b"f", b"g"]),
    st.just(Kind.FILE),
    length=st.sampled_from([1789, 5885]),
    mtime_ns=st.sampled_from([2, 3]),
    atime_ns=st.sampled_from([3, 9]),
    mode=st.sampled_from([0o640, 0o600]),
    owner=st.sampled_from(["o", "p"]),
    group=st.sampled_from(["g", "h"]),
    file_id=st.sampled_from(["", "7", "8"]),
    replication=st.sampled_from([2, 3]),
    links=st.sampled_from([1, 4]),
    marked=st.just(True),
)
HEADERS = st.sampled_from([
    *(ListedHeader(5, 4096, "0.1"), ListedHeader(6, 4096, "0.2")),
    *(ListedHeader(), ListedHeader(damage="spoilt")),
])  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from([b"/a", b"/b"]), STATUSES, st.none() | HEADERS), max_size=12))
def test_what_is_kept_is_shown_as_it_would_be_made_now(
    steps: list[tuple[bytes, Status, ListedHeader | None]],
) -> None:
    """A heading is that of its version alone: by the file's id, or its path where there is none. A heading that has not
    changed since it was shown is not made again."""
    kept = HeaderCache()
    model: dict[str | bytes, tuple[tuple[int, int], ListedHeader]] = {}
    for folder, status, seen in steps:
        key = status.file_id or folder + b"/" + status.name
        version = (status.length, status.mtime_ns)
        if seen is not None:
            assert kept.keep(folder, status, seen) == listed_as(status, seen)
            model[key] = version, seen
        if key not in model or model[key][0] != version:
            assert kept.listed(folder, status) is kept.get(folder, status) is None
        else:
            assert kept.get(folder, status) is model[key][1]
            listed = kept.listed(folder, status)
            assert listed == listed_as(status, model[key][1])
            assert kept.listed(folder, dataclasses.replace(status)) is listed


def test_a_manifest_changes_three_things_of_a_status() -> None:
    status = Status(b"f", Kind.FILE, 1789, 2, 3, 0o640, "o", "g", "7", 1 << 20, 2, 4, marked=True, encrypted=True)
    for field in dataclasses.fields(Status):
        assert getattr(status, field.name) != field.default
    assert as_striped(status, ListedHeader(5, 4096, "0.1")) == dataclasses.replace(
        status, length=5, block_size=4096, file_id="7:0.1"
    )
    assert as_striped(status, ListedHeader()) == status
    assert listed_as(status, ListedHeader(damage="spoilt")) == dataclasses.replace(status, file_id="7:?")
