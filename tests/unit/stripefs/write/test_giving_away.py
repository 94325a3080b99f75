"""The store's answer to chown of a file that is still being written, tried on the writer's lock."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

import pytest

from stripefs.errors import PermissionDenied
from stripefs.store.base import Attributes
from stripefs.store.wrapper import Parser, WrappedStore
from tests.support.uploads import load, spread, writing


class Refusing(WrappedStore):
    NAME = "refusing"
    PARAMETERS: ClassVar[dict[str, Parser]] = {}

    def set_attributes(self, path: bytes, attributes: Attributes) -> None:
        if attributes.owner == "somebody":
            raise PermissionDenied(f"{path!r} stays ours")
        super().set_attributes(path, attributes)


async def test_it_is_tried_and_hinders_nothing(tmp_path: Path) -> None:
    store = Refusing(spread(tmp_path))
    ours = Attributes(owner=str(os.getuid()), group=str(os.getgid()))
    async with writing(store) as uploads:
        upload = await uploads.begin(b"/file", replacing=None)
        await upload.try_owners(ours)
        with pytest.raises(PermissionDenied, match="stays ours"):
            await upload.try_owners(Attributes(owner="somebody"))
        await uploads.heartbeat.beat()
        await upload.write(0, b"bytes")
        lock = tmp_path / ".file.stripefs-lock"
        lock.rename(tmp_path / "aside")
        await upload.try_owners(ours)  # a lock that somebody else holds up for a moment tells nothing
        (tmp_path / "aside").rename(lock)
        await upload.publish(final=True)
    assert load(store, b"/file") == b"bytes"
