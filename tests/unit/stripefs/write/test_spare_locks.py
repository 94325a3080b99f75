"""The lock of a file that was closed becomes that of the next one in its directory, or is released within moments."""

import threading
import time

import pytest

from stripefs.errors import Busy
from stripefs.write import session
from stripefs.write.file_lock import acquire, lock_path, read_lock
from tests.model.mounts import Client
from tests.support.memory_store import MemoryStore
from tests.support.uploads import begin_with, save, writing


class Documents(Client):
    """A store in memory for many threads. asked: locks that were put and moved."""

    def __init__(self):
        super().__init__(MemoryStore(time.time_ns))
        self.turn = threading.RLock()
        self.asked = []

    def on_change(self, call, paths, act):
        if call in ("put", "rename") and paths[0].endswith(b"-lock"):
            self.asked.append((call, *paths))
        return super().on_change(call, paths, act)

    def _ask(self, act):
        with self.turn:
            return super()._ask(act)


@pytest.fixture
def store(monkeypatch):
    monkeypatch.setattr(session, "SPARE", 1000.0)
    store = Documents()
    store.mkdir(b"/d")
    return store


def locked(store, path):
    return read_lock(store, lock_path(path)) is not None


async def test_one_lock_serves_the_files_of_a_directory_that_come_one_after_the_other(store):
    async with writing(store) as uploads:
        for name in (b"/d/one", b"/d/two", b"/d/two", b"/e"):
            await save(uploads, name, b"data", anew=True)
        assert store.asked == [
            ("put", lock_path(b"/d/one")),
            ("rename", lock_path(b"/d/one"), lock_path(b"/d/two")),
            ("rename", lock_path(b"/d/two"), lock_path(b"/d/two")),
            ("put", lock_path(b"/e")),
        ]
        assert [locked(store, path) for path in (b"/d/one", b"/d/two", b"/e")] == [False, True, True]
        upload = await begin_with(uploads, b"more", b"/d/three")
        held = read_lock(store, lock_path(b"/d/three"))
        assert (held.path, held.versions) == (b"/d/three", (upload.version,))
        with pytest.raises(Busy):
            acquire(store, b"/d/three", [], "other/1")
        await upload.publish(final=True)
    assert not any(locked(store, path) for path in (b"/d/two", b"/d/three", b"/e"))


@pytest.mark.parametrize("look", ["writer_of", "writer_below"])
async def test_whoever_changes_names_sees_no_lock_of_a_closed_file(store, look):
    async with writing(store) as uploads:
        await save(uploads, b"/d/one", b"data")
        await save(uploads, b"/e", b"data")
        assert locked(store, b"/d/one")
        assert getattr(uploads, look)(b"/d/one" if look == "writer_of" else b"/d") == ""
        assert not locked(store, b"/d/one")
        assert locked(store, b"/e")
