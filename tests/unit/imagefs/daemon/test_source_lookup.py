"""The image built from a manifest: asked once a minute, never waited for beyond the time limit."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
import trio
from trio.testing import MockClock

from imagefs.daemon.lookups import AWAY, REMEMBERED, SourceLookup
from imagefs.errors import NoSuchImage
from stripefs.errors import ConfigError, ServiceDown
from stripefs.settings import StoreSettings

SOURCE = "sha256:" + "1" * 64
IMAGE = "a" * 64
NONE = {"image": "", "store": -1}


class Stores:
    """The answers of each store, and after how many seconds they come."""

    def __init__(self) -> None:
        self.images: dict[str, str] = {}
        self.delays: dict[str, float] = {}
        self.away: set[str] = set()
        self.asked: list[str] = []
        self.open: list[str] = []

    async def ask(self, store: StoreSettings, source: str) -> str:
        assert (store.url in self.open, source) == (True, SOURCE)
        self.asked.append(store.url)
        await trio.sleep(self.delays.get(store.url, 0.0))
        if store.url in self.away:
            raise ServiceDown("no answer")
        if store.url not in self.images:
            raise NoSuchImage("none")
        return self.images[store.url]

    @contextlib.contextmanager
    def kept_open(self, store: StoreSettings) -> Iterator[None]:
        self.open.append(store.url)
        try:
            yield
        finally:
            self.open.remove(store.url)


Find = Callable[..., Awaitable[object]]


@pytest.fixture
def stores() -> Stores:
    return Stores()


@pytest.fixture
async def find(stores: Stores) -> AsyncIterator[Find]:
    lookup = SourceLookup(stores.ask, stores.kept_open)

    async def find(*urls: str, timeout: float = 5.0, source: str = SOURCE) -> object:
        began = trio.current_time()
        found = await lookup.find({"stores": [{"url": url} for url in urls], "source": source, "timeout": timeout})
        assert trio.current_time() <= began + timeout
        return found

    async with trio.open_nursery() as nursery:
        await nursery.start(lookup.run)
        yield find
        nursery.cancel_scope.cancel()
    assert stores.open == []


async def test_answers_hold_for_a_while_and_so_do_connections(
    stores: Stores, find: Find, autojump_clock: MockClock
) -> None:
    stores.images["/b"] = IMAGE
    for _ in range(3):
        assert await find("/a", "/b") == {"image": IMAGE, "store": 1}
        assert await find("/a") == NONE
    assert sorted(stores.asked) == ["/a", "/b"]
    stores.images["/a"] = IMAGE
    await trio.sleep(REMEMBERED - 1)
    assert sorted(stores.open) == ["/a", "/b"]
    assert await find("/a") == NONE
    await trio.sleep(2)
    assert stores.open == []
    assert await find("/a", "/b") == {"image": IMAGE, "store": 0}


async def test_nobody_waits_longer_than_asked_for_and_late_answers_count(
    stores: Stores, find: Find, autojump_clock: MockClock
) -> None:
    stores.images |= {"/slow": IMAGE, "/quick": "b" * 64}
    stores.delays["/slow"] = 20.0
    assert await find("/slow", "/quick", timeout=2.0) == {"image": "b" * 64, "store": 1}
    assert await find("/slow", timeout=0.0) == NONE
    await trio.sleep(20)
    assert await find("/slow", "/quick", timeout=0.1) == {"image": IMAGE, "store": 0}
    assert stores.asked.count("/slow") == 1


async def test_a_store_that_is_away_is_asked_again_soon(stores: Stores, find: Find, autojump_clock: MockClock) -> None:
    stores.images["/a"] = IMAGE
    stores.away.add("/a")
    assert await find("/a") == await find("/a") == NONE
    assert stores.asked == ["/a"]
    stores.away.clear()
    await trio.sleep(AWAY + 1)
    assert await find("/a") == {"image": IMAGE, "store": 0}


async def test_what_is_no_digest_is_refused(stores: Stores, find: Find, autojump_clock: MockClock) -> None:
    for wrong in ("", "a" * 64, "sha256:" + "A" * 64, "sha512:" + "1" * 64):
        with pytest.raises(ConfigError, match="no digest"):
            await find("/a", source=wrong)
    assert stores.asked == []
