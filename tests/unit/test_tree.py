"""The tree over a store in memory: no kernel, no clock but trio's own."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
import trio
import trio.testing

from stripefs.errors import (
    IsADirectory,
    NotADirectory,
    NotFound,
    ServiceDown,
    StaleVersion,
    StoreError,
    StripefsError,
    Transient,
    Unsupported,
)
from stripefs.store.base import Block, Buffer, Capabilities, Handle, Identity, Kind, Space, Status, Store
from stripefs.tree import ROOT, Attributes, State, Tree, UnknownHandle


class MemoryHandle(Handle):
    def __init__(self, status: Status, data: bytes) -> None:
        self.status = status
        self.data = data
        self.closed = False

    def locate(self, offset: int, length: int) -> Sequence[Block]:
        return [Block(0, self.status.length, ("a", "b"))]

    def read(self, offset: int, length: int, *, host: str = "", watch: object = None) -> Buffer:
        return self.data[offset : offset + length]

    def close(self) -> None:
        self.closed = True


class MemoryStore(Store):
    """Files in a dictionary. `before` is called with the name of each call and its path, and may raise or wait."""

    url = "memory://test"
    capabilities = Capabilities(any_names=True, file_ids=True)

    def __init__(self) -> None:
        self.entries: dict[bytes, tuple[Status, bytes]] = {b"/": (Status(b"", Kind.DIRECTORY, mode=0o755), b"")}
        self.calls: list[tuple[str, bytes]] = []
        self.before: Callable[[str, bytes], None] = lambda call, path: None
        self.batch = 3
        self.capacity: Space | None = Space(1000, 400, 7)
        self.handles: list[MemoryHandle] = []
        self._serial = 0

    def put(self, path: bytes, data: bytes = b"", kind: Kind = Kind.FILE, **fields: object) -> None:
        self._serial += 1
        name = path.rsplit(b"/", 1)[1]
        status = Status(name, kind, len(data), mtime_ns=1000, file_id=str(self._serial))
        self.entries[path] = (replace(status, **fields), data)  # type: ignore[arg-type]  # fields of Status

    def _enter(self, call: str, path: bytes) -> None:
        self.calls.append((call, path))
        self.before(call, path)

    def stat(self, path: bytes) -> Status:
        self._enter("stat", path)
        if path not in self.entries:
            raise NotFound(f"{path!r} does not exist")
        return self.entries[path][0]

    def scandir(self, path: bytes, after: bytes = b"") -> Iterator[Sequence[Status]]:
        prefix = path.rstrip(b"/") + b"/"
        children = sorted(
            (
                status
                for child, (status, _) in self.entries.items()
                if child.rpartition(b"/")[0] + b"/" == prefix and status.name
            ),
            key=lambda status: status.name,
        )
        children = [status for status in children if status.name > after]
        for at in range(0, len(children), self.batch):
            self._enter("scandir", path)
            yield children[at : at + self.batch]

    def open(self, path: bytes, expect: Identity | None = None) -> MemoryHandle:
        self._enter("open", path)
        if path not in self.entries:
            raise NotFound(f"{path!r} does not exist")
        status, data = self.entries[path]
        if expect is not None and status.identity != expect:
            raise StaleVersion(f"{path!r} was replaced")
        self.handles.append(MemoryHandle(status, data))
        return self.handles[-1]

    def readlink(self, path: bytes) -> bytes:
        return self.entries[path][1]

    def space(self) -> Space | None:
        self._enter("space", b"/")
        return self.capacity

    def close(self) -> None:
        pass


class PlainFile:
    def __init__(self, handle: MemoryHandle) -> None:
        self.handle = handle
        self.status = handle.status

    async def read(self, offset: int, size: int) -> Buffer:
        await trio.lowlevel.checkpoint()
        return self.handle.read(offset, size)

    async def locate(self, offset: int, length: int) -> Sequence[Block]:
        await trio.lowlevel.checkpoint()
        return self.handle.locate(offset, length)

    async def aclose(self) -> None:
        self.handle.close()


class PlainReader:
    """Opens files of a store and reads them as they are."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store

    async def open(self, path: bytes, expect: Identity | None) -> PlainFile:
        return PlainFile(await trio.to_thread.run_sync(self.store.open, path, expect))


class Kept:
    def __init__(self) -> None:
        self.payloads: list[bytes] = []

    def append(self, payload: bytes) -> None:
        self.payloads.append(payload)

    def full(self) -> bool:
        return False

    def replace(self, payloads: object) -> None:
        raise AssertionError


@pytest.fixture
def clock() -> trio.testing.MockClock:
    """Jumps ahead when nothing moved for 50 ms: threads must get their turn, which trio's own clock does not grant."""
    return trio.testing.MockClock(autojump_threshold=0.05)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def make(store: MemoryStore, kept: Kept | None = None, **options: object) -> Tree:
    """A tree; one that carries on where an earlier one stopped when `kept` holds its records."""
    state = State(kept)
    state.replay(kept.payloads if kept else ())
    return Tree(store, PlainReader(store), state=state, **options)  # type: ignore[arg-type]


async def listed(tree: Tree, handle: int, start: int = 0, most: int = 10**6) -> list[tuple[bytes, int]]:
    shown: list[tuple[bytes, int]] = []

    def show(name: bytes, attributes: Attributes, cookie: int) -> bool:
        if len(shown) == most:
            return False
        shown.append((name, cookie))
        return True

    await tree.readdir(handle, start, show)
    return shown


# Lookups and versions


async def test_lookup_and_read(store: MemoryStore) -> None:
    store.put(b"/d", kind=Kind.DIRECTORY)
    store.put(b"/d/f", b"hello", mode=0o640)
    tree = make(store, umask=0o007)
    folder = await tree.lookup(ROOT, b"d")
    file = await tree.lookup(folder.id, b"f")
    assert (file.size, file.mode, file.kind) == (5, 0o640, Kind.FILE)
    handle = await tree.open(file.id)
    assert await tree.read(handle, 1, 100) == b"ello"
    assert await tree.read(handle, 5, 10) == b""
    await tree.release(handle)
    assert store.handles[0].closed


async def test_absent_and_wrong_kinds(store: MemoryStore) -> None:
    store.put(b"/f", b"x")
    store.put(b"/d", kind=Kind.DIRECTORY)
    store.put(b"/l", b"f", kind=Kind.SYMLINK)
    tree = make(store)
    with pytest.raises(NotFound):
        await tree.lookup(ROOT, b"absent")
    file, folder, link = [(await tree.lookup(ROOT, name)).id for name in (b"f", b"d", b"l")]
    assert await tree.readlink(link) == b"f"
    for call, error in (
        (tree.lookup(file, b"x"), NotADirectory),
        (tree.opendir(file), NotADirectory),
        (tree.open(folder), IsADirectory),
        (tree.open(link), Unsupported),
        (tree.readlink(file), Unsupported),
        (tree.getattr(99), UnknownHandle),
        (tree.read(99, 0, 1), UnknownHandle),
        (tree.readdir(99, 0, lambda *_: True), UnknownHandle),
    ):
        with pytest.raises(error):
            await call


async def test_replaced_file(store: MemoryStore, clock: trio.testing.MockClock) -> None:
    """A new version has a new id, the old id cannot be opened any more, and old handles keep their bytes."""
    store.put(b"/f", b"old")
    tree = make(store)
    old = await tree.lookup(ROOT, b"f")
    handle = await tree.open(old.id)
    store.put(b"/f", b"newer")
    await trio.sleep(2)
    with pytest.raises(StaleVersion):
        await tree.open(old.id)
    new = await tree.lookup(ROOT, b"f")
    assert new.id != old.id
    with pytest.raises(StaleVersion):
        await tree.open(old.id)
    assert await tree.read(await tree.open(new.id), 0, 10) == b"newer"
    assert await tree.read(handle, 0, 10) == b"old"
    assert (await tree.getattr(old.id)).size == 3
    await tree.release(handle)
    with pytest.raises(StaleVersion):
        await tree.getattr(old.id)


async def test_open_without_a_recent_lookup_asks_the_store(store: MemoryStore) -> None:
    store.put(b"/f", b"old")
    tree = make(store, attr_timeout=1e6)
    node = await tree.lookup(ROOT, b"f")
    store.put(b"/f", b"new")
    with pytest.raises(StaleVersion):
        await tree.open(node.id)
    assert (await tree.lookup(ROOT, b"f")).id != node.id


async def test_deleted_file(store: MemoryStore) -> None:
    store.put(b"/f", b"x")
    tree = make(store)
    node = await tree.lookup(ROOT, b"f")
    del store.entries[b"/f"]
    with pytest.raises(StaleVersion):
        await tree.getattr(node.id)
    with pytest.raises(NotFound):
        await tree.open(node.id)


async def test_file_becomes_directory(store: MemoryStore) -> None:
    store.put(b"/x", b"")
    tree = make(store)
    file = await tree.lookup(ROOT, b"x")
    store.put(b"/x", kind=Kind.DIRECTORY)
    with pytest.raises(StaleVersion):
        await tree.getattr(file.id)
    assert (await tree.lookup(ROOT, b"x")).id != file.id


async def test_lookups_of_one_path_are_shared(store: MemoryStore) -> None:
    store.put(b"/f")
    gate = threading.Event()
    store.before = lambda call, path: (gate.wait(10), None)[1]
    tree = make(store)
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(tree.lookup, ROOT, b"f")
        await trio.testing.wait_all_tasks_blocked(0.05)
        gate.set()
    assert store.calls == [("stat", b"/f")]
    assert tree.state.nodes[next(iter(tree.state.current.values()))].lookups == 20


async def test_a_lookup_after_a_stale_open_asks_anew(store: MemoryStore) -> None:
    """It does not join a lookup that began before the file was replaced."""
    store.put(b"/f", b"old")
    tree = make(store)
    old = await tree.lookup(ROOT, b"f")
    began, gate = threading.Event(), threading.Event()
    answer = store.stat(b"/f")

    def slow_stat(path: bytes) -> Status:
        store.stat = MemoryStore.stat.__get__(store)  # type: ignore[method-assign]  # slow once
        began.set()
        gate.wait(10)
        return answer

    store.stat = slow_stat  # type: ignore[method-assign]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tree.lookup, ROOT, b"f")
        await trio.to_thread.run_sync(began.wait)
        store.put(b"/f", b"newer")
        with pytest.raises(StaleVersion):
            await tree.open(old.id)
        assert (await tree.lookup(ROOT, b"f")).size == 5
        gate.set()


async def test_all_handles_share_one_open_file(store: MemoryStore) -> None:
    store.put(b"/f", b"x")
    tree = make(store)
    node = await tree.lookup(ROOT, b"f")
    handles: list[int] = []

    async def open_one() -> None:
        handles.append(await tree.open(node.id))

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(open_one)
    assert len(set(handles)) == 10
    assert len(store.handles) == 1
    for handle in handles:
        assert not store.handles[0].closed
        await tree.release(handle)
    assert store.handles[0].closed
    assert tree.snapshot()["open_files"] == 0


async def test_a_failed_open_leaves_nothing(store: MemoryStore) -> None:
    store.put(b"/f", b"x")
    tree = make(store)
    node = await tree.lookup(ROOT, b"f")

    def fail(call: str, path: bytes) -> None:
        raise StoreError("broken")

    store.before = fail
    with pytest.raises(StoreError):
        await tree.open(node.id)
    store.before = lambda call, path: None
    assert await tree.read(await tree.open(node.id), 0, 1) == b"x"


async def test_a_short_read_is_an_error(store: MemoryStore) -> None:
    store.put(b"/f", b"12345")
    tree = make(store)
    handle = await tree.open((await tree.lookup(ROOT, b"f")).id)
    store.handles[0].data = b"123"
    with pytest.raises(StoreError, match="3 bytes instead of 5"):
        await tree.read(handle, 0, 5)


# Stores that are away


async def test_transient_failures_are_tried_again(store: MemoryStore, clock: trio.testing.MockClock) -> None:
    store.put(b"/f", b"x")
    failures = iter([True] * 5)

    def fail(call: str, path: bytes) -> None:
        if next(failures, False):
            raise ServiceDown("away")

    store.before = fail
    tree = make(store)
    node = await tree.lookup(ROOT, b"f")
    assert await tree.read(await tree.open(node.id), 0, 1) == b"x"
    assert tree.snapshot()["metadata_retries"] == 5


async def test_giving_up_after_the_time_out(store: MemoryStore, clock: trio.testing.MockClock) -> None:
    def fail(call: str, path: bytes) -> None:
        raise Transient("away")

    store.before = fail
    tree = make(store, io_timeout=7.0)
    before = trio.current_time()
    with pytest.raises(Transient, match="away"):
        await tree.lookup(ROOT, b"f")
    assert 4 < trio.current_time() - before <= 7
    assert tree.snapshot()["metadata_retries"] > 3


async def test_a_call_that_hangs_is_abandoned(store: MemoryStore) -> None:
    gate = threading.Event()
    store.before = lambda call, path: (gate.wait(10), None)[1]
    tree = make(store, io_timeout=0.05)
    with pytest.raises(ServiceDown, match="no answer within"):
        await tree.lookup(ROOT, b"f")
    gate.set()


# Directories


async def test_listing_pages_and_positions(store: MemoryStore) -> None:
    names = [b"%03d" % number for number in range(20)]
    for name in names:
        store.put(b"/" + name)
    tree = make(store)
    handle = await tree.opendir(ROOT)
    whole = await listed(tree, handle)
    assert [name for name, _ in whole] == names
    cookies = dict(whole)
    assert await listed(tree, handle, 0) == whole
    for at in (5, 4, 0, 19, 12):
        assert await listed(tree, handle, cookies[names[at]], most=3) == whole[at + 1 : at + 4]
    with pytest.raises(UnknownHandle):
        await listed(tree, handle, 1000)


async def test_a_page_taken_in_part_is_not_asked_for_again(store: MemoryStore) -> None:
    for number in range(9):
        store.put(b"/%d" % number)
    tree = make(store)
    handle = await tree.opendir(ROOT)
    found, start = [], 0
    while page := await listed(tree, handle, start, most=4):
        found += page[:2]  # the kernel's caller took two of four
        start = page[:2][-1][1]
    assert [name for name, _ in found] == [b"%d" % number for number in range(9)]
    assert store.calls == [("scandir", b"/")] * 3


async def test_first_entries_come_before_all_are_listed(store: MemoryStore) -> None:
    for number in range(100):
        store.put(b"/%02d" % number)
    tree = make(store)
    handle = await tree.opendir(ROOT)
    assert len(await listed(tree, handle, most=5)) == 5
    assert len(store.calls) == 2


async def test_changes_while_listing_lose_and_repeat_nothing(store: MemoryStore) -> None:
    for number in range(0, 40, 2):
        store.put(b"/%02d" % number)
    tree = make(store)
    handle = await tree.opendir(ROOT)
    first = await listed(tree, handle, most=7)
    for number in range(1, 40, 2):
        store.put(b"/%02d" % number)
    del store.entries[b"/12"]
    restarted = await listed(tree, handle, first[3][1])  # back into the middle, over names that moved
    assert [name for name, _ in restarted][:3] == [b"08", b"10", b"14"] or restarted[0][0] > first[3][0]
    names = [name for name, _ in restarted]
    assert names == sorted(set(names))
    assert {b"%02d" % number for number in range(14, 40, 2)} <= set(names)
    again = await listed(tree, handle, 0)
    assert [name for name, _ in again] == sorted(status.name for status, _ in store.entries.values() if status.name)
    assert dict(first).items() <= dict(again).items() | {(b"12", dict(first).get(b"12", 0))}


async def test_listed_entries_count_as_looked_up(store: MemoryStore) -> None:
    for number in range(5):
        store.put(b"/%d" % number)
    tree = make(store)
    handle = await tree.opendir(ROOT)
    await listed(tree, handle, most=3)
    assert len(tree.state.nodes) == 1 + 3
    tree.forget([(node, 1) for node in list(tree.state.nodes)])
    assert len(tree.state.nodes) == 1


async def test_listing_goes_on_after_a_failure(store: MemoryStore, clock: trio.testing.MockClock) -> None:
    for number in range(10):
        store.put(b"/%d" % number)
    fail_at = {3}

    def fail(call: str, path: bytes) -> None:
        if call == "scandir" and len(store.calls) in fail_at:
            raise ServiceDown("away")

    store.before = fail
    tree = make(store)
    handle = await tree.opendir(ROOT)
    assert [name for name, _ in await listed(tree, handle)] == [b"%d" % number for number in range(10)]


async def test_what_was_shown_before_a_failure_is_kept(store: MemoryStore) -> None:
    for number in range(5):
        store.put(b"/%d" % number)

    def fail(call: str, path: bytes) -> None:
        if len(store.calls) > 1:
            raise StoreError("broken")

    store.before = fail
    tree = make(store)
    handle = await tree.opendir(ROOT)
    shown = await listed(tree, handle)
    assert len(shown) == 3
    with pytest.raises(StoreError, match="broken"):
        await listed(tree, handle, shown[-1][1])
    store.before = lambda call, path: None
    assert len(await listed(tree, handle, shown[-1][1])) == 2


async def test_attributes_of_an_old_listing_are_not_believed(store: MemoryStore, clock: trio.testing.MockClock) -> None:
    for number in range(3):
        store.put(b"/%d" % number)
    tree = make(store)
    handle = await tree.opendir(ROOT)
    valid: list[float] = []

    def show(name: bytes, attributes: Attributes, cookie: int) -> bool:
        valid.append(attributes.valid)
        return len(valid) != 2

    await tree.readdir(handle, 0, show)
    await trio.sleep(5)
    await tree.readdir(handle, 1, show)
    assert valid == [1.0, 1.0, 0.0, 0.0]


# The next worker


async def test_the_next_tree_carries_on(store: MemoryStore) -> None:
    store.put(b"/d", kind=Kind.DIRECTORY)
    for number in range(9):
        store.put(b"/d/%d" % number, b"content %d" % number)
    kept = Kept()
    first = make(store, kept)
    folder = await first.lookup(ROOT, b"d")
    file = await first.lookup(folder.id, b"4")
    handle = await first.open(file.id)
    listing = await first.opendir(folder.id)
    head = await listed(first, listing, most=5)
    second = make(store, kept)
    assert await second.read(handle, 0, 100) == b"content 4"
    assert (await second.getattr(file.id)).size == 9
    assert [name for name, _ in await listed(second, listing, head[2][1])] == [b"3", b"4", b"5", b"6", b"7", b"8"]
    await second.release(handle)
    await second.releasedir(listing)
    assert second.snapshot()["open_files"] == second.snapshot()["open_directories"] == 0
    assert store.handles[-1].closed
    await second.release(handle)  # asked again because the answer was lost: no error


async def test_the_next_tree_refuses_a_replaced_version(store: MemoryStore) -> None:
    store.put(b"/f", b"old")
    kept = Kept()
    first = make(store, kept)
    handle = await first.open((await first.lookup(ROOT, b"f")).id)
    store.put(b"/f", b"new")
    second = make(store, kept)
    with pytest.raises(StaleVersion):
        await second.read(handle, 0, 3)
    del store.entries[b"/f"]
    with pytest.raises(StaleVersion):
        await second.read(handle, 0, 3)
    await second.release(handle)


# The rest


async def test_owners(store: MemoryStore) -> None:
    store.put(b"/a", owner="root", group="daemon")
    store.put(b"/b", owner="1234", group="99999999999")
    store.put(b"/c", owner="no such user", group="")
    import os

    tree = make(store)
    owners = {}
    for name in (b"a", b"b", b"c"):
        found = await tree.lookup(ROOT, name)
        owners[name] = (found.uid, found.gid)
    assert owners == {b"a": (0, 1), b"b": (1234, os.getgid()), b"c": (os.getuid(), os.getgid())}
    fixed = await make(store, uid=5, gid=6).lookup(ROOT, b"a")
    assert (fixed.uid, fixed.gid) == (5, 6)


async def test_capacity(store: MemoryStore, clock: trio.testing.MockClock) -> None:
    tree = make(store)
    assert await tree.statfs() == Space(1000, 400, 7)

    def fail(call: str, path: bytes) -> None:
        raise StoreError("away")

    store.before = fail
    await trio.sleep(60)
    assert await tree.statfs() == Space(1000, 400, 7)
    store.before = lambda call, path: None
    store.capacity = None
    other = make(store)
    assert (await other.statfs()).capacity > 0
    assert (await other.statfs()).free > 0


async def test_xattrs(store: MemoryStore) -> None:
    store.put(b"/f x", b"12345", block_size=4, replication=2)
    store.put(b"/d", kind=Kind.DIRECTORY)
    tree = make(store)
    file, folder = (await tree.lookup(ROOT, b"f x")).id, (await tree.lookup(ROOT, b"d")).id
    values = {name: await tree.getxattr(file, name) for name in await tree.listxattr(file)}
    locations = values.pop(b"user.stripefs.locations")
    assert values == {
        b"user.stripefs.block_size": b"4",
        b"user.stripefs.replication": b"2",
        b"user.stripefs.source": b"memory://test/f%20x",
        b"user.stripefs.version": b"5:1000:1",
    }
    assert locations is not None
    assert json.loads(locations) == [{"offset": 0, "length": 5, "hosts": ["a", "b"]}]
    assert store.handles[-1].closed
    calls = len(store.calls)
    assert await tree.getxattr(file, b"security.capability") is None
    assert await tree.getxattr(folder, b"user.stripefs.version") is None
    assert len(store.calls) == calls


def test_locations_of_a_huge_file_fit() -> None:
    from stripefs.tree.xattrs import locations

    blocks = [Block(number << 27, 1 << 27, ("host-with-a-name:9866",) * 3) for number in range(100_000)]
    value = locations(blocks)
    assert len(value) <= 64 << 10
    items = json.loads(value)
    assert items[-1] == {"more": 100_000 - len(items) + 1}


def test_every_error_has_an_errno() -> None:
    assert issubclass(UnknownHandle, StripefsError)
    assert UnknownHandle("x").errno == StaleVersion("x").errno
