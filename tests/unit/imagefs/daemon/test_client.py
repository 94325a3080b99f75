"""The client of a daemon: warnings about the one that it has found, and waiting for one that is exchanged."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from imagefs.daemon import client as module
from imagefs.daemon.client import Client, NoDaemon
from imagefs.daemon.protocol import Recording
from imagefs.daemon.worker import DaemonBackend
from imagefs.settings import DaemonSettings
from stripefs.settings import StoreSettings


async def test_dependency_snapshots_tell_once_of_options_that_are_not_in_force(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def use(request: object) -> dict[str, Any]:
        return {"missing": True}

    async def nothing(self: DaemonBackend) -> None:
        pass

    monkeypatch.setattr(DaemonBackend, "_need_cache", nothing)
    running = DaemonSettings(cache_size=1 << 30)
    backend = DaemonBackend(SimpleNamespace(payload=running.to_json()))  # type: ignore[arg-type]
    backend._host = SimpleNamespace(use=use)  # type: ignore[assignment]
    answer = await backend._use({})
    monkeypatch.setattr(Client, "_ask", lambda *_, **__: answer)
    client = Client(DaemonSettings(cache_size=1 << 20), {"cache_size": "cache-size"})
    for _ in range(2):
        assert client.attach_layer(StoreSettings(url="/s"), "n" * 64, Recording(), timeout=1.0) is None
    assert [one.getMessage() for one in caplog.records if "not in force" in one.getMessage()] == [
        "--cache-size is not in force: the daemon that runs has 1 GiB; imagefs daemon --stop ends it"
    ]


class Outage:
    """A clock that sleeping moves, and a daemon that answers from the second `back` on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, back: float) -> None:
        self.now, self.back = 1000.0, 1000.0 + back
        monkeypatch.setattr(module, "ask", self.ask)
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep))

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def ask(self, path: str, request: dict[str, Any], *_: object, **__: object) -> dict[str, Any]:
        if self.now < self.back:
            raise FileNotFoundError(path)
        return {"v": 1}


def test_all_requests_of_an_outage_wait_for_the_same_end(monkeypatch: pytest.MonkeyPatch) -> None:
    outage = Outage(monkeypatch, back=60.0)
    client = Client(DaemonSettings(), starts=False, waits=10.0)
    for _ in range(5):
        with pytest.raises(NoDaemon, match="no imagefs daemon runs"):
            client.status()
    assert outage.now == pytest.approx(1010.0, abs=0.1)
    outage.now = outage.back
    client.status()
    outage.back = outage.now + 9.0  # the next outage has its own end
    assert client.status() == {"v": 1}


def test_a_client_that_waits_for_none_says_so_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    outage = Outage(monkeypatch, back=1.0)
    with pytest.raises(NoDaemon):
        Client(DaemonSettings(), starts=False).status()
    assert outage.now == 1000.0
