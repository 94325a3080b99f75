"""A program that calls fsync again and again: what that costs grows with the file, not with its square."""

import dataclasses
import os

import pytest

from stripefs.errors import Unsupported
from stripefs.format.reserved_names import parse_reserved
from stripefs.gc.store_reads import find_records
from stripefs.testing.counting import CountingStore
from stripefs.write import Layout
from stripefs.write.store_ops import SOURCES_AT_ONCE
from tests.support.uploads import KIB, MIB, begin_with, beside, content, hidden, load, spread, writing

TIMES = 2 * SOURCES_AT_ONCE + 9
STEP = 32 * KIB
SMALL = 128 * KIB
ENTRY = 128
"""Bytes of a part in a record, at most."""

JOINED = [Layout.CONCAT, Layout.PLAIN]


@pytest.fixture
def store(tmp_path):
    return CountingStore(spread(tmp_path))


def written(store):
    return sum(store.counts.written.values())


def newest(root):
    """Bytes of the record that was written last."""
    number = {path: parse_reserved(os.fsencode(path.name)).number for path in root.rglob("*-record*")}
    return max(number, key=number.__getitem__).stat().st_size


def durable(store):
    [found] = find_records(store, b"/file")
    return found


@pytest.mark.parametrize("layout", [*JOINED, Layout.STRIPED])
async def test_each_costs_what_was_written_since(store, tmp_path, layout):
    data = content(TIMES * STEP)
    longest = of_records = 0
    async with writing(store, layout=layout, small=SMALL) as uploads:
        upload = await uploads.begin(b"/file", replacing=None)
        for start in range(0, len(data), STEP):
            await upload.write(start, data[start : start + STEP])
            await upload.sync()
            longest = max(longest, newest(tmp_path))
            of_records += newest(tmp_path)
            if start // STEP % 30 == 0:
                found = durable(store.inner)
                assert found.record.length == start + STEP
                assert len(found.paths) <= TIMES.bit_length()
        assert await upload.read(5, len(data)) == data[5:]
        await upload.publish(final=True)
    assert load(store, b"/file") == data
    assert not beside(tmp_path)
    # The bytes, the beginnings of a file that may stay small, and documents: some of those were prepared in vain.
    parts = SOURCES_AT_ONCE + TIMES // SOURCES_AT_ONCE if layout in JOINED else TIMES
    assert longest <= (parts + 4) * ENTRY
    tables = TIMES * ENTRY
    assert of_records <= TIMES * (4 * ENTRY + (TIMES.bit_length() * ENTRY if layout is Layout.STRIPED else longest))
    assert written(store) <= len(data) + sum(range(0, SMALL, STEP)) + tables + 3 * of_records


async def test_plain_files_of_a_store_that_cannot_join_are_copied_once(store, tmp_path):
    store.capabilities = dataclasses.replace(store.capabilities, concat=False)
    data = content(40 * STEP)
    async with writing(store, layout=Layout.PLAIN, small=SMALL) as uploads:
        upload = await uploads.begin(b"/file", replacing=None)
        for start in range(0, len(data), STEP):
            await upload.write(start, data[start : start + STEP])
            await upload.sync()
        before = written(store)
        assert before < 2 * len(data)
        await upload.publish(final=False)
        assert written(store) == before + len(data)
        assert load(store, b"/file") == data
        await upload.write(len(data), b"behind")
        await upload.publish(final=True)
    assert load(store, b"/file") == data + b"behind"
    assert not hidden(tmp_path)


@pytest.mark.parametrize("layout", JOINED)
async def test_a_store_that_turns_out_not_to_join(store, tmp_path, layout):
    def refuse(target, sources):
        raise Unsupported("not in an encryption zone")

    store.concat = refuse
    data = content(TIMES * STEP // 2)
    async with writing(store, layout=layout, small=SMALL) as uploads:
        upload = await uploads.begin(b"/file", replacing=None)
        for start in range(0, len(data), STEP):
            await upload.write(start, data[start : start + STEP])
            await upload.sync()
        found = durable(store.inner)
        assert len(found.record.segments) > SOURCES_AT_ONCE
        assert 1 < len(found.paths) <= TIMES.bit_length()
        await upload.publish(final=True)
    assert load(store, b"/file") == data
    assert not hidden(tmp_path)


@pytest.mark.parametrize("layout", [*JOINED, Layout.STRIPED])
@pytest.mark.parametrize("first", ["moved", "published"])
async def test_moved_between_two_of_them_or_behind_a_version(store, tmp_path, layout, first):
    (tmp_path / "folder").mkdir()
    data = content(MIB + SOURCES_AT_ONCE * 2 * STEP)
    path = b"/file"
    async with writing(store, layout=layout, small=SMALL) as uploads:
        upload = await begin_with(uploads, data[:MIB])
        if first == "published":
            await upload.publish(final=False)
        for start in range(MIB, len(data), STEP):
            if first == "moved" and start == MIB + 20 * STEP:
                path = b"/folder/new"
                async with upload.moving(path):
                    pass
            await upload.write(start, data[start : start + STEP])
            await upload.sync()
        if first == "published":
            assert load(store, path) == data[:MIB]
        assert await upload.read(0, len(data)) == data
        await upload.publish(final=True)
    assert load(store, path) == data
    assert not beside(tmp_path)
