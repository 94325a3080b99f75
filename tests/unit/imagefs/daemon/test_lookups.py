"""Lookups of names in stores: who gets the answer to an announcement, and how long answers about manifests hold."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
import trio
from trio.testing import MockClock

from imagefs.daemon.lookups import AWAY, REMEMBERED, EarlyAnswers, SourceLookup
from imagefs.daemon.requests import AnnounceRequest, FindAnswer, FindRequest
from imagefs.errors import NoSuchImage
from stripefs.errors import ConfigError, ServiceDown
from stripefs.settings import StoreSettings

# -- announced images ------------------------------------------------------------------------------------------------

URL = "http://store/images"
STORE = StoreSettings(url=URL)


class Store:
    """Answers after a second by the tags that it has then."""

    def __init__(self) -> None:
        self.tags = {"t": "1", "u": "1"}
        self.asked = 0
        self.open = 0
        self.fetched: list[tuple[StoreSettings, str]] = []
        self.served = 0
        self.error: Exception | None = None

    async def resolve(self, store: StoreSettings, name: str) -> tuple[str, bool]:
        self.asked += 1
        await trio.sleep(1)
        if name not in self.tags:
            raise NoSuchImage(f"no {name}")
        return self.tags[name], False

    @contextlib.contextmanager
    def kept_open(self, _store: StoreSettings) -> Iterator[None]:
        self.open += 1
        yield
        self.open -= 1

    @contextlib.asynccontextmanager
    async def documents(self, store: StoreSettings, digest: str) -> AsyncIterator[None]:
        await trio.sleep(1)
        if self.error is not None:
            raise ExceptionGroup("one of several", [self.error])
        self.fetched.append((store, digest))
        self.served += 1
        yield
        self.served -= 1


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
async def answers(store: Store) -> AsyncIterator[EarlyAnswers]:
    """With a store that was used before."""
    answers = EarlyAnswers(store.resolve, store.kept_open, store.documents)
    async with trio.open_nursery() as nursery:
        await nursery.start(answers.run)
        assert await answers.resolve("earlier", STORE, "t") == ("1", False)
        store.asked = 0
        yield answers
        nursery.cancel_scope.cancel()


async def announce(answers: EarlyAnswers, identifier: str, image: str = f"{URL}#t", *, plain: bool = False) -> None:
    await answers.announce(AnnounceRequest(identifier, image, plain))


async def test_an_attachment_takes_the_answer_to_its_announcement_once(
    store: Store, answers: EarlyAnswers, clock: MockClock
) -> None:
    begin = trio.current_time()
    await announce(answers, "a")
    await trio.sleep(0.75)
    assert await answers.resolve("a", STORE, "t") == ("1", False)
    assert trio.current_time() - begin == pytest.approx(1)
    assert (store.asked, store.open) == (1, 1), "the attachment goes on with the same connection"
    await trio.sleep(5)
    assert store.open == 0
    await answers.resolve("a", STORE, "t")
    assert store.asked == 2
    await announce(answers, "b", f"{URL}#gone")
    with pytest.raises(NoSuchImage):
        await answers.resolve("b", STORE, "gone")
    assert store.asked == 3


@pytest.mark.parametrize(
    ("identifier", "asked", "after", "digest"),
    [
        pytest.param("a", (STORE, "t"), 1.5, "1", id="its own"),
        pytest.param("b", (STORE, "t"), 1.5, "2", id="of another attachment"),
        pytest.param("a", (STORE, "u"), 1.5, "2", id="about another tag"),
        pytest.param("a", (STORE._replace(proxy="http://proxy"), "t"), 1.5, "2", id="of another store"),
        pytest.param("a", (STORE, "t"), 10, "2", id="forgotten"),
    ],
)
async def test_the_answer_is_for_its_attachment_alone_and_for_a_moment(
    store: Store,
    answers: EarlyAnswers,
    clock: MockClock,
    identifier: str,
    asked: tuple[StoreSettings, str],
    after: float,
    digest: str,
) -> None:
    await announce(answers, "a")
    await trio.sleep(after)
    store.tags = {"t": "2", "u": "2"}
    assert await answers.resolve(identifier, *asked) == (digest, False)
    assert store.asked == int(digest)


@pytest.mark.parametrize("known", [STORE, STORE._replace(proxy="http://proxy")])
async def test_documents_come_without_being_asked_for_from_the_store_as_it_was_used_last(
    store: Store, answers: EarlyAnswers, clock: MockClock, known: StoreSettings
) -> None:
    await answers.resolve("before", known, "t")
    await announce(answers, "a", plain=True)
    await trio.sleep(2.5)
    assert store.fetched == [(known, "1")]
    assert (store.served, store.open) == (1, 1), "its devices stay open for the attachment"
    await trio.sleep(5)
    assert (store.served, store.open) == (0, 0)


async def test_documents_that_cannot_be_had_are_the_business_of_the_attachment(
    store: Store, answers: EarlyAnswers, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    store.error = ServiceDown("away")
    await announce(answers, "a")
    await trio.sleep(0.5)
    assert await answers.resolve("a", STORE, "t") == ("1", False)
    await trio.sleep(5)
    assert store.open == 0
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


@pytest.mark.parametrize(("plain", "asked"), [(False, 0), (True, 1)])
async def test_a_store_that_is_not_known_is_asked_if_it_is_reached_by_the_defaults(
    store: Store, answers: EarlyAnswers, clock: MockClock, plain: bool, asked: int
) -> None:
    await announce(answers, "a", "http://other/images#t", plain=plain)
    await trio.sleep(0.5)
    assert store.asked == asked
    assert await answers.resolve("a", StoreSettings(url="http://other/images"), "t") == ("1", False)
    assert store.asked == 1


async def test_announcements_are_bounded(store: Store, answers: EarlyAnswers, clock: MockClock) -> None:
    for number in range(1000):
        await announce(answers, str(number))
    await trio.sleep(10)
    assert store.asked == 64
    await announce(answers, "a")
    await trio.sleep(1)
    assert store.asked == 65


# -- images that were built from a manifest --------------------------------------------------------------------------

SOURCE = "sha256:" + "1" * 64
IMAGE = "a" * 64
NONE = FindAnswer("", -1)


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
        found = await lookup.find(FindRequest(tuple(map(StoreSettings, urls)), source, timeout))
        assert trio.current_time() <= began + timeout
        return found

    async with trio.open_nursery() as nursery:
        await nursery.start(lookup.run)
        yield find
        nursery.cancel_scope.cancel()
    assert stores.open == []


async def test_answers_hold_for_a_while_and_so_do_connections(stores: Stores, find: Find, clock: MockClock) -> None:
    stores.images["/b"] = IMAGE
    for _ in range(3):
        assert await find("/a", "/b") == FindAnswer(IMAGE, 1)
        assert await find("/a") == NONE
    assert sorted(stores.asked) == ["/a", "/b"]
    stores.images["/a"] = IMAGE
    await trio.sleep(REMEMBERED - 1)
    assert sorted(stores.open) == ["/a", "/b"]
    assert await find("/a") == NONE
    await trio.sleep(2)
    assert stores.open == []
    assert await find("/a", "/b") == FindAnswer(IMAGE, 0)


async def test_nobody_waits_longer_than_asked_for_and_late_answers_count(
    stores: Stores, find: Find, clock: MockClock
) -> None:
    stores.images |= {"/slow": IMAGE, "/quick": "b" * 64}
    stores.delays["/slow"] = 20.0
    assert await find("/slow", "/quick", timeout=2.0) == FindAnswer("b" * 64, 1)
    assert await find("/slow", timeout=0.0) == NONE
    await trio.sleep(20)
    assert await find("/slow", "/quick", timeout=0.1) == FindAnswer(IMAGE, 0)
    assert stores.asked.count("/slow") == 1


async def test_a_store_that_is_away_is_asked_again_soon(stores: Stores, find: Find, clock: MockClock) -> None:
    stores.images["/a"] = IMAGE
    stores.away.add("/a")
    assert await find("/a") == await find("/a") == NONE
    assert stores.asked == ["/a"]
    stores.away.clear()
    await trio.sleep(AWAY + 1)
    assert await find("/a") == FindAnswer(IMAGE, 0)


async def test_what_is_no_digest_is_refused(stores: Stores, find: Find, clock: MockClock) -> None:
    for wrong in ("", "a" * 64, "sha256:" + "A" * 64, "sha512:" + "1" * 64):
        with pytest.raises(ConfigError, match="no digest"):
            await find("/a", source=wrong)
    assert stores.asked == []
