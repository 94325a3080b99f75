"""Layouts of directories while the store fails, and directories with a quota, which parts in the pool would escape."""

from __future__ import annotations

from pathlib import Path

import pytest

from stripefs.errors import PermissionDenied, StoreError
from stripefs.executor import Executor
from stripefs.store.local import LocalStore
from stripefs.write import Layout
from stripefs.write.directory_layout import DirectoryLayouts
from tests.support.uploads import MIB, content, load, save, writing


class Failing(LocalStore):
    """Gives no content while `error` is set."""

    error: Exception | None = None

    def get(self, path: bytes) -> bytes:
        if self.error is not None:
            raise self.error
        return bytes(super().get(path))


@pytest.fixture
def store(tmp_path: Path) -> Failing:
    (tmp_path / "d").mkdir()
    return Failing(bytes(tmp_path))


@pytest.mark.parametrize("damage", [None, b"", b"strip", b"stripfd\n", b"\xff\n"])
async def test_a_layout_that_cannot_be_read_is_the_last_known_and_else_none(
    store: Failing, tmp_path: Path, damage: bytes | None
) -> None:
    """None: the store does not answer. Else it is damaged."""

    def spoil() -> None:
        if damage is None:
            store.error = PermissionDenied("it names no layout", hint="setfattr")
        else:
            (tmp_path / "d/..stripefs-layout").write_bytes(damage)

    layouts = DirectoryLayouts(store, Executor(5))
    spoil()
    with pytest.raises(StoreError, match="names no layout") as raised:
        await layouts.for_file(b"/d/f")
    assert "setfattr" in raised.value.hint
    store.error = None
    await layouts.set(b"/d", b"striped")
    assert await layouts.for_file(b"/d/f") == "striped"
    spoil()
    layouts.forget()
    assert await layouts.for_file(b"/d/f") == "striped"
    store.error = None
    await layouts.remove(b"/d")
    assert await layouts.for_file(b"/d/f") == ""


class Limited(LocalStore):
    asked = 0

    def has_quota(self, path: bytes) -> bool:
        self.asked += 1
        if path == b"/closed":
            raise PermissionDenied("nobody may sum it up")
        return path == b"/limited"


async def test_striped_gives_way_below_a_quota(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for folder in ("limited/deep", "closed", "free"):
        (tmp_path / folder).mkdir(parents=True)
    store = Limited(bytes(tmp_path))
    async with writing(store, layout=Layout.STRIPED) as uploads:
        for name in ("limited/deep/a", "limited/b", "closed/c", "free/d"):
            await save(uploads, b"/" + name.encode(), content(MIB))
        asked = store.asked
        await save(uploads, b"/limited/deep/e", content(MIB))
        assert store.asked == asked  # known for a while
        assert uploads.status()["quota_directories"] == ["/limited"]
    for name in ("limited/deep/a", "limited/deep/e", "limited/b", "closed/c", "free/d"):
        assert load(store, b"/" + name.encode()) == content(MIB)
        assert ((tmp_path / name).stat().st_size == MIB) == name.startswith("limited")
    assert caplog.text.count("has a quota") == 1
    store.close()
