"""Layouts of directories while the store fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from stripefs.errors import PermissionDenied, StoreError
from stripefs.executor import Executor
from stripefs.store.local import LocalStore
from stripefs.write.directory_layout import DirectoryLayouts


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


async def test_a_layout_that_cannot_be_read_is_none_of_its_own(store: Failing) -> None:
    store.error = PermissionDenied("no")
    with pytest.raises(PermissionDenied):
        await DirectoryLayouts(store, Executor(5)).for_file(b"/d/f")


async def test_the_last_known_layout_holds_while_the_store_fails(store: Failing) -> None:
    layouts = DirectoryLayouts(store, Executor(5))
    await layouts.set(b"/d", b"striped")
    assert await layouts.for_file(b"/d/f") == "striped"
    store.error = PermissionDenied("no")
    layouts.forget()
    assert await layouts.for_file(b"/d/f") == "striped"
    store.error = None
    await layouts.remove(b"/d")
    assert await layouts.for_file(b"/d/f") == ""


@pytest.mark.parametrize("content", [b"", b"strip", b"stripfd\n", b"\xff\n"])
async def test_a_damaged_layout_is_none_of_its_own(store: Failing, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "d/..stripefs-layout").write_bytes(content)
    layouts = DirectoryLayouts(store, Executor(5))
    with pytest.raises(StoreError, match="names no layout") as raised:
        await layouts.for_file(b"/d/f")
    assert "setfattr" in raised.value.hint
    await layouts.set(b"/d", b"striped")
    assert await layouts.for_file(b"/d/f") == "striped"
    (tmp_path / "d/..stripefs-layout").write_bytes(content)
    layouts.forget()
    assert await layouts.for_file(b"/d/f") == "striped"
    await layouts.remove(b"/d")
    assert await layouts.for_file(b"/d/f") == ""
