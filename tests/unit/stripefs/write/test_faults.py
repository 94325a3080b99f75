"""Hosts that die, stores that are away, answers that get lost: the bytes are whole, or the writer learns of it."""

import contextlib
from functools import partial

import pytest
import trio

from stripefs import retry
from stripefs.errors import HostFailed, NoSpace, QuotaExceeded, StoreError
from stripefs.testing.faults import FaultyStore
from stripefs.write import DraftLost, Layout
from stripefs.write.file_lock import lock_path, read_lock
from tests.support.uploads import LAYOUTS, MIB, begin_with, beside, content, hidden, load, save, until, writing

HOSTS = ("h0", "h1", "h2", "h3")
PARTED = [Layout.CONCAT, Layout.STRIPED]
DATA = content(6 * MIB + 99)


@pytest.mark.parametrize("layout", PARTED)
@pytest.mark.parametrize("state", ["dead", "frozen"])
async def test_a_host_is_lost_on_the_way(store, layout, state):
    async with writing(store, layout=layout) as uploads:
        upload = await begin_with(uploads, DATA[: 2 * MIB])
        (store.hosts_control.kill if state == "dead" else store.hosts_control.freeze)("h1")
        await upload.write(2 * MIB, DATA[2 * MIB :])
        await upload.publish(final=True)
        status = uploads.status()
        assert status["retries"] > 0
        assert [host["name"] for host in status["hosts"] if host["avoided_seconds"] > 0] == ["h1"]
        assert (status["errors"]["HostFailed"], status["lost"]) == (status["retries"], {})
        assert "h1" in status["last_error"]["message"]
        assert status["published_versions"] == 1
    store.hosts_control.restore("h1")
    assert load(store, b"/file") == DATA


@pytest.mark.parametrize("layout", PARTED)
@pytest.mark.parametrize("memory", [4 * MIB, 32 * MIB])
async def test_all_hosts_are_lost(store, tmp_path, layout, memory):
    """A writer learns of it, also while it waits for memory, all of which is free for others then."""
    async with writing(store, layout=layout, io_timeout=0.5, memory=memory) as uploads:
        upload = await uploads.begin(b"/file", replacing=None)
        for host in HOSTS:
            store.hosts_control.kill(host)
        with pytest.raises(HostFailed) if memory < len(DATA) else contextlib.nullcontext():
            await upload.write(0, DATA)
        await until(lambda: upload.failure is not None)
        for call in (upload.write(upload.length, b"x"), upload.sync(), upload.publish(final=False)):
            with pytest.raises(HostFailed):
                await call
        assert uploads.status()["lost"] == {"HostFailed": 1}
        assert "/file: " in uploads.status()["last_error"]["message"]
        for host in HOSTS:
            store.hosts_control.restore(host)
        await save(uploads, b"/other", DATA)
        await upload.abandon()
        assert uploads.status()["memory_bytes"] == 0
    assert not beside(tmp_path)
    assert load(store, b"/other") == DATA


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["space", "quota"])
@pytest.mark.parametrize("size", [1000, len(DATA)])
async def test_no_room(store, tmp_path, layout, kind, size):
    """The error reaches the writer every time from then on, the old version stays, nothing is left."""
    faulty = FaultyStore(store)
    async with writing(faulty, layout=layout) as uploads:
        await save(uploads, b"/file", b"old")
        upload = await uploads.begin(b"/file", replacing=store.stat(b"/file").identity)
        faulty.fail_at(2 if size > 1000 else 1, "write", kind=kind)
        failed = 0
        calls = [partial(upload.write, 0, DATA[:size]), upload.sync, *2 * [partial(upload.publish, final=False)]]
        for call in calls:
            try:
                await call()
            except (NoSpace, QuotaExceeded):
                failed += 1
        assert failed >= 3
        await upload.abandon()
    assert load(store, b"/file") == b"old"
    assert not hidden(tmp_path)


CHANGES = ["put", "create", "write", "close", "rename", "concat", "mkdir", "remove", "set_attributes"]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("after", [False, True], ids=["refused", "answer lost"])
@pytest.mark.parametrize("kind", ["host", "service"])
async def test_what_passes_by_itself_is_not_noticed(store, tmp_path, monkeypatch, layout, after, kind):
    """Every call that changes something fails once, before or after its effect."""
    monkeypatch.setattr(retry, "FIRST_RETRY", 0.01)
    faulty = FaultyStore(store)
    async with writing(faulty, layout=layout) as uploads:
        await save(uploads, b"/file", DATA[: 2 * MIB])
        for turn, call in enumerate(CHANGES):
            if layout is Layout.PLAIN and call in ("write", "close"):
                continue  # one stream that is lost is an error of the file
            faulty.fail_at(1, call, kind=kind, after=after)
            upload = await uploads.begin(b"/file", replacing=store.stat(b"/file").identity)
            data = content(MIB + turn, seed=turn)
            await upload.write(0, data[: MIB // 2])
            await upload.sync()
            await upload.write(MIB // 2, data[MIB // 2 :])
            await upload.publish(final=False)
            await upload.write(len(data), b"behind")
            await upload.publish(final=True)
            assert load(store, b"/file") == data + b"behind", call
    assert not {name for name in beside(tmp_path) if "lock" in name}


async def test_a_clients_bug_is_an_error_of_the_file(store):
    faulty = FaultyStore(store)
    async with writing(faulty, layout=Layout.STRIPED) as uploads:
        upload = await uploads.begin(b"/file", replacing=None)
        faulty.fail_at(3, "write", kind="wrong")
        await upload.write(0, DATA)
        with pytest.raises(StoreError, match="unexpectedly"):
            await upload.publish(final=True)
        await save(uploads, b"/file", DATA)
    assert load(store, b"/file") == DATA


async def test_a_lost_lock_publishes_nothing(store, tmp_path):
    async with writing(store, layout=Layout.STRIPED) as uploads:
        upload = await begin_with(uploads, DATA)
        store.remove(b"/.file.stripefs-lock")
        await uploads.heartbeat.beat()
        with pytest.raises(DraftLost):
            await upload.publish(final=True)
    assert "file" not in {path.name for path in tmp_path.iterdir()}


async def test_many_writers_in_little_memory(store):
    """Twenty files at once through 4 MiB, half of them idle in the middle, and all of them right."""
    async with writing(store, memory=4 * MIB, small=MIB) as uploads:

        async def one(number):
            layout = LAYOUTS[number % 3]
            data = content(MIB + number * 100_000, seed=number)
            upload = await uploads.begin(b"/file%d" % number, replacing=None, layout=layout)
            for at in range(0, len(data), 200_000):
                await upload.write(at, data[at : at + 200_000])
                if at == 600_000 and number % 2:
                    idle.append(number)
                    await gone.wait()
            await upload.publish(final=True)
            busy.discard(number)
            if not busy:
                gone.set()

        idle, busy, gone = [], {number for number in range(20) if not number % 2}, trio.Event()
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(one, number)
        assert uploads.status()["memory_bytes"] == 0
        status = uploads.status()
        assert status["memory_waits"] > 0
        assert status["memory_waited_seconds"] > 0
        assert (status["published_versions"], status["drafts"], status["lost"]) == (20, [], {})
    for number in range(20):
        assert load(store, b"/file%d" % number) == content(MIB + number * 100_000, seed=number)


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_version_that_the_lock_does_not_name_is_not_begun(store, layout):
    """One that takes the lock over would not fence it."""
    faulty = FaultyStore(store)
    async with writing(faulty, layout=layout) as uploads:
        upload = await begin_with(uploads, DATA)
        faulty.fail_at(1, "put", kind="quota")
        with pytest.raises(QuotaExceeded):
            await upload.rewind()
        for call in (upload.write(upload.length, b"x"), upload.sync(), upload.publish(final=False)):
            with pytest.raises(DraftLost):
                await call
        await upload.rewind()
        lock = read_lock(store, lock_path(b"/file"))
        assert lock is not None
        assert upload.version in lock.versions
        await upload.write(0, DATA[:MIB])
        await upload.publish(final=True)
    assert load(store, b"/file") == DATA[:MIB]
