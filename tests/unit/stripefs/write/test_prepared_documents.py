"""Manifests and records are written while the last parts are being acknowledged."""

import contextlib
import threading

import pytest
import trio

from stripefs.errors import HostFailed, QuotaExceeded
from stripefs.format.lock_and_record import Record
from stripefs.format.manifest import MANIFEST_BLOCK_SIZE
from stripefs.format.reserved_names import parse_reserved, record_name
from stripefs.write import Layout
from tests.support.uploads import DEADLINE, MIB, begin_with, content, hidden, load, spread, until, writing

DATA = content(3 * MIB + 7)


@pytest.fixture
def store(tmp_path):
    """`made` holds the paths of the manifests' files, `refused` counts down those that the store does not take."""
    made = spread(tmp_path)
    create = made.create
    made.made, made.refused = [], 0

    def counting(path, **how):
        if how.get("block_size") == MANIFEST_BLOCK_SIZE:
            made.made.append(path)
            if made.refused:
                made.refused -= 1
                raise QuotaExceeded("enough")
        return create(path, **how)

    made.create = counting
    return made


def beside(tmp_path):
    """Kinds of the hidden files beside the file, its lock left out."""
    names = [name for name in hidden(tmp_path) if not name.startswith(".stripefs/")]
    return sorted(kind for name in names if (kind := parse_reserved(name.encode()).kind) != "lock")


async def begun(uploads):
    upload = await begin_with(uploads, DATA[:MIB])
    await upload.sync()
    return upload


@pytest.mark.parametrize(("further", "made"), [(0, 1), (2, 2)], ids=["right after fsync", "outrun"])
async def test_a_manifest_is_written_ahead(store, tmp_path, further, made):
    """Publishing right after fsync writes no other one; one that was outrun was in vain, and goes."""
    async with writing(store, layout=Layout.STRIPED) as uploads:
        upload = await begun(uploads)
        await until(lambda: beside(tmp_path) == ["part", "record"])
        for _ in range(further):
            await upload.write(upload.length, DATA[upload.length :][:MIB])
            await upload.sync()
        await upload.publish(final=True)
        assert len(store.made) == made
        assert beside(tmp_path) == []
    assert load(store, b"/file") == DATA[: upload.length]


@pytest.mark.parametrize("refused", [1, 2], ids=["ahead", "at all"])
async def test_a_manifest_that_cannot_be_written(store, refused):
    """Ahead: it is written when it is needed. At all: the writer is told, and the old version stays."""
    async with writing(store, layout=Layout.STRIPED) as uploads:
        upload = await begun(uploads)
        await upload.publish(final=False)
        await upload.write(MIB, DATA[MIB:])
        store.refused = refused
        await upload.sync()
        with pytest.raises(QuotaExceeded) if refused == 2 else contextlib.nullcontext():
            await upload.publish(final=True)
        assert len(store.made) == 3
    assert load(store, b"/file") == DATA[: MIB if refused == 2 else None]


class Lost:
    """The first part that is complete is lost when its host should say so, once all of its bytes have been sent."""

    def __init__(self, store):
        self.parts = []
        self._create = store.create
        store.create = self.create

    def create(self, path, **how):
        sink = self._create(path, **how)
        if not path.startswith(b"/.stripefs/"):
            return sink
        self.parts.append(path)
        if len(self.parts) == 1:
            close = sink.close

            def lost():
                close()
                raise HostFailed("the last word was lost", host=how["host"])

            sink.close = lost
        return sink


@pytest.mark.parametrize("synced", [True, False])
async def test_what_was_prepared_names_no_part_that_was_lost_after_all(store, tmp_path, synced):
    lost = Lost(store)
    async with writing(store, layout=Layout.STRIPED) as uploads:
        upload = await begin_with(uploads, DATA)
        if synced:
            await upload.sync()
            record = Record.from_bytes((tmp_path / record_name(b"file", upload.version).decode()).read_bytes())
            named = [part.path for segment in record.segments for part in segment.parts]
            assert set(named) <= set(lost.parts)  # those that waited for the host besides are begun anew too
            assert lost.parts[0] not in named
        await upload.publish(final=True)
        assert beside(tmp_path) == []
    assert load(store, b"/file") == DATA


@pytest.mark.parametrize("layout", [Layout.STRIPED, Layout.CONCAT])
async def test_the_record_stands_only_when_all_is_acknowledged(store, tmp_path, layout):
    acknowledge = threading.Event()
    short = DATA[: MIB // 2]  # few enough parts for a host to have room for the manifest besides
    create = store.create

    def slow(path, **how):
        sink = create(path, **how)
        if how.get("block_size") != MANIFEST_BLOCK_SIZE and len(how) > 1 and how["length"] >= 64 << 10:
            close = sink.close
            sink.close = lambda: (acknowledge.wait(DEADLINE), close())[1]
        return sink

    store.create = slow
    async with writing(store, layout=layout) as uploads:
        upload = await begin_with(uploads, short)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(upload.sync)
            if layout is Layout.STRIPED:
                await until(lambda: len(store.made) == 1)
            await trio.sleep(0.2)
            assert "record" not in beside(tmp_path)
            acknowledge.set()
        assert "record" in beside(tmp_path)
        await upload.publish(final=True)
    assert load(store, b"/file") == short
