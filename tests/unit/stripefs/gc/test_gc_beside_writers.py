"""gc beside writers that go on, with the protection of age taken away: locks and manifests alone must be enough."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import trio

from stripefs.gc.collect import Collected, Collection
from stripefs.store.striped import StripedStore
from stripefs.write import UploadManager
from tests.support.uploads import KIB, LAYOUTS, MIB, content, hidden, load, spread, writing


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
