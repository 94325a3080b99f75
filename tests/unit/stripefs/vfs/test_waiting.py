"""Changes of names that wait for a writer who is about to be done, and not for one who is not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
import trio

from stripefs.errors import Busy, Exists, NotFound, QuotaExceeded, ServiceDown
from stripefs.store.base import Kind
from stripefs.vfs import ROOT
from stripefs.vfs.writable_tree import WritableTree
from stripefs.write import namespace
from tests.unit.stripefs.vfs.world import FakeUpload, FakeUploads, MemoryStore, created, failing, make_writable


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    store.put(b"/d", kind=Kind.DIRECTORY)
    store.put(b"/d/f", b"one")
    return store


def hasten(monkeypatch: pytest.MonkeyPatch) -> None:
    """No caller is waited for any longer than moments."""
    monkeypatch.setattr(namespace, "BUSY", replace(namespace.BUSY, seconds=0.1))


@pytest.mark.parametrize("tries", [2, 1000])
async def test_a_target_that_somebody_else_writes(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, tries: int
) -> None:
    """For moments it is waited for; else both files stay as they are."""
    uploads = FakeUploads(store)
    uploads.before_moving = failing("", Busy("it is being written by somebody else"), tries)
    tree = make_writable(store, uploads=uploads)
    handle, _ = await created(tree, b"bytes")
    folder = await tree.lookup(ROOT, b"d")
    if tries == 1000:
        hasten(monkeypatch)
        with pytest.raises(Busy, match="somebody else"):
            await tree.rename(ROOT, b"new", folder.id, b"f", replace=True)
        assert store.contents() == {b"/d/f": b"one", b"/new": b"bytes"}
    else:
        await tree.rename(ROOT, b"new", folder.id, b"f", replace=True)
        assert store.contents() == {b"/d/f": b"bytes"}
    await tree.release(handle)


Change = Callable[[WritableTree, int], Awaitable[object]]

CHANGES: list[tuple[bytes, Change, dict[bytes, bytes]]] = [
    (b"/d/f", lambda tree, d: tree.unlink(d, b"f"), {b"/two": b"2"}),
    (b"/d/f", lambda tree, d: tree.rename(ROOT, b"two", d, b"f", replace=True), {b"/d/f": b"2"}),
    (b"/two", lambda tree, d: tree.rename(ROOT, b"two", d, b"f", replace=True), {b"/d/f": b"2"}),
    (
        b"/d/new",
        lambda tree, d: tree.rename(ROOT, b"two", d, b"new", replace=False),
        {b"/d/f": b"one", b"/d/new": b"2"},
    ),
    (b"/d", lambda tree, d: tree.rename(ROOT, b"d", ROOT, b"e", replace=False), {b"/two": b"2", b"/e/f": b"one"}),
]


@pytest.mark.parametrize(("written", "change", "then"), CHANGES)
@pytest.mark.parametrize("looks", [3, 1000])
async def test_a_name_that_another_node_writes(
    store: MemoryStore,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    written: bytes,
    change: Change,
    then: dict[bytes, bytes],
    looks: int,
) -> None:
    """Its file is neither unlinked nor moved, and no other one put there: its writer would not know. Nor is a directory
    moved that the file is in."""
    store.put(b"/two", b"2")
    before = store.contents()
    uploads = FakeUploads(store)
    tree = make_writable(store, uploads=uploads)
    left = looks

    def writer_of(path: bytes) -> str:
        nonlocal left
        left -= path == written
        return f"{path!r} is being written by host:1" if path == written and left > 0 else ""

    uploads.find_writer = uploads.writer_below = writer_of
    folder = (await tree.lookup(ROOT, b"d")).id
    if looks == 3:
        await change(tree, folder)
        assert store.contents() == then
        assert not caplog.records
    else:
        hasten(monkeypatch)
        with pytest.raises(Busy, match="host:1"):
            await change(tree, folder)
        assert store.contents() == before
        assert ["host:1" in record.message for record in caplog.records] == [True]


async def test_nobody_is_asked_about_names_that_are_not_there_or_are_our_own(store: MemoryStore) -> None:
    uploads = FakeUploads(store)
    tree = make_writable(store, uploads=uploads)
    asked: list[bytes] = []
    uploads.find_writer = lambda path: (asked.append(path), "")[1]
    folder = (await tree.lookup(ROOT, b"d")).id
    handle, _ = await created(tree)
    for call in (tree.unlink(ROOT, b"no"), tree.rename(ROOT, b"no", folder, b"f", replace=True)):
        with pytest.raises(NotFound):
            await call
    with pytest.raises(Exists):
        await tree.rename(folder, b"f", ROOT, b"new", replace=False)
    await tree.rename(ROOT, b"new", folder, b"f", replace=True)
    await tree.unlink(folder, b"f")
    await tree.release(handle)
    assert asked == []


async def test_a_writer_whose_name_could_not_be_taken_keeps_it(store: MemoryStore) -> None:
    """Another file was to be renamed onto it and was not: what it writes is published as if nothing had happened."""
    tree = make_writable(store)
    handle, _ = await created(tree, b"bytes")
    folder = (await tree.lookup(ROOT, b"d")).id
    store.before = failing("rename", QuotaExceeded("no"), 1)
    with pytest.raises(QuotaExceeded):
        await tree.rename(folder, b"f", ROOT, b"new", replace=True)
    await tree.flush(handle)
    assert store.contents() == {b"/d/f": b"one", b"/new": b"bytes"}
    await tree.write(handle, 5, b", more")
    await tree.rename(folder, b"f", ROOT, b"new", replace=True)
    await tree.flush(handle)
    await tree.release(handle)
    assert store.contents() == {b"/new": b"one"}


@pytest.mark.parametrize(
    ("then", "buried"),
    [("nobody", {"a", "b"}), ("a writer", set()), ("one who is done", {"a"}), ("no answer", set())],
)
@pytest.mark.parametrize("change", ["unlink", "rename"])
async def test_versions_that_are_named_again_are_not_buried(
    store: MemoryStore, change: str, then: str, buried: set[str]
) -> None:
    """Somebody began to write behind them when the name was looked at last and not yet gone."""
    named = {b"/d/f": {"a", "b"}}
    found: set[str] = set()
    store.put(b"/two", b"2")

    def versions(path: bytes) -> set[str]:
        if then == "no answer" and not named:
            raise ServiceDown("away")
        if path not in named:
            raise NotFound("gone")
        return named[path]

    uploads = FakeUploads(store)
    tree = make_writable(store, uploads=uploads, io_timeout=0.2, schedule_delete=found.update, versions=versions)

    def begin(call: str) -> None:
        named.clear()
        if then == "a writer":
            uploads.find_writer = lambda path: "somebody"
        elif then == "one who is done":
            named[b"/d/f"] = {"b", "c"}

    store.after = begin
    folder = (await tree.lookup(ROOT, b"d")).id
    if change == "unlink":
        await tree.unlink(folder, b"f")
    else:
        await tree.rename(ROOT, b"two", folder, b"f", replace=True)
    assert found == buried


async def test_the_end_of_a_mount_publishes_all_that_is_finished_at_once(store: MemoryStore) -> None:
    """One that takes long does not take the time that the others have, and a bug in one costs no other."""
    uploads = FakeUploads(store)
    tree = make_writable(store, uploads=uploads)
    for name in (b"1", b"2", b"3"):
        await created(tree, name, name=name)
    together = 0
    all_there = trio.Event()

    async def publish(upload: FakeUpload, final: bool) -> object:
        nonlocal together
        together += 1
        if together == 3:
            all_there.set()
        await all_there.wait()
        if upload.path == b"/2":
            raise RuntimeError("a bug")
        return await published(upload, final)

    published = FakeUpload.publish
    with pytest.MonkeyPatch.context() as patch, trio.fail_after(60):
        patch.setattr(FakeUpload, "publish", publish)
        await tree.aclose()
    assert store.contents() == {b"/d/f": b"one", b"/1": b"1", b"/3": b"3"}
    assert uploads.open.keys() <= {b"/2"}
