"""Files that are given another name while they are written: what lies under the old one, and what happens to locks."""

import pytest

from stripefs.errors import Busy, QuotaExceeded
from stripefs.format.reserved_names import record_name
from stripefs.testing.faults import FaultyStore
from stripefs.write import Layout
from tests.support.uploads import LAYOUTS, MIB, beside, content, hidden, load, locks, spread, writing

DATA = content(2 * MIB + 9)
OUTCOMES = [(False, False), (True, False), (False, True)]


@pytest.fixture
def store(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    return FaultyStore(spread(tmp_path), rate=0.0)


async def begun(uploads, size=MIB):
    upload = await uploads.begin(b"/a/file", replacing=None)
    await upload.write(0, DATA[:size])
    await upload.sync()
    return upload


async def move(upload, path):
    async with upload.moving(path):
        pass


@pytest.mark.parametrize(
    ("layout", "step", "call", "nth"),
    [
        *[(layout, "sync", "rename", 1) for layout in LAYOUTS],
        *[(Layout.CONCAT, "publish", *each) for each in (("rename", 1), ("rename", 2), ("concat", 1))],
    ],
)
@pytest.mark.parametrize(("after", "again"), OUTCOMES, ids=["refused", "answer lost", "tried again"])
async def test_what_cannot_follow_a_file(store, tmp_path, layout, step, call, nth, after, again):
    """The old record stands until a new one does, at the second try. Parts that are joined must lie together: some have
    been moved when something goes wrong. Nothing outlives the writer."""
    async with writing(store, layout=layout, io_timeout=0.5, memory=MIB) as uploads:  # so little makes several parts
        upload = await begun(uploads)
        await move(upload, b"/b/new")
        await upload.write(MIB, DATA[MIB:])
        store.fail_at(nth, call, kind="quota", after=after)
        with pytest.raises(QuotaExceeded):
            await (upload.sync() if step == "sync" else upload.publish(final=False))
        assert (tmp_path / "a" / record_name(b"file", upload.version).decode()).exists()
        if again:
            await upload.sync()
            assert [name[:7] for name in hidden(tmp_path) if "-record" in name] == ["b/.new."]
            await upload.publish(final=True)
            assert load(store, b"/b/new") == DATA
            assert not beside(tmp_path)
        else:
            await upload.abandon()
            assert not hidden(tmp_path)


async def test_a_name_that_somebody_else_has(store, tmp_path):
    """It fails at each attempt, and nothing is left in the directory that was not left."""
    async with writing(store) as here, writing(store) as there:
        other = await there.begin(b"/b/new", replacing=None)
        upload = await begun(here)
        for _ in range(3):
            with pytest.raises(Busy):
                await move(upload, b"/b/new")
        assert locks(tmp_path) == {"a/.file.stripefs-lock", "b/.new.stripefs-lock"}
        await other.abandon()
        await move(upload, b"/b/new")
        assert locks(tmp_path) == {f"a/.{upload.version}.stripefs-lock", "b/.new.stripefs-lock"}
        await move(upload, b"/a/file")
        await move(upload, b"/b/new")
        await upload.publish(final=True)
        assert not locks(tmp_path)


async def test_a_rename_that_fails_leaves_the_file_where_it_was(store, tmp_path):
    """Also where somebody would have the old name at once."""
    async with writing(store) as here, writing(store) as there:
        upload = await begun(here)

        async def refused():
            async with upload.moving(b"/b/new"):
                with pytest.raises(Busy):
                    await there.begin(b"/a/file", replacing=None)
                raise QuotaExceeded("no room for the new name")

        with pytest.raises(QuotaExceeded):
            await refused()
        assert (upload.path, here.get(b"/a/file"), here.get(b"/b/new")) == (b"/a/file", upload, None)
        assert locks(tmp_path) == {"a/.file.stripefs-lock"}
        await upload.publish(final=True)
    assert load(store, b"/a/file") == DATA[:MIB]
