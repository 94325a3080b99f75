"""One draft: buffers, attributes, giving up; tests/model has order, versions, fsync, reading back and moving."""

import os

import pytest
import trio

from stripefs.errors import Exists, PermissionDenied
from stripefs.store.base import Attributes
from stripefs.store.local import LocalStore
from stripefs.store.striped import StripedStore
from stripefs.write import DraftLost, Layout, UploadManager
from tests.support.uploads import (
    DEADLINE,
    KIB,
    LAYOUTS,
    MIB,
    begin_with,
    content,
    hidden,
    load,
    locks,
    policy,
    save,
    until,
    writing,
)


async def test_a_file_that_came_before_the_lock_was_held(store, tmp_path):
    async with writing(store) as uploads:
        (tmp_path / "file").write_bytes(b"theirs")
        with pytest.raises(Exists):
            await uploads.begin(b"/file", replacing=None)
        assert not hidden(tmp_path)
        await save(uploads, b"/file", b"ours", replacing=store.stat(b"/file").identity)
    assert load(store, b"/file") == b"ours"


async def test_buffers_may_change_afterwards(store):
    async with writing(store) as uploads:
        upload = await uploads.begin(b"/file", replacing=None)
        buffer = bytearray(b"a" * MIB)
        await upload.write(0, buffer)
        buffer[:] = b"b" * MIB
        await upload.write(MIB, memoryview(buffer))
        buffer[:] = b"c" * MIB
        await upload.publish(final=True)
    assert load(store, b"/file") == b"a" * MIB + b"b" * MIB


@pytest.mark.parametrize("size", [128 * KIB - 1, 128 * KIB])
async def test_small_files_are_not_striped(store, tmp_path, size):
    async with writing(store, layout=Layout.STRIPED) as uploads:
        await save(uploads, b"/file", content(size))
    assert bool(hidden(tmp_path)) == (size >= 128 * KIB)


async def test_what_was_abandoned_takes_nothing(store):
    async with writing(store) as uploads:
        upload = await begin_with(uploads, content(MIB))
        await upload.abandon()
        for call in (upload.write(MIB, b"x"), upload.sync(), upload.publish(final=True), upload.rewind()):
            with pytest.raises(DraftLost):
                await call


async def test_parts_of_a_version_that_is_begun_anew_are_scheduled_for_deletion(store, tmp_path):
    scheduled = []
    async with writing(
        store, layout=Layout.STRIPED, schedule_delete=lambda gone, pool: scheduled.extend(gone)
    ) as uploads:
        upload = await begin_with(uploads, content(2 * MIB))
        first = upload.version
        await upload.publish(final=False)
        await upload.rewind()
        assert load(store, b"/file") == content(2 * MIB)
        await upload.write(0, content(MIB, seed=2))
        await upload.publish(final=True)
    assert scheduled == [first]
    assert any(first in name for name in hidden(tmp_path))


async def test_attributes(tmp_path):
    store = LocalStore(str(tmp_path).encode())
    async with writing(store, layout=Layout.CONCAT) as uploads:
        upload = await begin_with(uploads, content(MIB), attributes=Attributes(mode=0o600))
        upload.set_attributes(Attributes(mtime_ns=10**18))
        status = await upload.publish(final=False)
        assert (status.mode, status.mtime_ns) == (0o600, 10**18)
        await upload.write(MIB, b"x")
        status = await upload.publish(final=True)
        assert status.mode == 0o600
        assert status.mtime_ns > 10**18


async def test_giving_it_away_is_tried_with_the_lock_and_hinders_nothing(store, tmp_path):
    change = store.set_attributes

    def refusing(path, attributes):
        if attributes.owner == "somebody":
            raise PermissionDenied(f"{path!r} stays ours")
        change(path, attributes)

    store.set_attributes = refusing
    ours = Attributes(owner=str(os.getuid()), group=str(os.getgid()))
    async with writing(store) as uploads:
        upload = await uploads.begin(b"/file", replacing=None)
        await upload.try_owners(ours)
        with pytest.raises(PermissionDenied, match="stays ours"):
            await upload.try_owners(Attributes(owner="somebody"))
        await uploads.heartbeat.beat()
        await upload.write(0, b"bytes")
        lock = tmp_path / ".file.stripefs-lock"
        lock.rename(tmp_path / "aside")
        await upload.try_owners(ours)  # a lock that somebody else holds up for a moment tells nothing
        (tmp_path / "aside").rename(lock)
        await upload.publish(final=True)
    assert load(store, b"/file") == b"bytes"


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_the_end_of_the_mount(store, tmp_path, layout):
    """Open uploads are given up, waiting writers learn of it, and no lock stays."""
    uploads = UploadManager(StripedStore(store), policy(memory=MIB, layout=layout))
    outcomes = []

    async def write_on(upload):
        try:
            while True:
                await upload.write(upload.length, content(MIB))
        except (DraftLost, trio.Cancelled) as error:
            outcomes.append(type(error))
            raise

    with trio.fail_after(DEADLINE):
        async with trio.open_nursery() as nursery:
            await nursery.start(uploads.run)
            for name in (b"/one", b"/two"):
                nursery.start_soon(write_on, await uploads.begin(name, replacing=None))
            await until(lambda: uploads.status()["sent_bytes"] > 4 * MIB or layout is Layout.PLAIN)
            nursery.cancel_scope.cancel()
    assert len(outcomes) == 2
    assert not locks(tmp_path)
    assert uploads.status()["files"] == 0
    async with writing(store) as after:
        await save(after, b"/one", b"new")
    assert load(store, b"/one") == b"new"
