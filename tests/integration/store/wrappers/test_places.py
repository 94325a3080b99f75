"""Files stay where they were placed, in every process, moved and joined."""

from __future__ import annotations

import pytest

from stripefs.errors import Unsupported
from stripefs.store.local import LocalStore
from tests.contract.putting import read
from tests.integration.store.wrappers.material import blocks, make, spread
from tests.support.stores import content, listing

KIB = 1 << 10


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
