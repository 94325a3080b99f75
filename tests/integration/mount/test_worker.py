"""Parts of the worker that need no mount."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
import trio.testing

from stripefs import assembly
from stripefs.fuse import store_worker
from stripefs.fuse import worker as worker_module
from stripefs.settings import Settings
from stripefs.store.base import Capabilities


async def test_a_vanished_request_ends_nothing() -> None:
    """The loop that meets EAGAIN begins anew; the others are not cancelled; any other error goes up."""
    events: list[str] = []
    met = trio.Event()

    async def vanishing(number: int) -> None:
        events.append(f"begin {number}")
        if not met.is_set():
            met.set()
            raise BlockingIOError

    async def serving() -> None:
        await met.wait()
        await trio.testing.wait_all_tasks_blocked()
        events.append("served")

    async with worker_module._open_nursery() as nursery:
        nursery.start_soon(serving, name="serving")
        nursery.start_soon(vanishing, 7)
    assert events == ["begin 7", "begin 7", "served"]

    async def broken() -> None:
        raise OSError(5, "gone")

    with pytest.RaisesGroup(OSError):
        async with worker_module._open_nursery() as nursery:
            nursery.start_soon(broken)


def test_replies_to_the_dead_are_no_news() -> None:
    def record(text: str) -> logging.LogRecord:
        return logging.LogRecord("pyfuse3", logging.ERROR, "", 0, text, (), None)

    assert not worker_module._is_relevant(record("fuse_read(): fuse_reply_* failed with No such file or directory"))
    assert worker_module._is_relevant(record("fuse_read(): fuse_reply_* failed with Bad address"))


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> store_worker.StoreBackend:
    """A worker that has to open its store again, without a supervisor."""
    monkeypatch.setattr(store_worker, "_RECONNECT_EVERY", 0.01)
    made = object.__new__(store_worker.StoreBackend)
    made._settings, made._file_ids = Settings(), True
    return made


async def test_a_new_worker_waits_for_the_file_ids_that_its_predecessor_had(
    waiting: store_worker.StoreBackend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made: list[Any] = [_Connected(ids=False), _Connected(ids=False), _Connected(ids=True)]
    stores = iter(made)
    monkeypatch.setattr(assembly, "open_store", lambda _settings: next(stores))
    with caplog.at_level(logging.WARNING):
        assert await waiting._reconnect() is made[2]
    assert [store.closed for store in made] == [True, True, False]
    assert [record.getMessage() for record in caplog.records] == [
        "the store is away, requests wait for it: hdfs://nn/ gives no file ids now, as it did before"
    ]
    waiting._file_ids = False  # a store that never had any is not waited for
    monkeypatch.setattr(assembly, "open_store", lambda _settings: made[0])
    assert await waiting._reconnect() is made[0]


class _Connected:
    url = "hdfs://nn/"

    def __init__(self, *, ids: bool) -> None:
        self.capabilities = Capabilities(file_ids=ids)
        self.closed = False

    def close(self) -> None:
        self.closed = True
