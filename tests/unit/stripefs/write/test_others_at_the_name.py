"""The file at the name of an upload: others may move it away, or put another one there."""

import os

import pytest

from stripefs.errors import NotFound, QuotaExceeded, ServiceDown, StaleVersion
from stripefs.format.manifest import Manifest
from stripefs.store.striped import StripedStore
from stripefs.testing.faults import FaultyStore
from stripefs.write import Layout
from tests.support.uploads import LAYOUTS, MIB, begin_with, content, hidden, load, save, spread, writing

OLD = content(MIB + 5, seed=2)
OTHER = content(MIB + 5, seed=3)


@pytest.fixture
def store(tmp_path):
    return FaultyStore(spread(tmp_path), rate=0.0)


def identity(store):
    return StripedStore(store).stat(b"/file").identity


@pytest.mark.parametrize("by", [*LAYOUTS, None])
@pytest.mark.parametrize("size", [1000, MIB + 5])
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_file_that_is_continued_and_not_there_any_more(store, layout, size, by):
    """None: it is gone. A file that somebody else put there stays."""
    async with writing(store, layout=layout) as uploads:
        await save(uploads, b"/file", OLD[:size])
        if by is not None:
            await save(uploads, b"/other", OTHER[:size], layout=by)
        upload = await begin_with(uploads, b"more", replacing=identity(store), append=True)
        if by is None:
            store.rename(b"/file", b"/kept")
        else:
            store.rename(b"/other", b"/file", replace=True)
        with pytest.raises(StaleVersion):
            await upload.publish(final=True)
    if by is None:
        assert load(store, b"/kept") == OLD[:size]
        with pytest.raises(NotFound):
            store.stat(b"/file")
    else:
        assert load(store, b"/file") == OTHER[:size]


@pytest.mark.parametrize("by", LAYOUTS)
@pytest.mark.parametrize("size", [1000, MIB + 5])
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_file_that_nobody_looked_for_is_replaced(store, tmp_path, layout, size, by):
    deleted = []
    async with writing(store, layout=layout, schedule_delete=lambda versions, _: deleted.extend(versions)) as uploads:
        upload = await begin_with(uploads, OLD[:size], anew=True)
        await save(uploads, b"/other", OTHER, layout=by)
        store.rename(b"/other", b"/file")
        assert (await upload.publish(final=False)).length == size
        assert bool(deleted) == (by is Layout.STRIPED)
        await upload.write(size, b"more")
        await upload.publish(final=True)
    assert load(store, b"/file") == OLD[:size] + b"more"
    assert {name for name in hidden(tmp_path) if not name.startswith(".stripefs/")} == set()


@pytest.mark.parametrize("size", [1000, MIB + 5])
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_times_and_permissions_make_no_other_file(store, tmp_path, layout, size):
    async with writing(store, layout=layout) as uploads:
        await save(uploads, b"/file", OLD[:size])
        upload = await uploads.begin(b"/file", replacing=identity(store), append=True)
        for at in (size, size + 4):
            await upload.write(at, b"more")
            os.utime(tmp_path / "file", (at, at))
            (tmp_path / "file").chmod(0o600)
            await upload.publish(final=at > size)
    assert load(store, b"/file") == OLD[:size] + b"moremore"


async def test_an_answer_that_got_lost_does_not_make_it_another_file(store):
    """The version stands and nobody said so: what is published next goes behind that."""
    async with writing(store, layout=Layout.STRIPED, io_timeout=0.3) as uploads:
        await save(uploads, b"/file", OLD)
        upload = await begin_with(uploads, b"more", replacing=identity(store), append=True)
        rename, stat = store.rename, store.stat

        def away(path):
            raise ServiceDown("away")

        def renamed(source, target, **how):
            rename(source, target, **how)
            store.stat = away

        store.rename = renamed
        with pytest.raises(ServiceDown):
            await upload.publish(final=False)
        store.rename, store.stat = rename, stat
        await upload.write(len(OLD) + 4, b", and more")
        await upload.publish(final=True)
    assert load(store, b"/file") == OLD + b"more, and more"


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_version_that_was_moved_elsewhere_is_not_deleted(store, layout):
    """Its new name needs its parts."""
    scheduled = []
    async with writing(store, layout=layout, schedule_delete=lambda gone, pool: scheduled.extend(gone)) as uploads:
        await save(uploads, b"/file", OLD, layout=Layout.STRIPED)
        upload = await begin_with(uploads, OTHER, replacing=identity(store))
        store.rename(b"/file", b"/kept")
        await upload.publish(final=True)
    assert load(store, b"/file") == OTHER
    assert load(store, b"/kept") == OLD
    assert scheduled == []


@pytest.mark.parametrize("before", LAYOUTS)
@pytest.mark.parametrize("after", LAYOUTS)
async def test_a_file_that_is_replaced_between_two_looks_is_not_continued(store, tmp_path, monkeypatch, before, after):
    """The manifest of one version and the status of another make no file."""
    async with writing(store) as uploads:
        await save(uploads, b"/file", OLD, layout=before)
        await save(uploads, b"/other", OTHER, layout=after)
        seen = StripedStore(store).manifest(b"/file")
        store.rename(b"/other", b"/file", replace=True)

        async def manifest(path):
            return seen

        monkeypatch.setattr(uploads._shared, "manifest", manifest)
        if Layout.STRIPED in (before, after):
            with pytest.raises(StaleVersion):
                await uploads.begin(b"/file", replacing=identity(store), append=True)
            assert ".file.stripefs-lock" not in hidden(tmp_path)
        else:
            upload = await begin_with(uploads, b"more", replacing=identity(store), append=True)
            await upload.publish(final=True)
            assert load(store, b"/file") == OTHER + b"more"


@pytest.mark.parametrize("outcome", ["refused", "given up", "published"])
async def test_lists_of_parts_that_nothing_names(store, tmp_path, monkeypatch, outcome):
    """They lie in the pool, and go when what would have named them does not come."""
    monkeypatch.setattr(Manifest, "parts_list", _listed(Manifest.parts_list))
    async with writing(store, layout=Layout.STRIPED) as uploads:
        upload = await begin_with(uploads, OLD)
        store.fail_at(1, "rename", kind="quota")
        with pytest.raises(QuotaExceeded):
            await upload.publish(final=outcome == "given up")
        if outcome == "refused":
            await upload.abandon()
        if outcome == "published":
            await upload.write(len(OLD), b"more")
            await upload.publish(final=True)
            assert len(list(tmp_path.glob(".stripefs/*/list-*"))) == 1
        else:
            assert not hidden(tmp_path)


def _listed(parts_list):
    """As if there were too many parts for the manifest itself."""

    def listed(manifest):
        return parts_list(manifest) or (b"/.stripefs/%b/list-%d" % (manifest.version.encode(), manifest.length), b"x")

    return listed


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("other", [False, True], ids=["unlinked", "replaced"])
async def test_published_bytes_that_lost_their_name_are_not_read_from_another_file(store, layout, other):
    """Neither from a file of the same length. Bytes that were written since are read back all the same."""
    async with writing(store, layout=layout) as uploads:
        upload = await begin_with(uploads, content(MIB))
        await upload.publish(final=False)
        store.rename(b"/file", b"/elsewhere")
        if other:
            store.put(b"/file", [content(MIB, seed=2)])
        with pytest.raises(StaleVersion, match="replaced"):
            await upload.read(0, 100)
        await upload.detach()
        await upload.write(MIB, OTHER)
        with pytest.raises(StaleVersion, match="replaced"):
            await upload.read(MIB - 10, 20)
        assert await upload.read(MIB, len(OTHER)) == OTHER
        status = await upload.publish(final=True)
        assert (status.name, status.length) == (b"file", MIB + len(OTHER))
