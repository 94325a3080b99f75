"""Staged files poured into real drafts: what is published is what was staged, in every layout and every time."""

from __future__ import annotations

from pathlib import Path

import pytest

from stripefs.write import Layout, NotSequential
from stripefs.write.staging import Staging
from tests.support.uploads import KIB, LAYOUTS, MIB, beside, content, load, save, spread, writing


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_writer_that_seeks_back_in_mid_write(tmp_path: Path, layout: Layout) -> None:
    store, data = spread(tmp_path), bytearray(content(2 * MIB))
    staging = Staging(str(tmp_path.parent), 16 * MIB, "/mnt")
    async with writing(store, layout=layout, memory=4 * MIB) as uploads:
        await save(uploads, b"/f", b"old")
        upload = await uploads.begin(b"/f", replacing=store.stat(b"/f").identity)
        await upload.write(0, bytes(data))
        with pytest.raises(NotSequential):
            await upload.write(5, b"patched")
        staged = await staging.new(b"f")
        await staged.fill(upload.read, upload.length)
        await staged.write(5, b"patched")
        data[5:12] = b"patched"
        await staged.sync(upload)
        assert load(store, b"/f") == b"old"
        await staged.publish(upload, False)
        assert load(store, b"/f") == data
        await staged.truncate(200 * KIB)
        await staged.write(300 * KIB, b"end")
        data[200 * KIB :] = bytes(100 * KIB) + b"end"
        await staged.publish(upload, True)
        assert load(store, b"/f") == data
        await staged.close()
    staging.close()
    assert not beside(tmp_path)
