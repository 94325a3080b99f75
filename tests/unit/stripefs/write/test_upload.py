"""One draft: generations, fsync and its record, reading back, moving, giving up; tests/model has order and appends."""

import pytest
import trio

from stripefs.errors import Exists
from stripefs.format.reserved_names import parse_reserved
from stripefs.gc.store_reads import read_chain
from stripefs.store.base import Attributes
from stripefs.store.local import LocalStore
from stripefs.store.striped import StripedStore
from stripefs.write import DraftLost, Layout, UploadManager
from tests.support.uploads import (
    DEADLINE,
    LAYOUTS,
    MIB,
    begin_with,
    beside,
    content,
    hidden,
    load,
    policy,
    save,
    until,
    writing,
)


def record_of(root):
    paths = {parse_reserved(path.name.encode()).number: bytes(path) for path in root.rglob("*-record*")}
    return read_chain(LocalStore(b"/"), paths)[0]


def bytes_of(root, record):
    """The bytes that a record declares durable, put together from its parts."""
    found = []
    for segment in record.segments:
        parts = [(root / part.path.decode().lstrip("/")).read_bytes() for part in segment.parts]
        unit = record.unit or segment.length
        pieces = [
            parts[number % len(parts)][number // len(parts) * unit :][: min(unit, segment.length - number * unit)]
            for number in range(-(-segment.length // unit))
        ]
        found += pieces
    return b"".join(found)


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


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("cuts", [(10, 50_000), (10, 200_000, 3 * MIB), (MIB, 2 * MIB, 5 * MIB + 3)])
async def test_generations(store, tmp_path, layout, cuts):
    data = content(cuts[-1])
    identities = set()
    async with writing(store, layout=layout) as uploads:
        upload = await uploads.begin(b"/file", replacing=None)
        for cut in cuts:
            await upload.write(upload.length, data[upload.length : cut])
            assert upload.dirty
            status = await upload.publish(final=False)
            assert not upload.dirty
            assert await upload.publish(final=False) == status
            assert status == upload.published
            assert status.identity == StripedStore(store).stat(b"/file").identity
            assert load(store, b"/file") == data[:cut]
            identities.add(status.identity)
        await upload.publish(final=True)
        assert len(identities) == len(cuts)
    assert not beside(tmp_path)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [1000, 2 * MIB + 5])
async def test_sync_leaves_a_record_of_all_bytes(store, tmp_path, layout, size):
    data = content(size + 100_000)
    async with writing(store, layout=layout) as uploads:
        upload = await begin_with(uploads, data[:size], attributes=Attributes(mode=0o640))
        await upload.sync()
        await upload.sync()
        record = record_of(tmp_path)
        assert (record.path, record.version, record.length, record.mode) == (b"/file", upload.version, size, 0o640)
        assert bytes_of(tmp_path, record) == data[:size]
        await upload.write(size, data[size:])
        await upload.sync()
        record = record_of(tmp_path)
        assert bytes_of(tmp_path, record) == data
        await upload.publish(final=True)
        assert load(store, b"/file") == data
    assert not beside(tmp_path)


@pytest.mark.parametrize("sizes", [(0, 1), (10, 20), (1000, MIB), (0, 1000, 3 * MIB)])
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_heads_saved_by_earlier_syncs_go(store, tmp_path, layout, sizes):
    async with writing(store, layout=layout) as uploads:
        upload = await uploads.begin(b"/file", replacing=None)
        for size in sizes:
            await upload.write(upload.length, content(sizes[-1])[upload.length : size])
            if size != sizes[-1]:
                await upload.sync()
        await upload.publish(final=True)
    assert load(store, b"/file") == content(sizes[-1])
    assert not beside(tmp_path)


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_abandoned_after_sync(store, tmp_path, layout):
    """A writer that was killed leaves what is durable; one that gives up leaves nothing."""
    async with writing(store, layout=layout) as uploads:
        upload = await begin_with(uploads, content(MIB))
        await upload.sync()
        await upload.abandon(recoverable=True)
        assert bytes_of(tmp_path, record_of(tmp_path)) == content(MIB)
        assert not any("lock" in name for name in hidden(tmp_path))
        upload = await uploads.begin(b"/other", replacing=None)
        await upload.write(0, content(MIB))
        await upload.sync()
        await upload.abandon()
        await upload.abandon()
        assert not any("other" in name or upload.version in name for name in hidden(tmp_path))
        for call in (upload.write(MIB, b"x"), upload.sync(), upload.publish(final=True), upload.rewind()):
            with pytest.raises(DraftLost):
                await call


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_reading_back(store, layout):
    data = content(5 * MIB)
    async with writing(store, layout=layout, memory=64 * MIB) as uploads:
        upload = await uploads.begin(b"/file", replacing=None)
        for end, act in ((100, None), (MIB, None), (2 * MIB, upload.sync), (3 * MIB, None)):
            await upload.write(upload.length, data[upload.length : end])
            if act:
                await act()
            for offset, size in ((0, 10), (end // 2, 300_000), (end - 5, 100), (end, 5), (0, end)):
                assert await upload.read(offset, size) == data[offset : min(end, offset + size)]
        await upload.publish(final=False)
        await upload.write(3 * MIB, data[3 * MIB :])
        assert await upload.read(0, 5 * MIB) == data
        await upload.publish(final=True)
    assert load(store, b"/file") == data


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("published", [False, True])
async def test_rewind(store, tmp_path, layout, published):
    scheduled = []
    async with writing(store, layout=layout, schedule_delete=lambda gone, pool: scheduled.extend(gone)) as uploads:
        upload = await begin_with(uploads, content(2 * MIB))
        first = upload.version
        if published:
            await upload.publish(final=False)
        await upload.sync()
        await upload.rewind()
        assert (upload.length, upload.dirty) == (0, True)
        assert load(store, b"/file") == content(2 * MIB) if published else True
        await upload.write(0, content(MIB, seed=2))
        await upload.publish(final=True)
    assert load(store, b"/file") == content(MIB, seed=2)
    if layout is Layout.STRIPED:
        assert scheduled == ([first] if published else [])
        assert any(first in name for name in hidden(tmp_path)) == published


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_moved_while_it_is_written(store, tmp_path, layout):
    (tmp_path / "folder").mkdir()
    data = content(4 * MIB)
    async with writing(store, layout=layout) as uploads:
        upload = await begin_with(uploads, data[:MIB])
        await upload.sync()
        async with upload.moving(b"/folder/new"):
            pass
        assert uploads.get(b"/file") is None
        assert uploads.get(b"/folder/new") is upload
        await upload.write(MIB, data[MIB : 2 * MIB])
        await upload.sync()
        await upload.publish(final=False)
        assert load(store, b"/folder/new") == data[: 2 * MIB]
        store.rename(b"/folder/new", b"/newer")
        async with upload.moving(b"/newer"):
            pass
        await upload.write(2 * MIB, data[2 * MIB :])
        await upload.publish(final=True)
    assert load(store, b"/newer") == data
    assert not beside(tmp_path)


async def test_detached_publishes_nothing(store, tmp_path):
    async with writing(store) as uploads:
        upload = await begin_with(uploads, content(MIB))
        await upload.detach()
        assert not any("lock" in name for name in hidden(tmp_path))
        other = await uploads.begin(b"/file", replacing=None)
        await upload.write(MIB, b"more")
        await upload.sync()
        assert (await upload.publish(final=True)).length == MIB + 4
        await other.write(0, b"other")
        await other.publish(final=True)
    assert load(store, b"/file") == b"other"
    assert not hidden(tmp_path)


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_what_was_unlinked_is_not_kept_for_recovery(store, tmp_path, layout):
    async with writing(store, layout=layout) as uploads:
        upload = await begin_with(uploads, content(MIB))
        await upload.sync()
        await upload.detach()
        await upload.abandon(recoverable=True)
        assert not hidden(tmp_path)


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
    assert not {name for name in hidden(tmp_path) if "lock" in name}
    assert uploads.status()["files"] == 0
    async with writing(store) as after:
        await save(after, b"/one", b"new")
    assert load(store, b"/one") == b"new"
