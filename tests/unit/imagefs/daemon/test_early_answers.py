"""Announced images: who gets the answer of a store, and who asks it anew."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from imagefs.config import IMAGEFS
from imagefs.daemon import announcement
from imagefs.daemon.lookups import EarlyAnswers
from imagefs.errors import NoSuchImage
from stripefs.errors import ConfigError, ServiceDown
from stripefs.settings import StoreSettings

URL = "http://store/images"
STORE = StoreSettings(url=URL)


class Store:
    """Answers after a second by the tags that it has then."""

    def __init__(self) -> None:
        self.tags = {"t": "1"}
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


@contextlib.asynccontextmanager
async def running(store: Store) -> AsyncIterator[EarlyAnswers]:
    """With a store that was used before."""
    answers = EarlyAnswers(store.resolve, store.kept_open, store.documents)
    async with trio.open_nursery() as nursery:
        await nursery.start(answers.run)
        assert await answers.resolve("earlier", STORE, "t") == ("1", False)
        store.asked = 0
        yield answers
        nursery.cancel_scope.cancel()


async def announce(answers: EarlyAnswers, identifier: str, image: str = f"{URL}#t", *, plain: object = False) -> None:
    assert await answers.announce({"id": identifier, "image": image, "plain": plain}) == {}


async def test_an_attachment_takes_the_answer_to_its_announcement(autojump_clock: trio.abc.Clock) -> None:
    store = Store()
    async with running(store) as answers:
        begin = trio.current_time()
        await announce(answers, "a")
        await trio.sleep(0.75)
        assert await answers.resolve("a", STORE, "t") == ("1", False)
        assert trio.current_time() - begin == pytest.approx(1)
        assert store.asked == 1
        assert store.open == 1, "the attachment goes on with the same connection"
        await trio.sleep(5)
        assert store.open == 0
        await answers.resolve("a", STORE, "t")
        assert store.asked == 2, "once"


async def test_nobody_else_takes_it(autojump_clock: trio.abc.Clock) -> None:
    store = Store()
    async with running(store) as answers:
        await announce(answers, "a")
        await trio.sleep(1.5)
        store.tags["t"] = "2"
        assert await answers.resolve("b", STORE, "t") == ("2", False)
        assert await answers.resolve("a", STORE, "t") == ("1", False)


async def test_the_documents_of_an_announced_image_come_without_being_asked_for(
    autojump_clock: trio.abc.Clock,
) -> None:
    store = Store()
    async with running(store) as answers:
        await announce(answers, "a")
        await trio.sleep(2.5)
        assert store.fetched == [(STORE, "1")]
        assert (store.served, store.open) == (1, 1), "its devices stay open for the attachment"
        await trio.sleep(5)
        assert (store.served, store.open) == (0, 0)


async def test_documents_that_cannot_be_had_are_the_business_of_the_attachment(
    autojump_clock: trio.abc.Clock, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store()
    store.error = ServiceDown("away")
    async with running(store) as answers:
        await announce(answers, "a")
        await trio.sleep(0.5)
        assert await answers.resolve("a", STORE, "t") == ("1", False)
        await trio.sleep(5)
        assert store.open == 0
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


@pytest.mark.parametrize("other", [(STORE._replace(proxy="http://proxy"), "t"), (STORE, "u")], ids=["store", "tag"])
async def test_another_store_or_tag_is_asked_itself(
    autojump_clock: trio.abc.Clock, other: tuple[StoreSettings, str]
) -> None:
    store = Store()
    store.tags["u"] = "1"
    async with running(store) as answers:
        await announce(answers, "a")
        await answers.resolve("a", *other)
        assert store.asked == 2


async def test_an_answer_is_forgotten(autojump_clock: trio.abc.Clock) -> None:
    store = Store()
    async with running(store) as answers:
        await announce(answers, "a")
        await trio.sleep(10)
        store.tags["t"] = "2"
        assert await answers.resolve("a", STORE, "t") == ("2", False)


async def test_an_error_is_the_answer_too(autojump_clock: trio.abc.Clock) -> None:
    store = Store()
    async with running(store) as answers:
        await announce(answers, "a", f"{URL}#gone")
        with pytest.raises(NoSuchImage):
            await answers.resolve("a", STORE, "gone")
        assert store.asked == 1


async def test_a_store_that_is_not_known_is_not_asked(autojump_clock: trio.abc.Clock) -> None:
    store = Store()
    async with running(store) as answers:
        await announce(answers, "a", "http://other/images#t")
        with pytest.raises(ConfigError):
            await announce(answers, "a", "http://store/images#")
        await trio.sleep(5)
        assert store.asked == 0


async def test_a_store_that_is_reached_by_the_defaults_is_asked_though_it_is_not_known(
    autojump_clock: trio.abc.Clock,
) -> None:
    store, other = Store(), "http://other/images"
    async with running(store) as answers:
        await announce(answers, "a", f"{other}#t", plain=True)
        assert await answers.resolve("a", StoreSettings(url=other), "t") == ("1", False)
        assert store.asked == 1
        await announce(answers, "b", "http://third/images#t", plain="true")
        await trio.sleep(5)
        assert store.asked == 1


async def test_a_store_that_is_known_is_asked_as_it_was_before(autojump_clock: trio.abc.Clock) -> None:
    store, known = Store(), STORE._replace(proxy="http://proxy")
    async with running(store) as answers:
        await answers.resolve("before", known, "t")
        await announce(answers, "a", plain=True)
        await trio.sleep(2.5)
        assert store.fetched == [(known, "1")]


async def test_announcements_are_bounded(autojump_clock: trio.abc.Clock) -> None:
    store = Store()
    async with running(store) as answers:
        for number in range(1000):
            await announce(answers, str(number))
        await trio.sleep(10)
        assert store.asked == 64
        await announce(answers, "a")
        await trio.sleep(1)
        assert store.asked == 65


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
        made.bind(str(tmp_path / "imagefs.sock"))
        made.listen()
        made.setblocking(False)
        yield made


def heard(listener: socket.socket) -> dict[str, Any]:
    """The announcement that came, {} for none."""
    try:
        connection, _ = listener.accept()
    except BlockingIOError:
        return {}
    with connection:
        found: dict[str, Any] = json.loads(connection.recv(1 << 16))
        return found


def test_a_command_announces_its_image(listener: socket.socket, tmp_path: Path) -> None:
    environ = {"IMAGEFS_RUNTIME": str(tmp_path), "HOME": str(tmp_path)}
    announcement.announce(["--rw", f"{URL}#t", "--", "curl", "http://else#t"], environ)
    told = heard(listener)
    assert (told["op"], told["image"], told["plain"]) == ("announce", f"{URL}#t", True)
    assert announcement.take() == told["id"]
    assert announcement.take() == "", "for one attachment"


def test_the_options_of_a_store_are_all_known() -> None:
    """The module is loaded before the table of options can be."""
    assert {*announcement.STORE_OPTIONS} == {one.name for one in IMAGEFS.all if one.section == "store"} | {"config"}


@pytest.mark.parametrize(
    ("flags", "environ"),
    [
        (["--mirror=http://mirror"], {}),
        (["--host-timeout", "1s"], {}),
        (["--no-use-datanode-hostname"], {}),
        ([], {"IMAGEFS_HDFS_USER": "me"}),
        ([], {"IMAGEFS_CONFIG": "file"}),
        ([], {"XDG_CONFIG_HOME": "CONFIG"}),
    ],
    ids=repr,
)
def test_a_store_that_is_reached_in_a_way_of_its_own_is_announced_as_such(
    listener: socket.socket, tmp_path: Path, flags: list[str], environ: dict[str, str]
) -> None:
    (own,) = [file for file in IMAGEFS.files({"XDG_CONFIG_HOME": str(tmp_path)}) if str(tmp_path) in file]
    Path(own).parent.mkdir()
    Path(own).touch()
    given = {name: value.replace("CONFIG", str(tmp_path)) for name, value in environ.items()}
    announcement.announce([*flags, f"{URL}#t"], {"IMAGEFS_RUNTIME": str(tmp_path), "HOME": "/nowhere", **given})
    assert heard(listener)["plain"] is False
    announcement.take()


@pytest.mark.parametrize(
    "words",
    [[], ["/srv/images#t", "true"], ["--mirror=http://mirror"], ["--", f"{URL}#t"], [f'{URL}#"t'], [f"{URL}\\#t"],
     [f"{URL}#t\n"], [f"{URL}#ü"]],
    ids=repr,
)  # fmt: skip
def test_what_needs_no_time_or_is_no_plain_word_is_not_announced(
    listener: socket.socket, tmp_path: Path, words: list[str]
) -> None:
    announcement.announce(words, {"IMAGEFS_RUNTIME": str(tmp_path)})
    assert heard(listener) == {}
    assert announcement.take() == ""


def test_without_a_daemon_nothing_is_announced(tmp_path: Path) -> None:
    announcement.announce([f"{URL}#t"], {"IMAGEFS_RUNTIME": str(tmp_path)})
    announcement.announce([f"{URL}#t"], {"IMAGEFS_RUNTIME": str(tmp_path / ("x" * 200))})
    assert announcement.take() == ""


def test_a_daemon_that_takes_no_connections_is_not_waited_for(listener: socket.socket, tmp_path: Path) -> None:
    listener.listen(0)
    for _ in range(5):
        announcement.announce([f"{URL}#t"], {"IMAGEFS_RUNTIME": str(tmp_path)})
    assert heard(listener)["op"] == "announce"
    announcement.take()
