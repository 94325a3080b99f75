"""What the wrappers add to writing: hosts that slow down and fail, faults at a chosen call, counts."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stripefs.errors import Exists, HostFailed, NoSpace, NotFound, ServiceDown, Transient, Unsupported
from stripefs.store.base import Block, Store
from stripefs.store.local import LocalStore
from stripefs.store.wrappers import CountingStore, DelayedStore, FaultyStore, ThrottledStore
from tests.store.material import content, listing
from tests.store.put_conformance import read

KIB = 1 << 10


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalStore]:
    store = LocalStore(os.fsencode(tmp_path))
    yield store
    store.close()


def spread(local: Store, **more: object) -> ThrottledStore:
    values: dict[str, object] = {"hosts": 4, "rate": 1e9, "block_size": 64 * KIB, "host_timeout": 0.2}
    return ThrottledStore(local, **(values | more))  # type: ignore[arg-type]


def make(store: Store, path: bytes, data: bytes, host: str = "", block_size: int = 0, replication: int = 0) -> None:
    sink = store.create(path, host=host, block_size=block_size, replication=replication)
    sink.write(data)
    sink.close()


def blocks(store: Store, path: bytes) -> list[Block]:
    handle = store.open(path)
    handle.close()
    return list(handle.locate(0, handle.status.length))


# Placement


def test_a_placed_file_keeps_its_place_in_every_process(local: LocalStore) -> None:
    make(spread(local), b"/part", content(200 * KIB), host="h2", block_size=96 * KIB, replication=2)
    local.mkdir(b"/below")
    spread(local).rename(b"/part", b"/below/file")
    other = spread(local)
    found = blocks(other, b"/below/file")
    assert [(block.offset // KIB, block.length // KIB) for block in found] == [(0, 96), (96, 96), (192, 8)]
    assert all(block.hosts[0] == "h2" and len(set(block.hosts)) == 2 for block in found)
    [status] = listing(other, b"/below")
    assert (status.block_size, status.replication) == (96 * KIB, 2)
    assert status == other.stat(b"/below/file")


def test_an_open_file_is_read_without_another_look_for_its_place(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    local.put(b"/older", [content(200 * KIB)])  # it was not written through the wrapper: nothing says where it is
    handle = spread(local).open(b"/older")
    asked: list[bytes] = []
    monkeypatch.setattr(local, "get", asked.append)
    monkeypatch.setattr(local, "open", asked.append)
    for offset in range(0, 200 * KIB, 50 * KIB):
        handle.read(offset, 50 * KIB)
    handle.close()
    assert asked == []


def test_joined_files_keep_their_blocks(local: LocalStore) -> None:
    store = spread(local)
    for number in range(3):
        make(store, b"/%d" % number, content(100 * KIB, number), host=f"h{number}", block_size=64 * KIB)
    store.concat(b"/0", [b"/1", b"/2"])
    assert [(block.offset // KIB, block.length // KIB, *block.hosts) for block in blocks(store, b"/0")] == [
        (0, 64, "h0"), (64, 36, "h0"), (100, 64, "h1"), (164, 36, "h1"), (200, 64, "h2"), (264, 36, "h2"),
    ]  # fmt: skip
    assert read(spread(local), b"/0") == b"".join(content(100 * KIB, number) for number in range(3))


def test_joins_that_hdfs_refuses(local: LocalStore) -> None:
    store = spread(local)
    make(store, b"/a", b"a", block_size=64 * KIB)
    make(store, b"/empty", b"")
    make(store, b"/larger", b"x", block_size=65 * KIB)
    for name in (b"/empty", b"/larger"):
        with pytest.raises(Unsupported):
            store.concat(b"/a", [name])
    assert len(listing(store, b"/")) == 3


def test_notes_are_not_shown_and_go_with_their_files(local: LocalStore) -> None:
    store = spread(local)
    make(store, b"/a", b"a", host="h1")
    make(store, b"/b", b"b", host="h1")
    assert [status.name for status in listing(store, b"/")] == [b"a", b"b"]
    store.rename(b"/a", b"/b", replace=True)
    assert len(listing(local, b"/.stripefs-hosts")) == 1
    store.remove(b"/b")
    assert listing(local, b"/.stripefs-hosts") == []
    assert listing(store, b"/") == []


def test_a_note_that_says_nothing_is_none(local: LocalStore) -> None:
    make(spread(local), b"/file", content(100 * KIB), host="h1")
    [note] = listing(local, b"/.stripefs-hosts")
    for data in (b"", b"[1]", b'[65536, 1, [[5, ["h1"]]]]', b"\xff"):
        local.put(b"/.stripefs-hosts/" + note.name, [data], replace=True)
        assert sum(block.length for block in blocks(spread(local), b"/file")) == 100 * KIB


def test_an_inner_store_that_cannot_be_noted(local: LocalStore) -> None:
    class Nameless(LocalStore):
        capabilities = type(local.capabilities)(put=True, writes=True)

    store = spread(Nameless(local._root_path))
    assert not store.capabilities.place
    with pytest.raises(Unsupported):
        store.create(b"/file", host="h1")
    make(store, b"/file", content(100 * KIB))
    assert read(store, b"/file") == content(100 * KIB)
    store.close()


# Hosts that are slow or fail


def test_writing_takes_as_long_as_the_host_needs(local: LocalStore) -> None:
    store = spread(local, rate=4e6, burst=1)
    began = time.monotonic()
    make(store, b"/file", content(400_000), host="h1")
    assert time.monotonic() - began >= 0.09  # 400 kB at 4 MB/s: a lower bound holds on any machine


def test_a_dead_host_fails_the_file_that_was_placed_there(local: LocalStore) -> None:
    store = spread(local)
    sink = store.create(b"/file", host="h1", replication=2)
    sink.write(content(100 * KIB))
    store.hosts_control.kill("h1")
    with pytest.raises(HostFailed) as caught:
        sink.write(content(100 * KIB))
    assert caught.value.host == "h1"
    sink.abort()
    with pytest.raises(NotFound):
        store.stat(b"/file")
    with pytest.raises(HostFailed):
        make(store, b"/other", b"x", host="h1")


def test_a_frozen_host_is_given_up(local: LocalStore) -> None:
    store = spread(local)
    store.hosts_control.freeze("h1")
    sink = store.create(b"/file", host="h1")
    with pytest.raises(HostFailed) as caught:
        sink.write(b"x")
    assert caught.value.stalled
    sink.abort()


def test_without_a_wish_a_dead_replica_is_left_out(local: LocalStore) -> None:
    store = spread(local, hosts=3, replication=2)
    store.hosts_control.kill("h1")
    make(store, b"/file", content(1000 * KIB))
    found = blocks(store, b"/file")
    assert len(found) == 16
    assert all(block.hosts and "h1" not in block.hosts for block in found)
    assert read(store, b"/file") == content(1000 * KIB)


def test_a_host_that_is_not_there(local: LocalStore) -> None:
    with pytest.raises(HostFailed):
        spread(local).create(b"/file", host="h9")
    with pytest.raises(NotFound):
        local.stat(b"/file")


# Faults at a chosen call


def test_the_nth_write_fails_and_no_other(local: LocalStore) -> None:
    store = FaultyStore(local, nth=3, on=("write",), kinds=("space",))
    sink = store.create(b"/file")
    sink.write(b"1")
    sink.write(b"2")
    with pytest.raises(NoSpace):
        sink.write(b"3")
    sink.write(b"4")
    sink.close()
    assert read(local, b"/file") == b"124"


def test_a_change_whose_answer_is_lost(local: LocalStore) -> None:
    store = FaultyStore(local, rate=0)
    make(store, b"/a", b"x")
    store.fail_at(1, "rename", "mkdir", kind="service", after=True)
    with pytest.raises(ServiceDown):
        store.rename(b"/a", b"/b")
    assert read(local, b"/b") == b"x"
    store.mkdir(b"/below")
    store.fail_at(2, "rename", after=False)
    store.rename(b"/b", b"/c")
    with pytest.raises(ServiceDown):
        store.rename(b"/c", b"/d")
    assert read(local, b"/c") == b"x"


@pytest.mark.parametrize("after", [False, True])
def test_a_close_that_fails(local: LocalStore, after: bool) -> None:
    store = FaultyStore(local, nth=1, on=("close",), kinds=("transient",), after=after)
    sink = store.create(b"/file")
    sink.write(b"x")
    with pytest.raises(Transient):
        sink.close()
    sink.abort()
    assert [status.name for status in listing(local, b"/")] == ([b"file"] if after else [])


def test_a_share_of_the_changes_fails(local: LocalStore) -> None:
    store = FaultyStore(local, rate=0.5, seed=4, on=("mkdir",), kinds=("service",))
    made = 0
    for number in range(40):
        try:
            store.mkdir(b"/%d" % number)
        except ServiceDown:
            continue
        made += 1
    assert 10 < made < 30
    assert len(listing(local, b"/")) == made


# Counts and delays


def test_what_is_written_is_counted(local: LocalStore) -> None:
    store = CountingStore(spread(local))
    first, second = store.create(b"/a", host="h1"), store.create(b"/b")
    first.write(bytes(1000))
    first.write(bytes(500))
    second.write(bytes(7))
    first.close()
    second.abort()
    store.mkdir(b"/below")
    with pytest.raises(Exists):
        store.mkdir(b"/below")
    counts = store.counts
    assert counts.written == {"h1": 1500, "": 7}
    assert counts.changes == {"create": 2, "mkdir": 2}
    assert (counts.sinks_now, counts.sinks_peak) == (0, 2)
    assert "1507 bytes written" in store.describe()["counted"]


def test_delays_are_for_who_asks(local: LocalStore) -> None:
    waited: list[str] = []

    class Noting(DelayedStore):
        def wait(self, call: str, watch: object = None) -> None:
            waited.append(call)

    store = Noting(local, delay=10.0, on=("write", "change"))
    make(store, b"/a", b"x")
    store.rename(b"/a", b"/b")
    assert waited == ["change", "write", "change", "change"]


def test_many_writers_share_a_host_fairly(local: LocalStore) -> None:
    store = spread(local, rate=50e6)
    done: list[bytes] = []

    def write(number: int) -> None:
        make(store, b"/%d" % number, content(300 * KIB, number), host="h0")
        done.append(b"/%d" % number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(read(store, path) == content(300 * KIB, int(path[1:])) for path in done)
    assert len(done) == 6
