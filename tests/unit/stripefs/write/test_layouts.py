"""Reads answer the written bytes, in every layout, whatever the sizes; and nothing hidden stays."""

import pytest

from stripefs.store.striped import StripedStore
from stripefs.write import Layout
from tests.support.uploads import KIB, LAYOUTS, MIB, content, hidden, load, save, spread, writing

SIZES = [0, 1, 128 * KIB - 1, 128 * KIB, 3 * MIB + 17, 20 * MIB + 4321]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", SIZES)
async def test_bytes_come_back(tmp_path, layout, size):
    store = spread(tmp_path)
    data = content(size)
    async with writing(store, layout=layout) as uploads:
        await save(uploads, b"/file", data)
        assert not uploads.status()["files"]
        assert uploads.status()["memory_bytes"] == 0
    assert load(store, b"/file") == data
    assert StripedStore(store).stat(b"/file").length == size
    striped = {name for name in hidden(tmp_path) if name.startswith(".stripefs/")}
    assert hidden(tmp_path) == striped, "nothing hidden stays beside the file"
    assert bool(striped) == (layout is Layout.STRIPED and size >= 128 * KIB)
