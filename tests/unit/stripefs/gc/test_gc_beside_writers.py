"""gc beside writers that go on, with the protection of age taken away: locks and manifests alone must be enough."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
import trio

from stripefs.gc.collect import Collected, Collection
from stripefs.gc.deferred_delete import DeferredDelete
from stripefs.gc.rules import GcVerdict
from stripefs.store.striped import StripedStore
from stripefs.write import Layout, UploadManager
from tests.support.leftovers import DAY, Hooked
from tests.support.uploads import KIB, LAYOUTS, MIB, content, hidden, load, save, spread, until, writing


@pytest.fixture(autouse=True)
def ageless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stripefs.gc.rules.FORCED_AGE", 0.0)
    monkeypatch.setattr("stripefs.gc.collect.FORCED_AGE", 0.0)


async def test_writers_lose_nothing(tmp_path: Path) -> None:
    store = spread(tmp_path)
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    stands: dict[bytes, bytes] = {}
    found: list[Collected] = []
    writers = 6

    async def write(uploads: UploadManager, number: int) -> None:
        """Versions of one file, generations of each, moves from directory to directory, and some that are given up."""
        chance = random.Random(number)
        layout = LAYOUTS[number % len(LAYOUTS)]
        path = f"/{chance.choice('ab')}/file{number}".encode()
        for turn in range(5):
            identity = StripedStore(store).stat(path).identity if path in stands else None
            upload = await uploads.begin(path, replacing=identity, layout=layout)
            data = b""
            for generation in range(chance.randrange(1, 3)):
                piece = content(chance.choice([10, 200 * KIB, MIB]), turn * 10 + generation)
                await upload.write(len(data), piece)
                data += piece
                if chance.random() < 0.5:
                    await upload.sync()
                await upload.publish(final=False)
                stands[path] = data
            await upload.write(len(data), content(300 * KIB))
            if chance.random() < 0.3:
                await upload.rewind()
                await upload.write(0, data)
            else:
                data += content(300 * KIB)
            await upload.publish(final=True)
            stands[path] = data
            elsewhere = path.translate(bytes.maketrans(b"ab", b"ba"), b"")[:2] + path[2:]
            await trio.to_thread.run_sync(store.rename, path, elsewhere)
            stands[elsewhere] = stands.pop(path)
            path = elsewhere

    async def collect(done: trio.Event) -> None:
        while not done.is_set():
            gc = Collection(store, StripedStore(store), force=True)
            found.append(await trio.to_thread.run_sync(gc.run))

    async with writing(store) as uploads, trio.open_nursery() as nursery:
        done = trio.Event()
        nursery.start_soon(collect, done)
        async with trio.open_nursery() as busy:
            for number in range(writers):
                busy.start_soon(write, uploads, number)
        done.set()

    assert len(stands) == writers
    for path, data in stands.items():
        assert load(store, path) == data
    assert len(found) > 1
    # Everything is old and files keep moving, so gc may find no moment to tell which parts are needed.
    told = {text for each in found for _, text in each.trouble}
    assert all("being moved about" in text for text in told)
    last = Collection(store, StripedStore(store), force=True).run()
    assert last.trouble == []
    for path, data in stands.items():
        assert load(store, path) == data
    assert not [name for name in hidden(tmp_path) if not name.startswith(".stripefs/")]


def age(root: Path) -> None:
    """Nothing has changed for two days."""
    then = time.time() - 2 * DAY
    for path in sorted([root, *root.rglob("*")], reverse=True):
        os.utime(path, (then, then))


async def test_what_loses_its_name_during_a_search_stays_for_its_readers(tmp_path: Path) -> None:
    """It is old, and no file names it any more where gc looks; but right before gc takes it, it is young again."""
    store = spread(tmp_path)
    view = StripedStore(store)
    deletions = DeferredDelete(store, grace=3600.0)
    paths = [b"/file%d" % number for number in range(4)]
    async with (
        writing(store, layout=Layout.STRIPED, schedule_delete=deletions.schedule) as uploads,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(deletions.run)
        for number, path in enumerate(paths):
            await save(uploads, path, content(MIB, number))
        age(tmp_path)
        readers = [view.open(path) for path in paths]
        versions = {path.name for path in (tmp_path / ".stripefs").iterdir()}

        async def replace() -> None:
            for path in paths:
                await save(uploads, path, content(200 * KIB), replacing=StripedStore(store).stat(path).identity)
            await until(lambda: all((tmp_path / ".stripefs" / version / "stone").exists() for version in versions))

        begun: list[bytes] = []

        def before(call: str, path: bytes) -> None:
            if call == "scandir" and path == b"/" and not begun:  # the pool was listed, and the tree was not
                begun.append(path)
                trio.from_thread.run(replace)

        watched = Hooked(store, before)
        found = await trio.to_thread.run_sync(Collection(watched, StripedStore(watched)).run)
        assert (begun, found.removed, found.trouble) == ([b"/"], 0, [])
        assert {verdict: count for verdict, (count, _) in found.kept.items()} == {GcVerdict.YOUNG: len(paths)}
        for number, reader in enumerate(readers):
            assert bytes(reader.read(0, MIB)) == content(MIB, number)
            reader.close()
        nursery.cancel_scope.cancel()
    age(tmp_path)
    assert Collection(store, StripedStore(store)).run().removed == len(paths)
    for path in paths:
        assert load(store, path) == content(200 * KIB)
