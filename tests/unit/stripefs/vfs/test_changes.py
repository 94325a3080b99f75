"""Names and files that change: requests that come twice, the state that a dead worker left, and announced lengths."""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from stripefs.errors import (
    Busy,
    Exists,
    Lost,
    NotFound,
    NotPermitted,
    StaleVersion,
    StripefsError,
    Transient,
    Unsupported,
)
from stripefs.store.base import Attributes, Kind
from stripefs.vfs import ROOT
from stripefs.vfs.writable_tree import WritableTree
from stripefs.write import NotSequential
from tests.unit.stripefs.vfs.world import (
    CREATE,
    ME,
    FakeUploads,
    Kept,
    Killed,
    MemoryStore,
    created,
    failing,
    listed,
    make_writable,
    quiet,
    reopened,
)


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    store.put(b"/f", b"one")
    store.put(b"/g", b"other")
    store.put(b"/d", kind=Kind.DIRECTORY)
    return store


Step = Callable[[WritableTree], Awaitable[object]]

CHANGES: list[tuple[str, Step, type[StripefsError]]] = [
    ("mkdir", lambda tree: tree.mkdir(ROOT, b"new", 0o755), Exists),
    ("rmdir", lambda tree: tree.rmdir(ROOT, b"d"), NotFound),
    ("remove", lambda tree: tree.unlink(ROOT, b"f"), NotFound),
    ("rename", lambda tree: tree.rename(ROOT, b"f", ROOT, b"new", replace=False), NotFound),
    ("rename", lambda tree: tree.rename(ROOT, b"f", ROOT, b"g", replace=True), NotFound),
    ("rename", lambda tree: tree.rename(ROOT, b"d", ROOT, b"e", replace=True), NotFound),
]


@pytest.mark.parametrize("dies", ["before", "after"])
@pytest.mark.parametrize(("call", "change", "otherwise"), CHANGES)
async def test_a_change_asked_again_has_succeeded(
    store: MemoryStore, call: str, change: Step, otherwise: type[StripefsError], dies: str
) -> None:
    """Its worker died after the change, or before; a change that was answered is another one when asked again."""
    kept = Kept()
    setattr(store, dies, failing(call, Killed()))
    with pytest.raises(Killed):
        await change(make_writable(store, kept))
    setattr(store, dies, quiet)
    second = make_writable(store, kept)
    await change(second)
    assert second.state.intents == {}
    with pytest.raises(otherwise):
        await change(second)
    second.state.commit()
    with pytest.raises(otherwise):
        await change(make_writable(store, kept))


async def test_what_a_dead_worker_intended_is_forgotten(store: MemoryStore, clock: trio.testing.MockClock) -> None:
    kept = Kept()
    store.after = failing("remove", Killed())
    with pytest.raises(Killed):
        await make_writable(store, kept).unlink(ROOT, b"f")
    store.after = quiet
    tree = make_writable(store, kept)
    await trio.sleep(61)
    with pytest.raises(NotFound):
        await tree.unlink(ROOT, b"f")


async def test_a_directory_that_somebody_else_makes_between_two_tries_is_not_ours(
    store: MemoryStore, clock: trio.testing.MockClock
) -> None:
    """A store that fails in passing has made nothing (`Store.mkdir`)."""

    def fail(what: str, path: bytes) -> None:
        if what == "mkdir" and path not in store.entries:
            store.put(path, kind=Kind.DIRECTORY)
            raise Transient("the connection broke")

    store.before = fail
    with pytest.raises(Exists):
        await make_writable(store).mkdir(ROOT, b"new", 0o755)


async def test_opening_what_exists(store: MemoryStore, clock: trio.testing.MockClock) -> None:
    """The kernel is sent to a node of its own, also by the next worker; readers keep the version that is there."""
    kept = Kept()
    tree = make_writable(store, kept)
    old = await tree.lookup(ROOT, b"f")
    with pytest.raises(StaleVersion):
        await tree.open_writing(old.id, os.O_WRONLY | os.O_TRUNC, ME)
    tree = make_writable(store, kept)
    new = await tree.lookup(ROOT, b"f")
    assert (new.id != old.id, new.valid, new.size) == (True, 0.0, 3)
    assert (await tree.getattr(new.id)).size == 3
    handle, direct = await tree.open_writing(new.id, os.O_WRONLY | os.O_TRUNC, ME)
    assert direct
    shown = await tree.lookup(ROOT, b"f")
    assert (shown.id, shown.valid, (await tree.getattr(new.id)).size) == (old.id, 0.0, 0)
    with pytest.raises(StaleVersion):
        await tree.open(new.id)
    reader = await tree.open(old.id)
    await tree.write(handle, 0, b"two..")
    assert await tree.read(reader, 0, 10) == b"one"
    assert (await tree.getattr(new.id)).size == 5
    with pytest.raises(Busy):
        await tree.open_writing(old.id, os.O_WRONLY, ME)
    with pytest.raises(Busy):
        await tree.create(ROOT, b"f", 0o644, CREATE, ME)
    await tree.flush(handle)  # the node has no descriptor, as nothing is mounted
    assert store.contents()[b"/f"] == b"two.."
    await tree.release(handle)
    published = await tree.lookup(ROOT, b"f")
    assert (published.size, published.id in (old.id, new.id)) == (5, False)
    assert tree.snapshot()["open_for_writing"] == 0


async def test_opening_a_version_that_was_replaced_since(store: MemoryStore) -> None:
    """The kernel looks a path up again once, so what it then gets is what it can open."""
    tree = make_writable(store)
    old = await tree.lookup(ROOT, b"f")
    store.put(b"/f", b"newer")
    assert (await tree.lookup(ROOT, b"f")).id != old.id
    with pytest.raises(StaleVersion):
        await tree.open_writing(old.id, os.O_WRONLY | os.O_TRUNC, ME)
    handle, _ = await tree.open_writing((await tree.lookup(ROOT, b"f")).id, os.O_WRONLY | os.O_TRUNC, ME)
    await tree.write(handle, 0, b"newest")
    await tree.release(handle)
    assert store.contents()[b"/f"] == b"newest"
    with pytest.raises(StaleVersion):
        await tree.open_writing((await tree.lookup(ROOT, b"f")).id, os.O_WRONLY, ME)
    store.put(b"/f", kind=Kind.DIRECTORY)  # in the place of the file that is to be opened
    assert tree.state.nodes[(await tree.lookup(ROOT, b"f")).id].kind is Kind.DIRECTORY


async def test_a_new_file_is_seen_and_not_read(store: MemoryStore) -> None:
    tree = make_writable(store)
    handle, node = await created(tree, flags=CREATE | os.O_EXCL)
    assert (await tree.lookup(ROOT, b"new")).id == node
    with pytest.raises(Exists):
        await tree.create(ROOT, b"new", 0o640, CREATE | os.O_EXCL, ME)
    with pytest.raises(Busy) as caught:
        await tree.open(node)
    assert "--staging" in caught.value.hint
    names = [name for name, _ in await listed(tree, await tree.opendir(ROOT))]
    assert names == [b"d", b"f", b"g", b"new"]
    await tree.rename(ROOT, b"new", ROOT, b"f", replace=True)
    assert store.contents() == {b"/f": b"", b"/g": b"other"}
    with pytest.raises(NotFound):
        await tree.lookup(ROOT, b"new")
    await tree.unlink(ROOT, b"f")
    await tree.write(handle, 0, b"nobody sees this")
    await tree.flush(handle)
    await tree.release(handle)
    assert store.contents() == {b"/g": b"other"}
    for call in (
        tree.create(ROOT, b".x.stripefs-lock", 0o644, CREATE, ME),
        tree.mkdir(ROOT, b".stripefs", 0o755),
        tree.rename(ROOT, b"g", ROOT, b".g.stripefs-0123456789abcdef-0", replace=True),
    ):
        with pytest.raises(NotPermitted):
            await call


@pytest.mark.parametrize("existed", [False, True])
@pytest.mark.parametrize("covered", [False, True])
async def test_a_file_without_a_name_has_no_links(store: MemoryStore, *, existed: bool, covered: bool) -> None:
    """fstat of its writer says so, as programs ask which rotate logs or look whether a lock file is still there."""
    tree = make_writable(store)
    handle, node = await created(tree, b"a version" if existed else b"")
    if existed:
        await tree.flush(handle)
    assert (await tree.getattr(node)).links == 1
    if covered:
        await tree.rename(ROOT, b"g", ROOT, b"new", replace=True)
    else:
        await tree.unlink(ROOT, b"new")
    assert (await tree.getattr(node)).links == 0
    await tree.write(handle, 9 if existed else 0, b" and more")
    assert (await tree.setattr(node, size=18)).links == 0
    await tree.release(handle)
    assert store.contents() == {b"/f": b"one", **({b"/new": b"other"} if covered else {b"/g": b"other"})}


async def test_lengths(store: MemoryStore) -> None:
    """A length given before the bytes is a promise; a refused write spoils the file until it is cut to nothing."""
    tree = make_writable(store)
    handle, node = await created(tree)
    await tree.setattr(node, size=8)
    await tree.write(handle, 0, b"abc")
    assert (await tree.getattr(node)).size == 8
    assert await tree.read(handle, 0, 100) == b"abc\0\0\0\0\0"
    await tree.flush(handle)
    assert store.contents()[b"/new"] == b"abc\0\0\0\0\0"
    with pytest.raises(NotSequential, match="--staging"):
        await tree.write(handle, 1, b"x")
    for call in (tree.fsync, tree.flush):
        with pytest.raises(NotSequential, match="is not published"):
            await call(handle)
    await tree.setattr(node, size=0)
    await tree.write(handle, 0, b"anew")
    await tree.release(handle)
    assert store.contents()[b"/new"] == b"anew"

    tree = make_writable(store, uploads=FakeUploads(store, appends=False))
    handle = await reopened(tree, os.O_RDWR)
    await tree.flush(handle)
    await tree.release(handle)  # no write: nothing is published
    assert store.contents()[b"/f"] == b"one"
    node = await tree.lookup(ROOT, b"f")
    with pytest.raises(Unsupported):
        await tree.setattr(node.id, size=2)
    with pytest.raises(StaleVersion):  # there is a new version now, which has that length
        await tree.setattr(node.id, size=0)
    assert (await tree.setattr((await tree.lookup(ROOT, b"f")).id, size=0, mode=0o600)).mode == 0o600
    assert store.contents()[b"/f"] == b""


async def test_writers_of_a_dead_worker(store: MemoryStore) -> None:
    kept = Kept()
    tree = make_writable(store, kept)
    handle, node = await created(tree, b"half")
    tree = make_writable(store, kept)
    for call in (
        tree.write(handle, 4, b"x"),
        tree.read(handle, 0, 1),
        tree.fsync(handle),
        tree.flush(handle),
        tree.setattr(node, size=0),
    ):
        with pytest.raises(Lost) as caught:
            await call
        assert caught.value.errno == errno.EIO
    assert (await tree.getattr(node)).size == 0
    with pytest.raises(NotFound):
        await tree.lookup(ROOT, b"new")
    again, _ = await created(tree, b"whole")
    await tree.release(handle)
    await tree.release(again)
    assert store.contents()[b"/new"] == b"whole"
    assert tree.snapshot()["open_files"] == 0


async def test_a_version_renamed_before_its_writer_is_released_keeps_its_node(store: MemoryStore) -> None:
    tree = make_writable(store)
    handle, _ = await created(tree)
    await tree.flush(handle)
    published = await tree.lookup(ROOT, b"new")
    await tree.rename(ROOT, b"new", ROOT, b"newer", replace=True)
    assert (await tree.lookup(ROOT, b"newer")).id == published.id
    await tree.release(handle)


async def test_a_renamed_version_keeps_its_node(store: MemoryStore) -> None:
    kept = Kept()
    tree = make_writable(store, kept)
    folder = await tree.lookup(ROOT, b"d")
    file = await tree.lookup(ROOT, b"f")
    await tree.rename(ROOT, b"f", folder.id, b"moved", replace=False)
    await tree.rename(ROOT, b"d", ROOT, b"e", replace=False)
    for one in (tree, make_writable(store, kept)):
        assert (await one.lookup(ROOT, b"e")).id == folder.id
        assert (await one.lookup(folder.id, b"moved")).id == file.id
        assert one.state.path(file.id) == b"/e/moved"
    touched = await tree.setattr(file.id, mtime_ns=5)
    assert (touched.mtime_ns, (await tree.lookup(folder.id, b"moved")).id) == (5, file.id)
    assert (await make_writable(store, kept).getattr(file.id)).mtime_ns == 5


@pytest.mark.parametrize(
    ("flags", "shown", "then"), [(os.O_APPEND, b"theirs", b"theirs and ours"), (os.O_TRUNC, b"", b" and ours")]
)
async def test_a_file_that_another_mount_publishes_right_before_the_lock(
    store: MemoryStore, flags: int, shown: bytes, then: bytes
) -> None:
    """It is an error for who excludes one; else it is continued, or cut where that was asked for."""

    def publish() -> None:
        if b"/new" not in store.entries:
            store.put(b"/new", b"theirs")

    tree = make_writable(store, uploads=FakeUploads(store, meanwhile=publish))
    with pytest.raises(Exists):
        await created(tree, flags=CREATE | os.O_EXCL)
    del store.entries[b"/new"]
    handle, node = await created(tree, flags=CREATE | flags)
    assert (await tree.getattr(node)).size == len(shown)
    await tree.write(handle, 0, b" and ours")
    await tree.release(handle)
    assert store.contents()[b"/new"] == then


async def test_a_directory_whose_names_change_is_not_asked_for_again(store: MemoryStore) -> None:
    store.mkdir(b"/folder", 0o755)
    tree = make_writable(store)
    tree._tree._timeout.seconds = 1000.0
    folder = await tree.lookup(ROOT, b"folder")
    before = folder.mtime_ns
    for name in (b"one", b"two"):
        handle, _, _ = await tree.create(folder.id, name, 0o644, CREATE | os.O_TRUNC, ME)
        await tree.flush(handle)
        await tree.release(handle)
        store.calls.clear()
        shown = await tree.getattr(folder.id)
        assert not store.calls
        assert shown.mtime_ns > before
        assert 0 < shown.valid < 1000.0
        before = shown.mtime_ns
    assert (await tree.setattr(folder.id, mode=0o700)).mode == 0o700
    assert (await tree.getattr(folder.id)).mode == 0o700
    await tree.unlink(folder.id, b"one")
    await tree.unlink(folder.id, b"two")
    await tree.rmdir(ROOT, b"folder")
    with pytest.raises(StaleVersion):
        await tree.getattr(folder.id)
    await tree.mkdir(ROOT, b"folder", 0o711)
    assert (await tree.getattr((await tree.lookup(ROOT, b"folder")).id)).mode == 0o711
    store.set_attributes(b"/folder", Attributes(mode=0o750))
    tree._tree._timeout.seconds = 0.0
    assert (await tree.getattr((await tree.lookup(ROOT, b"folder")).id)).mode == 0o750
