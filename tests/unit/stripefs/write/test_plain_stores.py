"""Stores that know little: only `put`, no locks, no joining. The next best is done, and said; the rest is refused."""

import dataclasses

import pytest

from stripefs.errors import HostFailed, NotFound, QuotaExceeded, Unsupported
from stripefs.store.local import LocalStore
from stripefs.testing.faults import FaultyStore
from stripefs.write import Layout
from tests.support.uploads import LAYOUTS, MIB, begin_with, content, hidden, load, save, writing


def less(store, **capabilities):
    store.capabilities = dataclasses.replace(store.capabilities, **capabilities)
    return store


def only_put(tmp_path):
    return less(
        LocalStore(str(tmp_path).encode()),
        writes=False,
        replace=False,
        concat=False,
        attributes=False,
        put_if_absent=False,
    )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [0, 1000, 3 * MIB + 5])
async def test_only_put(tmp_path, layout, size, caplog):
    store = only_put(tmp_path)
    async with writing(store, layout=layout) as uploads:
        upload = await begin_with(uploads, content(size))
        with pytest.raises(NotFound):
            store.stat(b"/file")
        with pytest.raises(Unsupported, match="closed"):
            await upload.sync()
        await upload.publish(final=False)
        assert load(store, b"/file") == content(size)
        await upload.write(size, b"more")
        await upload.publish(final=True)
    assert load(store, b"/file") == content(size) + b"more"
    assert not hidden(tmp_path)
    assert "without locks" in caplog.text


@pytest.mark.parametrize("kind", ["quota", "host", ""], ids=["quota", "host", "given up"])
async def test_only_put_and_not_published(tmp_path, kind):
    (tmp_path / "file").write_bytes(b"old")
    faulty = FaultyStore(only_put(tmp_path))
    async with writing(faulty) as uploads:
        upload = await uploads.begin(b"/file", replacing=only_put(tmp_path).stat(b"/file").identity)
        if kind:
            faulty.fail_at(1, "put", kind=kind)
        await upload.write(0, content(3 * MIB))
        if kind:
            with pytest.raises((QuotaExceeded, HostFailed)):
                await upload.publish(final=True)
        await upload.abandon()
    assert (tmp_path / "file").read_bytes() == b"old"


async def test_a_store_that_is_only_read(tmp_path):
    store = less(LocalStore(str(tmp_path).encode()), put=False)
    async with writing(store) as uploads:
        with pytest.raises(Unsupported):
            await uploads.begin(b"/file", replacing=None)


async def test_the_next_best_layout_is_said_once(tmp_path, caplog):
    store = less(LocalStore(str(tmp_path).encode()), concat=False)
    async with writing(store, layout=Layout.CONCAT) as uploads:
        for number in range(3):
            await save(uploads, b"/file%d" % number, content(MIB))
    assert caplog.text.count("cannot join files") == 1


class Refusing(LocalStore):
    """Says that it can join files, and refuses to after the first `allowed` calls."""

    allowed = 0

    def concat(self, target, sources):
        if not self.allowed:
            raise Unsupported("the server wants whole blocks")
        self.allowed -= 1
        super().concat(target, sources)


async def test_joining_is_refused_when_it_comes_to_it(tmp_path, caplog):
    store = Refusing(str(tmp_path).encode())
    data = content(50 * MIB)
    async with writing(store, layout=Layout.CONCAT) as uploads:
        upload = await begin_with(uploads, data[: 20 * MIB])
        await upload.publish(final=False)
        assert load(store, b"/file") == data[: 20 * MIB]
        store.allowed = 1  # the second generation's parts are joined, but not behind the first
        await upload.write(20 * MIB, data[20 * MIB :])
        await upload.publish(final=True)
    assert load(store, b"/file") == data
    assert "copied" in caplog.text
    assert not hidden(tmp_path)
