"""Tasks whose errors end nothing but themselves."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from stripefs.background import supervise
from stripefs.errors import ServiceDown
from stripefs.fuse import ipc
from stripefs.fuse import worker as worker_module
from stripefs.fuse.state_memory import make_memory
from stripefs.settings import MountSettings


class Panic(BaseException):
    """As pyo3's PanicException."""


ERRORS = [ServiceDown("away"), ValueError("a bug"), Panic("rust"), BaseExceptionGroup("many", [Panic("rust")])]


@pytest.mark.parametrize("error", ERRORS)
async def test_a_task_that_failed_runs_again(error: BaseException, autojump_clock: MockClock) -> None:
    runs = []

    async def work() -> None:
        runs.append(trio.current_time())
        if len(runs) < 5:
            raise error

    await supervise("watching", work)
    pauses = [after - before for before, after in itertools.pairwise(runs)]
    assert len(pauses) == 4
    assert pauses == sorted(pauses), "they grow"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_is_meant_for_the_process_passes(error: type[BaseException]) -> None:
    async def work() -> None:
        raise error

    with pytest.raises(error):
        trio.run(supervise, "watching", work)


async def test_cancellation_passes_also_beside_an_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)

    async def fail_at_the_end() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise Panic("rust")

    async def work() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            nursery.start_soon(fail_at_the_end)

    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervise, "watching", work)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
    assert scope.cancelled_caught
    assert "watching failed unexpectedly" in caplog.text


async def test_a_worker_hears_its_supervisor_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is real: what arrives at a socket is no event of a virtual one. The pause is taken out."""
    ours, theirs = ipc.pair()
    heard = []

    def receive(source: Any) -> Any:
        heard.append(receive_really(source))
        if len(heard) == 1:
            raise RuntimeError("injected")
        return heard[-1]

    receive_really = ipc.receive
    monkeypatch.setattr(ipc, "receive", receive)
    monkeypatch.setattr("stripefs.background.FIRST_PAUSE", 0.0)
    start = {"mount": MountSettings()._asdict(), "command": "", "payload": "", "first": True, "kept": {}, "facts": {}}
    memory = make_memory()
    with ours, theirs, contextlib.ExitStack() as held:
        for descriptor in memory:
            held.callback(os.close, descriptor)
        worker = worker_module._Worker(ours, start, list(memory), lambda _: pytest.fail("no backend is made"))
        async with trio.open_nursery() as nursery:
            worker._initialised.set()
            nursery.start_soon(worker._announce)
            for number in range(2):
                ipc.send(theirs, {"op": "facts", "facts": {"number": number}})
            while worker._facts != {"number": 1}:
                await trio.sleep(0)
            theirs.close()
