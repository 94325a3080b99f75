"""Parts on a host that hangs hold up no listing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from stripefs.format.reserved_names import POOL
from stripefs.store.base import Handle, Identity
from stripefs.store.local import LocalStore
from stripefs.store.striped import AT_ONCE, StripedStore
from stripefs.write import Layout
from tests.support.uploads import MIB, content, save, spread, writing
from tests.support.waiting import eventually


class Frozen(LocalStore):
    """Opens of parts wait until `opened`."""

    def __init__(self, root: Path) -> None:
        super().__init__(bytes(root))
        self.opened = threading.Event()
        self.begun: list[bytes] = []

    def open(self, path: bytes, expect: Identity | None = None) -> Handle:
        if path.startswith(POOL + b"/"):
            self.begun.append(path)
            assert self.opened.wait(60)
        return super().open(path, expect)


@pytest.fixture
async def frozen(tmp_path: Path) -> Frozen:
    async with writing(spread(tmp_path), layout=Layout.STRIPED) as drafts:
        await save(drafts, b"/file", content(3 * MIB))
    return Frozen(tmp_path)


@pytest.fixture
def waiting(frozen: Frozen) -> Iterator[list[threading.Thread]]:
    threads: list[threading.Thread] = []
    yield threads
    frozen.opened.set()
    for thread in threads:
        thread.join()


async def test_a_listing_waits_for_no_part(frozen: Frozen, waiting: list[threading.Thread]) -> None:
    view = StripedStore(frozen)
    handle = view.open(b"/file")
    while len(frozen.begun) < AT_ONCE:  # more than there are threads for parts
        thread = threading.Thread(target=handle.locate, args=(0, handle.status.length))
        before = len(frozen.begun)
        waiting.append(thread)
        thread.start()
        eventually(lambda: len(frozen.begun) > before or len(frozen.begun) >= AT_ONCE, "the next opens")  # noqa: B023
    fresh = [status.name for page in view.scandir(b"/") for status in page]
    assert b"file" in fresh
    frozen.opened.set()
    for thread in waiting:
        thread.join()
    handle.close()
    view.close()
