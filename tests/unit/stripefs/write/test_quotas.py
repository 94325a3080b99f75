"""Directories with a quota of their own, which parts in the pool would escape."""

from __future__ import annotations

from pathlib import Path

import pytest

from stripefs.errors import PermissionDenied
from stripefs.store.local import LocalStore
from stripefs.write import Layout
from tests.support.uploads import MIB, content, load, save, writing


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
