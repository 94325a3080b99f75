"""Connections and write sessions that nobody uses are closed, by a virtual clock, and opened for the next call."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from stripefs.api.filesystem import resolve
from stripefs.api.source import IDLE, LOOK_EVERY, Source, in_use
from stripefs.api.sources import ServiceConnection, SourceAddress, Sources
from stripefs.store.striped import StripedStore
from stripefs.write_session import WriteSession


class World:
    """Sources as the engine has them, of a service that is all local files."""

    def __init__(self, sources: Sources, where: SourceAddress, clock: MockClock) -> None:
        self.sources = sources
        self.where = where
        self.clock = clock
        self.closed: list[bytes] = []
        self.sessions = 0

    @property
    def service(self) -> ServiceConnection:
        (service,) = self.sources._services.values()
        return service

    @property
    def roots(self) -> set[bytes]:
        return {root for root, _ in self.service._sources}

    async def source(self, root: Path) -> Source:
        return await self.sources.view(self.where._replace(root=os.fsencode(root)))

    async def session(self, source: Source) -> WriteSession:
        return await source.session(self.where.settings)

    async def pass_idle(self) -> None:
        """Let the time pass in which nothing is used, and the looks that come in it, then one more."""
        for _ in range(int(IDLE / LOOK_EVERY) + 2):
            self.clock.jump(LOOK_EVERY)
            await self.service.close_idle()


@pytest.fixture
async def made(monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock) -> AsyncIterator[World]:
    async with trio.open_nursery() as nursery:
        sources = Sources(nursery)
        made = World(sources, SourceAddress(resolve("/", {"grace": 0}), None), mock_clock)
        close, run = StripedStore.close, WriteSession.run

        def closing(store: StripedStore) -> None:
            made.closed.append(os.fsencode(store.url))
            close(store)

        async def running(
            session: WriteSession, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
        ) -> None:
            made.sessions += 1
            try:
                await run(session, task_status=task_status)
            finally:
                made.sessions -= 1

        monkeypatch.setattr(StripedStore, "close", closing)
        monkeypatch.setattr(WriteSession, "run", running)
        try:
            yield made
        finally:
            nursery.cancel_scope.cancel()
            sources.close()


async def test_an_unused_source_is_closed_and_opened_again(made: World, place: Path, mock_clock: MockClock) -> None:
    for rounds in range(3):
        with in_use():
            first = await made.source(place)
            session = await made.session(first)
            assert session is await made.session(await made.source(place))
            for _ in range(2):  # the call keeps what it uses however long it takes
                await made.pass_idle()
        assert (made.roots, made.sessions, len(made.closed)) == ({os.fsencode(place)}, 1, 2 * rounds)
        reader = made.service._reader
        await made.pass_idle()  # ends the session
        await trio.testing.wait_all_tasks_blocked()
        assert made.sessions == 0
        await made.pass_idle()  # and then the source
        assert (made.roots, made.service._reader) == (set(), None)
        with in_use():
            second = await made.source(place)
            assert second is not first
            assert made.service._reader is not reader
            assert (await second.stat(b"/")).name == b""
        await made.pass_idle()
    assert made.closed == [os.fsencode(place)] * 2 * 3  # two sources in each round


async def test_an_open_file_keeps_its_source(made: World, place: Path, mock_clock: MockClock) -> None:
    (place / "file").write_bytes(b"bytes")
    with in_use():
        opened = await (await made.source(place)).open(b"/file")
    await made.pass_idle()
    assert (made.roots, made.closed) == ({os.fsencode(place)}, [])
    await opened.close()
    await made.pass_idle()
    assert (made.roots, made.closed) == (set(), [os.fsencode(place)])


async def test_a_file_that_is_written_keeps_its_session(made: World, place: Path, mock_clock: MockClock) -> None:
    with in_use():
        session = await made.session(await made.source(place))
        draft = await session.uploads.begin(b"/file", replacing=None)
    await made.pass_idle()
    await made.pass_idle()
    assert (made.sessions, made.closed) == (1, [])
    await draft.abandon()
    await made.pass_idle()
    await made.pass_idle()
    await trio.testing.wait_all_tasks_blocked()
    assert (made.sessions, made.closed) == (0, [os.fsencode(place)])


async def test_a_directory_that_was_moved_is_closed_too(made: World, place: Path, mock_clock: MockClock) -> None:
    with in_use():
        await made.source(place)
        made.sources.forget(made.where, os.fsencode(place))
        await made.pass_idle()
        assert (made.roots, made.closed) == (set(), [])
    await made.pass_idle()
    assert made.closed == [os.fsencode(place)]


async def test_it_looks_by_itself(made: World, place: Path, mock_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        with in_use():
            await made.source(place)
        nursery.start_soon(made.sources.run)
        for _ in range(int(IDLE / LOOK_EVERY) + 1):
            await trio.testing.wait_all_tasks_blocked()
            made.clock.jump(LOOK_EVERY)
        await trio.testing.wait_all_tasks_blocked()
        assert made.roots == set()
        nursery.cancel_scope.cancel()
